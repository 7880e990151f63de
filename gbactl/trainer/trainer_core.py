"""Core of a trainer's phases without threads, clock or connections: replica, statistics, checkpoint data.

A shell carries it out: threads and connections in a real worker (hogwild_training.py, replica_exchange.py), events on a
virtual clock in a simulated one (simulation/trainer.py). The shell decides when exchanges happen;
replica_exchange.py says what happens in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gbactl.kernels.base import Floats
from gbactl.replicas import AveragingRule, make
from gbactl.store.dense import DenseBlock
from gbactl.trainer.dense_replica import ExchangeStatistics, Replica
from gbactl.trainer.replica_exchange import ExchangePace
from gbactl.wire.messages import ClosedReplicas, DenseSaved, OpenReplicas


class TrainerCore:
    """Core of one trainer. `make_block` builds its replica when first used, the same on all trainers."""

    def __init__(self, index: int, make_block: Callable[[], DenseBlock]) -> None:
        self.index, self._make_block = index, make_block
        self.trains = False
        self.statistics, self.pace = ExchangeStatistics(), ExchangePace()
        self.opened = -1  # request number of the last OpenReplicas
        self._replica: Replica | None = None
        self._rule: tuple[tuple[str, int, dict[str, Any]], AveragingRule] | None = None
        self._fresh = True  # equal to all others, or trained in the last phase: need not be fetched
        self._common = True  # whether all replicas are equal
        self._first = 0

    @property
    def replica(self) -> Replica:
        """Dense replica of this trainer."""
        if self._replica is None:
            self._replica = Replica(self._make_block())
        return self._replica

    @property
    def iterations(self) -> int:
        """Local steps taken in this phase."""
        return self.replica.iterations - self._first

    def open(self, message: OpenReplicas) -> bool:
        """Open a phase; return whether the replica is outdated and must be fetched from the servers.

        A worker that is no trainer in the phase only answers the others."""
        self.opened, self.trains = message.turn, self.index < message.trainers
        behind, self._fresh = self.trains and not self._fresh, self.trains
        self.statistics, self._first = ExchangeStatistics(), self.replica.iterations
        return behind

    def begin(self, message: OpenReplicas) -> AveragingRule:
        """Begin a phase with an up-to-date replica; return its averaging rule, and set `pace` for the exchanges."""
        rule = self._rule_of(message)
        self.pace = ExchangePace.of(rule, message.shadow, message.trainers, self.index, message.values)
        self._common = False
        return rule

    def _rule_of(self, message: OpenReplicas) -> AveragingRule:
        """Make the averaging rule of a phase; keep the previous phase's, which may have state, if it is the same."""
        key = (message.rule, message.trainers, message.values)
        if self._common or self._rule is None or self._rule[0] != key:
            block = self.replica.block
            self._rule = (key, make(message.rule, block.params, message.values))
            if self._common:
                self._rule[1].start(block.value)
        return self._rule[1]

    def took_over(self) -> None:
        """Record that this replica, like all others, was loaded from the servers, so that all are equal."""
        self._fresh = self._common = True

    def closed(self, turn: int) -> ClosedReplicas:
        """Make the ClosedReplicas message of a finished phase; `turn`: number of the phase's opening in the run."""
        self.statistics.iterations = self.iterations
        return ClosedReplicas(self.index, turn, self.statistics.fields())

    def saved(self, number: int, trains: bool) -> tuple[DenseSaved, Floats | None]:
        """Pack the current replica for checkpoint `number`; no values for a worker that does not train."""
        if not trains:
            return DenseSaved(number, 0, -1), None
        block = self.replica.block
        with self.replica.all_threads_paused():
            step, values = block.step, block.packed(0, len(block.value))
        return DenseSaved(number, step, block.params), values
