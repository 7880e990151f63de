"""Trainer of a virtual cluster: its replica, its background exchanges as a chain of events, its foreground exchanges.

The averaging rules (gbactl/averaging_rules/) and the core of a trainer (trainer/trainer_core.py) are the real ones. The
centre is on the real servers, behind their queues and network interfaces, and a round of averaging takes the time of an
all-reduce. A trainer's own passes over the vector are a job on its host's cores. Memory: replica, moments and two or
three vectors per trainer, and a gradient for every compute thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.simulation.network import RingRounds
from gbactl.simulation.worker import VirtualWorker
from gbactl.store.dense import Cut, DenseBlock
from gbactl.trainer.replica_exchange import IDLE_SECONDS, AveragingRound, CentreSlices, ReplicaExchange
from gbactl.trainer.trainer_core import ExchangePace, Replica, TrainerCore
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    AddReplica,
    CloseReplicas,
    EasgdCentre,
    OpenReplicas,
    SaveReplica,
)

TICK = 1e-5  # minimum seconds for a shadow thread to wake up
Done = Callable[[bool], None]


class VirtualTrainer:
    """Replica of one virtual worker, and its exchanges; `cuts`: the servers' slices of it that are not empty."""

    def __init__(self, worker: VirtualWorker, block: DenseBlock, cuts: dict[int, Cut], rounds: RingRounds) -> None:
        self.worker, self.cuts, self.rounds = worker, cuts, rounds
        self.core = TrainerCore(worker.index, lambda: block)
        self._slices = CentreSlices(cuts, len(block.value))
        self._replica_exchange: ReplicaExchange
        self._pace, self._next = ExchangePace(), math.inf
        self._begun = self._leaving = self._pausing = self._exchange_due = False
        self._generation = self._request = 0
        self._on_centre_complete: Callable[[], None] = lambda: None
        self._stopped_at: list[float] = []

    @property
    def replica(self) -> Replica:
        """Dense replica of this trainer."""
        return self.core.replica

    # -- phases -------------------------------------------------------------------------------------

    def open(self, message: OpenReplicas, then: Callable[[], None]) -> None:
        """Begin a phase; call `then` when the replica is loaded."""
        behind = self.core.open(message)
        self._leaving = self._pausing = self._exchange_due = self._begun = False

        def ready() -> None:
            self._begin_with(message)
            then()

        def fetched(states: list[tuple[int, Floats]]) -> None:
            self._load(states)
            ready()

        if behind:
            self.worker.moves.fetch(fetched)
        else:
            ready()

    def _begin_with(self, message: OpenReplicas) -> None:
        rule, now = self.core.begin(message), lambda: self.worker.shared.events.now
        codec, ring, statistics = self.worker.shared.codec, self.rounds.ring, self.core.statistics
        self._pace, self._next = self.core.pace, statistics.next_exchange(self.core.pace.k)
        if rule.centralised:
            self._replica_exchange = ReplicaExchange(
                self.replica, rule, statistics, now=now, codec=codec, item=ring.traffic.item
            )
        else:
            weight = float(self.core.trains)
            self._replica_exchange = AveragingRound(
                self.replica, rule, statistics, weight=weight, now=now, codec=codec, item=ring.item
            )
        self._begun = True
        if self._pace.shadow:
            self._pause(self._pace.part)

    def take_over(self, states: list[tuple[int, Floats]]) -> None:
        """Load the replica with the dense state from the servers."""
        self.rounds.add_rank(self.worker.index)
        self._load(states)
        self.core.took_over()

    def _load(self, states: list[tuple[int, Floats]]) -> None:
        for (step, values), cut in zip(states, self.cuts.values(), strict=True):
            self.replica.block.unpack(*cut, values, step)

    def idle(self) -> None:
        """Keep exchanging while other trainers compute, once all batches are handed out; returns at once."""
        if not self._pace.shadow and not math.isinf(self._pace.k):
            self.core.statistics.idle = True
            self._pace, self._next = ExchangePace(True, IDLE_SECONDS), math.inf
            self._pause()
        self.worker.finish_request()

    def close(self, message: CloseReplicas) -> None:
        """Exchange until every trainer has finished, then send the servers this replica; may be called again."""
        self._leaving, self._request = True, message.request
        if not self._begun:
            self._send_replica()
        elif not self._pace.shadow:
            self._exchange(self._on_closing_exchange)
        elif self._pausing:
            self._generation += 1
            self._wake(self._generation)

    def _on_closing_exchange(self, last: bool) -> None:
        if last:
            self._send_replica()
        else:
            self._exchange(self._on_closing_exchange)

    def _send_replica(self) -> None:
        """Send the servers this trainer's replica, at the end of a phase."""
        self._begun, block = False, self.replica.block
        states = [(block.step, block.packed(*cut)) for cut in self.cuts.values()] if self.core.trains else []
        self.worker.moves.give(states, self._on_replica_sent, lambda step: AddReplica(step, self._request))

    def _on_replica_sent(self) -> None:
        self.worker.coordinator.send(self.core.closing_message(self._request))
        self.worker.finish_request()

    def save(self, message: SaveReplica) -> None:
        """Send the coordinator the replica as it is now, for a checkpoint."""
        saved, values = self.core.packed_replica(message.number, self.core.trains and self._begun)
        self.worker.coordinator.send(saved, None if values is None else values.view(np.uint8))

    # -- steps --------------------------------------------------------------------------------------

    def step(self, gradient: Floats, divisor: float, lr_scale: float) -> None:
        """Apply a compute thread's local step; the thread then begins its next batch, or stops for an exchange."""
        if self.worker.withholds(self.step, gradient, divisor, lr_scale):
            return
        self.replica.step(gradient, divisor, lr_scale)
        if self.core.iterations >= self._next:
            self._next += self._pace.k
            self._exchange_due = True
        if not self._exchange_due:
            self.worker.free_thread()
            return
        self._stopped_at.append(self.worker.shared.events.now)
        if len(self._stopped_at) == self.worker.core.computing:
            self._exchange(self._on_foreground_exchange)

    def _on_foreground_exchange(self, _: bool) -> None:
        stopped, self._stopped_at, self._exchange_due = self._stopped_at, [], False
        self.core.statistics.foreground += self.worker.shared.events.now - stopped[-1]
        for _since in stopped:
            self.worker.free_thread()

    @property
    def is_paused(self) -> bool:
        """Whether no compute thread may begin a batch: a foreground exchange is due or in progress."""
        return self._exchange_due

    # -- the shadow ---------------------------------------------------------------------------------

    def _pause(self, part: float = 1.0) -> None:
        self._pausing = True
        if not math.isinf(self._pace.interval) and not self._leaving:
            self.worker.shared.events.schedule_after(
                max(TICK, part * self._pace.interval), self._wake, self._generation
            )
        elif self._leaving:
            self._wake(self._generation)

    def _wake(self, generation: int) -> None:
        if generation == self._generation and not self.worker.withholds(self._wake, generation):
            self._generation += 1
            self._pausing = False
            self._exchange(self._on_background_exchange)

    def _on_background_exchange(self, last: bool) -> None:
        if last:
            self._send_replica()
        else:
            self._pause()

    # -- one exchange -------------------------------------------------------------------------------

    def _exchange(self, done: Done) -> None:
        """Begin an exchange now; `done` is called with whether it was the phase's last."""
        began = self.worker.shared.events.now
        if self._leaving and not isinstance(self._replica_exchange, AveragingRound):
            done(True)
        else:
            self._work(self._contribute, began, done)

    def _work(self, call: Callable[..., None], *args: Any) -> None:
        """Run half of an exchange's computation on the host's cores (vector passes, part of a ring), then `call`."""
        self.worker.host.cores.run(
            self._exchange_seconds() / 2 if self.core.trains else 0.0, self._after_work, call, *args
        )

    def _exchange_seconds(self) -> float:
        cost, floats = self.worker.shared.cost, len(self.replica.value)
        ring = cost.ring_work(floats, self.rounds.ranks) if isinstance(self._replica_exchange, AveragingRound) else 0.0
        return cost.exchange(floats) + ring

    def _after_work(self, call: Callable[..., None], *args: Any) -> None:
        if not self.worker.withholds(self._after_work, call, *args):
            call(*args)

    def _contribute(self, began: float, done: Done) -> None:
        exchange = self._replica_exchange
        if isinstance(exchange, AveragingRound):
            vector = exchange.fill(self._leaving)
            self.rounds.join_round(self.worker.index, vector, lambda: self._work(self._on_averaged, began, done))
            return
        self._on_centre_complete = lambda: self._work(self._on_centre, began, done)
        for shard, update, values in self._slices.ask(exchange.send(), float(exchange.rule.alpha), self.cuts):
            self.worker.servers[shard].send(update, values.copy().view(np.uint8))

    def centre(self, shard: int, message: EasgdCentre, frame: Frame) -> None:
        """Handle a server's answer in an exchange: its slice of the EASGD centre."""
        self._slices.on_slice(shard, message, frame.payload)
        if not self._slices.missing:
            self._on_centre_complete()

    def _on_centre(self, began: float, done: Done) -> None:
        self._replica_exchange.receive(self._slices.centre, began, len(self._slices.centre))
        done(False)

    def _on_averaged(self, began: float, done: Done) -> None:
        exchange = self._replica_exchange
        assert isinstance(exchange, AveragingRound)
        done(exchange.apply(began))
