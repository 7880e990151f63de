"""Core of a trainer through its phases: its dense replica, statistics and pace of exchanges. No clock, no connections.

A shell drives it: threads and connections in a real worker (hogwild_training.py, replica_exchange.py), events
on a virtual clock in a simulated one (simulation/replica_trainer.py). The shell decides when exchanges happen;
replica_exchange.py says what happens in one.

Compute threads step the replica concurrently, and exchanges add differences to it. A thread holds only its own lock
during its step, so threads never wait for each other (Hogwild). An exchange takes all of them, for as long as one copy
or one addition takes (0.1 ms for 0.5 M values) and never while it waits for others. So no local step is lost: a
difference is added to the replica as it is by then.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gbactl.averaging_rules import AveragingRule, make
from gbactl.kernels.base import Floats
from gbactl.store.dense import DenseBlock
from gbactl.wire.messages import ClosedReplicas, DenseSaved, ExchangeTotals, OpenReplicas


class Replica:
    """Dense replica of one trainer. `block`: its vector with optimizer state; `threads`: compute threads."""

    def __init__(self, block: DenseBlock, threads: int = 1) -> None:
        self.block = block
        self._locks: list[threading.Lock] = []
        self._steps: list[int] = []
        self.grow(threads)

    def grow(self, count: int) -> None:
        """Allow `count` compute threads; call it while no thread computes."""
        more = max(0, count - len(self._locks))
        self._locks += [threading.Lock() for _ in range(more)]
        self._steps += [0] * more

    @property
    def value(self) -> Floats:
        """Replica's vector (parameters, batch-norm buffers), which other threads may be writing to."""
        return self.block.value

    @property
    def iterations(self) -> int:
        """Number of local steps, summed over all threads."""
        return sum(self._steps)

    def step(self, gradient: Floats, divisor: float, lr_scale: float, thread: int = 0) -> None:
        """Apply an optimizer step of compute thread `thread` with gradient / divisor."""
        with self._locks[thread]:
            self.block.apply(gradient, divisor, lr_scale)
            self._steps[thread] += 1

    @contextmanager
    def all_threads_paused(self) -> Iterator[None]:
        """Context in which no thread can take a step."""
        with ExitStack() as stack:
            for lock in self._locks:
                stack.enter_context(lock)
            yield

    def snapshot(self, out: Floats) -> None:
        """Copy the replica's vector to `out`, as it is between two steps."""
        with self.all_threads_paused():
            np.copyto(out, self.block.value)

    def add(self, difference: Floats) -> None:
        """Add a vector of differences to the current replica."""
        with self.all_threads_paused():
            np.add(self.block.value, difference, out=self.block.value)


SPACING = 1.1  # distances are taken at exchanges 1, 2, 3, ... 10, 12, 14, ...: a hundred in ten thousand


@dataclass
class ExchangeStatistics(ExchangeTotals):
    """Statistics of one trainer's exchanges. While it is `idle`, exchanges without local steps count no gap.

    `last_exchange`: local steps of the phase at the last exchange; below 0 if that was in an earlier phase."""

    gaps: Counter[int] = field(default_factory=Counter)
    idle: bool = False
    last_exchange: int = 0
    _next_distance: float = 1.0

    def distance(self, seconds: float, replica: Floats, other: Floats) -> None:
        """Record, at ever rarer exchanges, the L2 distance of the replica from the mean or centre `other`.

        `seconds`: since the phase began."""
        if self.exchanges + 1 >= self._next_distance:
            self._next_distance = max(self._next_distance + 1, self._next_distance * SPACING)
            self.distances.append((seconds, float(np.linalg.norm(replica - other))))

    def add(self, iterations: int, seconds: float, sent: float) -> None:
        """Record an exchange: its duration and bytes sent, and the local steps done so far."""
        self.exchanges += 1
        if iterations > self.last_exchange or not self.idle:
            self.gaps[iterations - self.last_exchange] += 1
        self.last_exchange = iterations
        self.seconds += seconds
        self.sent += sent

    def next_exchange(self, k: float) -> float:
        """Compute at how many local steps of the phase an exchange is due that comes `k` steps after the last one."""
        return max(0, self.last_exchange + k)

    @property
    def totals(self) -> ExchangeTotals:
        """Copy of the totals, for a message."""
        return ExchangeTotals(
            self.iterations, self.exchanges, self.seconds, self.foreground, self.sent, dict(sorted(self.gaps.items())),
            list(self.distances),
        )  # fmt: skip


