"""The dense side of a trainer: its own replica, stepped locally, kept together with the others' by a drive.

Nothing is allocated before a phase needs it; then: the replica with its optimizer, a gradient a thread, two vectors
for exchanges. A step costs what the dense optimizer costs. Evaluation reads the servers' vector: the centre, or the
mean of the replicas that they settled at the end of the phase.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from gbactl.collective.base import Collective
from gbactl.collective.fault_tolerant import Surviving
from gbactl.errors import ClusterError
from gbactl.kernels.halves import Codec
from gbactl.models.flat import FlatModel
from gbactl.replicas import Rule, make
from gbactl.store.dense import DenseBlock
from gbactl.trainer.easgd_exchange import ElasticExchange
from gbactl.trainer.exchange import CentreMeeting, Meeting, RoundMeeting
from gbactl.trainer.exchange_schedule import Drive, Pace
from gbactl.trainer.hogwild import Lane
from gbactl.trainer.replica import Replica
from gbactl.trainer.statistics import Notes
from gbactl.wire.messages import ClosedReplicas, CloseReplicas, DenseSaved, GiveReplica, OpenReplicas, SaveReplica
from gbactl.worker.core import Item
from gbactl.worker.dense_params import ServedDense
from gbactl.worker.dense_slices import Slices


class TrainerDense(Lane):
    """`make_block` builds the replica at its first use, equal on all trainers; `collective` is None without one.

    `codec`: values go in two bytes, and have `ring_item` in a ring. It is the first lane itself; `more_lanes(thread)`
    starts another."""

    def __init__(
        self, flat: FlatModel, slices: Slices, served: ServedDense, make_block: Callable[[], DenseBlock],
        collective: Collective | None, more_lanes: Callable[[int], Lane] | None = None, codec: Codec | None = None,
        ring_item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(flat, 0, self)
        self.slices, self.exchange = slices, slices.exchange
        self.served, self.collective = served, collective
        self.codec, self.ring_item = codec, ring_item
        self.more_lanes, self._make_block = more_lanes, make_block
        self._lanes: list[Lane] = [self]
        self.stands = False
        self._replica: Replica | None = None
        self._elastic: ElasticExchange | None = None
        self._rule: tuple[tuple[str, int, dict[str, Any]], Rule] | None = None
        self._drive: Drive | None = None
        self._evaluating = self._trains = False
        self._fresh = True  # equal to all others, or trained last: not left behind as one who did not train
        self._common = True
        self._notes, self._first = Notes(), 0
        self._opened = -1
        self.exchange.on_save = self._save

    @property
    def replica(self) -> Replica:
        """The trainer's own."""
        if self._replica is None:
            self._replica = Replica(self._make_block())
        return self._replica

    def hear(self, message: OpenReplicas | CloseReplicas) -> ClosedReplicas | None:
        """Open or close a phase. Raises GbactlError when those that it waits for are gone."""
        if isinstance(message, OpenReplicas):
            if message.turn != self._opened:  # another coordinator says again what it finds no trace of
                self.open(message)
        elif message.last:
            return self.close(message)
        elif self._drive is not None:
            self._drive.idle()
        return None

    # -- phases -------------------------------------------------------------------------------------

    def open(self, message: OpenReplicas) -> None:
        """A phase begins. A worker that is no trainer in it only answers the others."""
        self._opened, self._trains, values = message.turn, self.exchange.index < message.trainers, message.values
        if self._trains and not self._fresh:
            self._fetch()
        self._fresh = self._trains
        self._notes, self._first = Notes(), self.replica.iterations
        rule = self._rule_of(message.rule, message.trainers, values)
        pace = Pace.of(rule, message.shadow, message.trainers, self.exchange.index, values)
        self._use_lanes(values["hogwild_threads"])
        self.stands = self.exchange.core.threads > 1 and not pace.shadow
        self._drive = pace.drive(self._meeting(rule), self._stopped)
        self._common = False

    def _use_lanes(self, count: int) -> None:
        self.replica.grow(count)
        while len(self._lanes) < count:
            if self.more_lanes is None:
                raise ClusterError("This worker cannot start more compute threads; please report this.")
            self._lanes.append(self.more_lanes(len(self._lanes)))
        self.exchange.core.threads = count

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """No thread computes inside."""
        with ExitStack() as held:
            for lane in self._lanes if self.stands else []:
                held.enter_context(lane.turn)
            yield

    def _rule_of(self, name: str, trainers: int, values: dict[str, Any]) -> Rule:
        """The one of the phase before if it is the same: it may remember something, on all trainers the same."""
        key = (name, trainers, values)
        if self._common or self._rule is None or self._rule[0] != key:
            self._rule = (key, make(name, self.flat.params, values))
            if self._common:
                self._rule[1].start(self.replica.value)
        return self._rule[1]

    def _meeting(self, rule: Rule) -> Meeting:
        if rule.centralised:
            if self._elastic is None:
                self._elastic = ElasticExchange(self.slices, self.flat.size)
            item = self.exchange.hub.traffic.item
            return CentreMeeting(self.replica, rule, self._notes, self._elastic, codec=self.codec, item=item)
        if self.collective is None:
            raise ClusterError("This worker is in no group that could average replicas; please report this.")
        if isinstance(self.collective, Surviving):
            self.collective.without_the_dead()
        return RoundMeeting(
            self.replica, rule, self._notes, self.collective, float(self._trains), codec=self.codec, item=self.ring_item
        )

    def stepped(self) -> None:
        """See lane.Trainer."""
        assert self._drive is not None
        self._drive.stepped(self.replica.iterations - self._first)

    def close(self, message: CloseReplicas) -> ClosedReplicas:
        """Answer the others until all leave, then give the servers what is theirs from now on; perhaps once more."""
        if self._drive is not None:
            self._drive.close()
            self._drive, self.exchange.core.threads = None, 1
        if self._trains:
            self.slices.give(self.replica.block, lambda step: GiveReplica(step, message.turn))
        self._notes.iterations = self.replica.iterations - self._first
        return ClosedReplicas(self.exchange.index, message.turn, self._notes.fields())

    # -- saving -------------------------------------------------------------------------------------

    def _save(self, message: SaveReplica) -> None:
        """The reading thread asks: tell the replica from a thread that nobody waits for."""
        trains = self._drive is not None and self._trains
        threading.Thread(target=self._tell, args=(message.number, trains), name="save", daemon=True).start()

    def _tell(self, number: int, trains: bool) -> None:
        coordinator = self.exchange.coordinator
        if not trains:
            coordinator.send(DenseSaved(number, 0, -1))
            return
        block = self.replica.block
        with self.replica.still():
            step, values = block.step, block.packed(0, self.flat.size)
        coordinator.send(DenseSaved(number, step, block.params), values.view(np.uint8))

    # -- batches ------------------------------------------------------------------------------------

    def load(self, item: Item) -> None:
        """The replica to train with; what the servers hold to evaluate."""
        if not item.phase.training:
            if not self._evaluating:
                self.flat.come_home()  # the servers' slices are copied to where the model computes
            self._evaluating = True
            self.served.load(item)
            return
        if self._evaluating:
            self.served.leave()
            self._evaluating = False
        super().load(item)

    # -- moving -------------------------------------------------------------------------------------

    def leave(self) -> None:
        """See DensePlacement."""
        self.served.leave()
        self._evaluating = False

    def take_over(self, turn: int) -> None:
        """See DensePlacement: every trainer begins with what the servers hold."""
        if isinstance(self.collective, Surviving):
            self.collective.renew(turn)  # others may have come since it was formed, or parts been dealt
        self._fetch()
        self._fresh = self._common = True

    def _fetch(self) -> None:
        self.slices.fetch(self.replica.block, self.replica.still())
