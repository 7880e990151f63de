"""One exchange of a trainer with a centre, or with all other trainers: snapshot, ask, write the difference.

How trainers part (decentralised). Every exchange is a round of one all-reduce that all ranks take part in, and a
vector of the round says how many of them are leaving: those who the coordinator told that the phase is closed. A rank
that is leaving goes on answering rounds. All ranks see the same sum in the same round, so all leave after the same
round, the first in which everybody is leaving: nobody waits for one that has gone. That round changes nothing.
Everybody comes to it: the coordinator tells every rank, one that computes takes part in rounds (in the background
always, in the foreground after k iterations and, out of data, in the background too), and one that never trains (weight
0) does nothing else. With a centre nobody waits for anybody, and there is nothing to part from.

Who computes. A round counts those, too: when all are out of data, or leaving, there is nothing to be brought together,
and how many rounds there are until all have parted must change nothing (momentum would go on).

Who dies. A round also counts who is there: the mean is over those, and all leave when all of those are leaving. Whether
the one that died was still there is the same for all ranks (see collective/fault_tolerant.py), so they go on together.

Memory: two vectors. Costs three passes over the replica beside the exchange itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from gbactl.collective.base import Collective, all_reduce_sum
from gbactl.kernels.base import Floats
from gbactl.kernels.halves import Codec, round_here
from gbactl.replicas.base import Rule
from gbactl.trainer.replica import Replica
from gbactl.trainer.statistics import Notes

Now = Callable[[], float]


class Meeting(Protocol):
    """What a trainer takes part in."""

    notes: Notes

    def once(self, leaving: bool) -> bool:
        """One exchange; whether it was the last. Raises GbactlError when the others are gone."""


class Encounter:
    """What both kinds share. `ask` turns what was sent, f32[n], into the centre before or the mean.

    `codec`: values are rounded to two bytes, and have `item` of them on their way. What comes back is compared with
    what was sent, as it arrived there: else every exchange would round the replica itself, and steps smaller than that
    be lost."""

    def __init__(
        self, replica: Replica, rule: Rule, notes: Notes, now: Now = time.perf_counter, codec: Codec | None = None,
        item: int = 4,
    ) -> None:  # fmt: skip
        self.replica, self.rule, self.notes, self._now = replica, rule, notes, now
        self.codec, self.item = codec, item
        self._began, self._first = now(), replica.iterations
        self._sent: Floats = np.empty_like(replica.value)

    def send(self) -> Floats:
        """The replica as it is now, or arrives where it is sent: f32[n], the memory of this exchange."""
        self.replica.snapshot(self._sent)
        round_here(self.codec, self._sent)
        return self._sent

    def receive(self, other: Floats, began: float, values: float) -> None:
        """What came back for what `send` gave: move the replica as it is now. So many values went each way."""
        self.notes.distance(self._now() - self._began, self._sent, other)
        self.rule.exchange(self._sent, other)
        if self.rule.alpha:
            self.replica.add(self._sent)
        self.notes.met(self.replica.iterations - self._first, self._now() - began, 2.0 * self.item * values)


class CentreMeeting(Encounter):
    """`ask(replica, alpha)` has the servers do their half, and returns f32[n], the centre before; None where nobody
    is there, which is no exchange."""

    def __init__(
        self, replica: Replica, rule: Rule, notes: Notes, ask: Callable[[Floats, float], Floats | None],
        now: Now = time.perf_counter, codec: Codec | None = None, item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(replica, rule, notes, now, codec, item)
        self._ask = ask

    def once(self, leaving: bool) -> bool:
        """See Meeting."""
        if leaving:
            return True
        began = self._now()
        sent = self.send()
        centre = self._ask(sent, float(self.rule.alpha))
        if centre is not None:
            self.receive(centre, began, len(sent))
        return False


class RoundEncounter(Encounter):
    """`weight` 0: takes part for the others' sake. A round sums
    [replica | weight | leaving | there | computing]."""

    def __init__(
        self, replica: Replica, rule: Rule, notes: Notes, weight: float = 1.0, now: Now = time.perf_counter,
        codec: Codec | None = None, item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(replica, rule, notes, now, codec, item)
        self.weight = np.float32(weight)
        self._round: Floats = np.zeros(len(self._sent) + 4, np.float32)

    def offer(self, leaving: bool) -> Floats:
        """f32[n + 4] to be summed in place."""
        total = self._round
        np.multiply(self.send(), self.weight, out=total[:-4])
        total[-4:] = self.weight, leaving, 1.0, self.weight > 0 and not (leaving or self.notes.idle)
        return total

    def accept(self, began: float) -> bool:
        """What was offered is summed over all who are there. Whether all leave."""
        total = self._round
        round_here(self.codec, total)
        weights, leaving, there, computing = (float(count) for count in total[-4:])
        if leaving == there:
            return True
        np.divide(total[:-4], np.float32(max(1.0, weights)), out=total[:-4])
        if self.weight and computing:
            self.receive(total[:-4], began, len(total) * (there - 1) / there)
        return False


class RoundMeeting(RoundEncounter):
    """Rounds of a collective, which nothing else uses at that time."""

    NAME = "replicas"

    def __init__(
        self, replica: Replica, rule: Rule, notes: Notes, collective: Collective, weight: float = 1.0,
        now: Now = time.perf_counter, codec: Codec | None = None, item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(replica, rule, notes, weight, now, codec, item)
        self.collective = collective

    def once(self, leaving: bool) -> bool:
        """See Meeting."""
        began = self._now()
        all_reduce_sum(self.collective, self.NAME, self.offer(leaving))
        return self.accept(began)