@dataclass(frozen=True)
class ExchangePace:
    """Pace of exchanges: in the background every `interval` seconds, or in the foreground every `k` local iterations.

    The first one in the background comes after `part` of the interval."""

    shadow: bool = False
    interval: float = math.inf
    k: float = math.inf
    part: float = 1.0

    @classmethod
    def for_worker(
        cls, rule: AveragingRule, shadow: bool, trainers: int, index: int, values: Mapping[str, Any]
    ) -> ExchangePace:
        """Make the pace of worker `index` from a mode's options; a worker without a replica starts no exchange.

        Trainers that exchange with a centre in the background are staggered: those that queue together from the
        first exchange on end together, pause equally long, and queue together ever after."""
        if index >= trainers or (trainers == 1 and rule.idle_alone):
            return cls()
        if not shadow:
            return cls(k=values["k"])
        return cls(True, values["shadow_interval"], part=(index + 1) / trainers if rule.centralised else 1.0)


class TrainerCore:
    """State of one trainer. `make_block` builds its replica at the first use, with equal values on all trainers."""

    def __init__(self, index: int, make_block: Callable[[], DenseBlock]) -> None:
        self.index, self._make_block = index, make_block
        self.trains = False
        self.statistics, self.pace = ExchangeStatistics(), ExchangePace()
        self.opened = -1  # request number of the last OpenReplicas
        self._replica: Replica | None = None
        self._rule: tuple[tuple[str, int, dict[str, Any]], AveragingRule] | None = None
        self._up_to_date = True  # equal to all others, or trained in the last phase: need not be fetched
        self._all_equal = True  # whether all replicas are equal
        self._first_iteration = 0

    @property
    def replica(self) -> Replica:
        """Dense replica of this trainer."""
        if self._replica is None:
            self._replica = Replica(self._make_block())
        return self._replica

    @property
    def iterations(self) -> int:
        """Local steps taken in this phase."""
        return self.replica.iterations - self._first_iteration

    def open(self, message: OpenReplicas) -> bool:
        """Open a phase; return whether the replica is outdated and must be fetched from the servers.

        A worker that is no trainer in the phase only answers the others."""
        self.opened, self.trains = message.request, self.index < message.trainers
        outdated, self._up_to_date = self.trains and not self._up_to_date, self.trains
        self.statistics = ExchangeStatistics(last_exchange=self.statistics.last_exchange - self.iterations)
        self._first_iteration = self.replica.iterations
        return outdated

    def begin(self, message: OpenReplicas) -> AveragingRule:
        """Begin a phase with an up-to-date replica; return its averaging rule, and set `pace` for the exchanges."""
        rule = self._rule_of(message)
        self.pace = ExchangePace.for_worker(rule, message.shadow, message.trainers, self.index, message.values)
        self._all_equal = False
        return rule

    def _rule_of(self, message: OpenReplicas) -> AveragingRule:
        """Make the averaging rule of a phase, or keep the previous phase's equal rule, which may have state."""
        key = (message.rule, message.trainers, message.values)
        if self._all_equal or self._rule is None or self._rule[0] != key:
            block = self.replica.block
            self._rule = (key, make(message.rule, block.params, message.values))
            self.statistics.last_exchange = 0
            if self._all_equal:
                self._rule[1].start(block.value)
        return self._rule[1]

    def took_over(self) -> None:
        """Record that this replica, like all others, was loaded from the servers, so that all are equal."""
        self._up_to_date = self._all_equal = True

    def closing_message(self, request: int) -> ClosedReplicas:
        """Make the ClosedReplicas message of a finished phase; `request`: number of the phase's opening in the run."""
        self.statistics.iterations = self.iterations
        return ClosedReplicas(self.index, request, self.statistics.totals)

    def packed_replica(self, number: int, trains: bool) -> tuple[DenseSaved, Floats | None]:
        """Pack the current replica for checkpoint `number`; no values for a worker that does not train."""
        if not trains:
            return DenseSaved(number, 0, -1), None
        block = self.replica.block
        with self.replica.all_threads_paused():
            step, values = block.step, block.packed(0, len(block.value))
        return DenseSaved(number, step, block.params), values
