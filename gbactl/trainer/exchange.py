"""Exchange of a trainer with a centre, or with all other trainers: snapshot, ask, add the difference.

Leaving (decentralised). Every exchange is a round of one all-reduce that all ranks take part in, and a
vector of the round says how many of them are leaving: those that the coordinator told that the phase is closed. A rank
that is leaving goes on answering rounds. All ranks see the same sum in the same round, so all leave after the same
round, the first in which every rank is leaving: no rank waits for one that has left. That round changes nothing.
Every rank reaches it: the coordinator tells every rank, one that computes takes part in rounds (in the background
always, in the foreground after k iterations and, out of data, in the background too), and one that never trains (weight
0) does nothing else. With a centre no rank waits for another, and no such agreement is needed.

Computing ranks. A round also counts the ranks that compute: when all are out of data, or leaving, there is nothing to
average, and the number of rounds until all have left must change nothing (momentum would go on).

Failures. A round also counts the ranks that are there: the mean is over those, and all leave when all of those are
leaving. All ranks agree on whether a failed one was still there (see collective/fault_tolerant.py), so they go on
together.

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
from gbactl.replicas.base import AveragingRule
from gbactl.trainer.replica import Replica
from gbactl.trainer.statistics import ExchangeStatistics

Now = Callable[[], float]


class ExchangeKind(Protocol):
    """Kind of exchange that a trainer takes part in: with a centre, or in rounds."""

    notes: ExchangeStatistics

    def once(self, leaving: bool) -> bool:
        """Do one exchange; returns whether it was the last. Raises GbactlError when the others are gone."""


class ReplicaExchange:
    """Common part of both kinds of exchange: take a snapshot of the replica, and add the difference.

    `codec`: values are rounded to two bytes, and take `item` bytes each on the wire. The answer is compared with
    the values as they arrived there: otherwise every exchange would round the replica itself, and smaller steps
    would be lost."""

    def __init__(
        self, replica: Replica, rule: AveragingRule, notes: ExchangeStatistics, now: Now = time.perf_counter,
        codec: Codec | None = None,
        item: int = 4,
    ) -> None:  # fmt: skip
        self.replica, self.rule, self.notes, self._now = replica, rule, notes, now
        self.codec, self.item = codec, item
        self._began, self._first = now(), replica.iterations
        self._sent: Floats = np.empty_like(replica.value)

    def send(self) -> Floats:
        """Copy the replica as it is now, rounded as on the wire: f32[n], the memory of this exchange."""
        self.replica.snapshot(self._sent)
        round_here(self.codec, self._sent)
        return self._sent

    def receive(self, other: Floats, began: float, values: float) -> None:
        """Move the current replica by the answer to what `send` returned; `values` were sent each way."""
        self.notes.distance(self._now() - self._began, self._sent, other)
        self.rule.exchange(self._sent, other)
        if self.rule.alpha:
            self.replica.add(self._sent)
        self.notes.met(self.replica.iterations - self._first, self._now() - began, 2.0 * self.item * values)


class CentreExchange(ReplicaExchange):
    """Exchange with the centre.

    `ask(replica, alpha)` has the servers do their half, and returns f32[n], the previous centre; None where no server
    answers, which counts as no exchange."""

    def __init__(
        self, replica: Replica, rule: AveragingRule, notes: ExchangeStatistics,
        ask: Callable[[Floats, float], Floats | None],
        now: Now = time.perf_counter, codec: Codec | None = None, item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(replica, rule, notes, now, codec, item)
        self._ask = ask

    def once(self, leaving: bool) -> bool:
        """See ExchangeKind.once."""
        if leaving:
            return True
        began = self._now()
        sent = self.send()
        centre = self._ask(sent, float(self.rule.alpha))
        if centre is not None:
            self.receive(centre, began, len(sent))
        return False


class AveragingRound(ReplicaExchange):
    """Averaging round. `weight` 0: takes part only to answer the others.

    A round sums [replica | weight | leaving | there | computing]."""

    def __init__(
        self, replica: Replica, rule: AveragingRule, notes: ExchangeStatistics, weight: float = 1.0,
        now: Now = time.perf_counter,
        codec: Codec | None = None, item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(replica, rule, notes, now, codec, item)
        self.weight = np.float32(weight)
        self._round: Floats = np.zeros(len(self._sent) + 4, np.float32)

    def offer(self, leaving: bool) -> Floats:
        """Fill the round's vector f32[n + 4], to be summed in place."""
        total = self._round
        np.multiply(self.send(), self.weight, out=total[:-4])
        total[-4:] = self.weight, leaving, 1.0, self.weight > 0 and not (leaving or self.notes.idle)
        return total

    def accept(self, began: float) -> bool:
        """Apply the sum of the round over all ranks that are there. Returns whether all leave."""
        total = self._round
        round_here(self.codec, total)
        weights, leaving, there, computing = (float(count) for count in total[-4:])
        if leaving == there:
            return True
        np.divide(total[:-4], np.float32(max(1.0, weights)), out=total[:-4])
        if self.weight and computing:
            self.receive(total[:-4], began, len(total) * (there - 1) / there)
        return False


class AveragingRounds(AveragingRound):
    """Averaging rounds over a collective, which nothing else uses meanwhile."""

    NAME = "replicas"

    def __init__(
        self, replica: Replica, rule: AveragingRule, notes: ExchangeStatistics, collective: Collective,
        weight: float = 1.0,
        now: Now = time.perf_counter, codec: Codec | None = None, item: int = 4,
    ) -> None:  # fmt: skip
        super().__init__(replica, rule, notes, weight, now, codec, item)
        self.collective = collective

    def once(self, leaving: bool) -> bool:
        """See ExchangeKind.once."""
        began = self._now()
        all_reduce_sum(self.collective, self.NAME, self.offer(leaving))
        return self.accept(began)
