"""Exchange of a trainer's replica with a centre or with all other trainers: send a copy, add the difference.

Leaving (decentralised). Every exchange is a round of one all-reduce that all ranks take part in, and a vector of the
round says how many of them are leaving, which are those to which the coordinator has said that the phase is closed. A
rank that is leaving goes on answering rounds. All ranks see the same sum in the same round, so all leave after the same
round, the first in which every rank is leaving: no rank waits for one that has left. That round changes nothing. Every
rank reaches it: the coordinator tells every rank, one that computes takes part in rounds (in the background always, in
the foreground after k iterations and, out of data, in the background too), and one that never trains (weight 0) does
nothing else. With a centre no rank waits for another, and no such agreement is needed.

Computing ranks. A round also counts the ranks that compute: when all are out of data, or leaving, there is nothing to
average, and the number of rounds until all have left must change nothing (momentum would go on).

Failures. A round also counts the ranks that are there: the mean is over those, and all leave when all of those are
leaving. All ranks agree on whether a failed one was still there (see collective/fault_tolerant.py), so they go on
together.

An exchange takes the memory of two vectors, and three passes over the replica beside the exchange itself.

Schedule. Exchanges are periodic in a shadow thread, or come every k iterations in the foreground. The thread costs a
core for the time of its passes over the vector and sleeps while it waits for others; the compute loop never waits for
it. It has the scheduling of the compute thread that starts it: where workers share cores, the same one. A foreground
trainer out of data also answers the others from such a thread: a failed trainer's batch may still come, and is then
computed beside that thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from gbactl.averaging_rules import AveragingRule
from gbactl.collective.base import Collective
from gbactl.errors import PeerGoneError, WireError
from gbactl.kernels.base import Floats
from gbactl.kernels.half_precision import Codec, round_here
from gbactl.store.dense import Cut
from gbactl.trainer.trainer_core import ExchangePace, ExchangeStatistics, Replica
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import EasgdCentre, EasgdUpdate
from gbactl.worker.client import WorkerClient

Now = Callable[[], float]
AWAY_SECONDS = 0.05  # seconds that an exchange waits where no server is connected: else it would be retried at once


@dataclass(eq=False)
class ReplicaExchange:
    """Base of all exchanges: copies the replica, and later adds the difference that the exchange results in.

    `codec`: values are rounded to two bytes, and take `item` bytes each on the wire. The answer is compared with
    the values as they arrived there: otherwise every exchange would round the replica itself, and smaller steps
    would be lost."""

    replica: Replica
    rule: AveragingRule
    statistics: ExchangeStatistics
    now: Now = field(default=time.perf_counter, kw_only=True)
    codec: Codec | None = field(default=None, kw_only=True)
    item: int = field(default=4, kw_only=True)

    def __post_init__(self) -> None:
        self._began, self._first = self.now(), self.replica.iterations
        self._sent: Floats = np.empty_like(self.replica.value)

    def send(self) -> Floats:
        """Copy the current replica, rounded as on the wire.

        The array f32[n] is overwritten by the next exchange."""
        self.replica.snapshot(self._sent)
        round_here(self.codec, self._sent)
        return self._sent

    def receive(self, other: Floats, began: float, values: float) -> None:
        """Move the replica towards the received mean or centre `other`, and record the exchange since time `began`."""
        self.statistics.distance(self.now() - self._began, self._sent, other)
        self.rule.exchange(self._sent, other)
        if self.rule.alpha:
            self.replica.add(self._sent)
        self.statistics.add(self.replica.iterations - self._first, self.now() - began, 2.0 * self.item * values)


@dataclass(eq=False)
class CentreExchange(ReplicaExchange):
    """Exchange of a replica with the centre on the servers (EASGD).

    `ask(replica, alpha)` has the servers do their half, and returns f32[n], the previous centre; None where no server
    answers, which counts as no exchange."""

    ask: Callable[[Floats, float], Floats | None]

    def exchange_once(self, leaving: bool) -> bool:
        """Exchange once; return True, without an exchange, once this trainer is `leaving`. Raises GbactlError."""
        if leaving:
            return True
        began = self.now()
        sent = self.send()
        centre = self.ask(sent, float(self.rule.alpha))
        if centre is not None:
            self.receive(centre, began, len(sent))
        return False


@dataclass(eq=False)
class AveragingRound(ReplicaExchange):
    """Averaging round of a replica with all trainers' replicas; `weight` 0 excludes this trainer's replica.

    A round sums [replica | weight | leaving | there | computing]."""

    weight: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._round: Floats = np.zeros(len(self._sent) + 4, np.float32)

    def fill(self, leaving: bool) -> Floats:
        """Fill the averaging round's vector float32[n + 4]: replica and four flags. An all-reduce sums it in place."""
        total = self._round
        np.multiply(self.send(), np.float32(self.weight), out=total[:-4])
        total[-4:] = self.weight, leaving, 1.0, self.weight > 0 and not (leaving or self.statistics.idle)
        return total

    def apply(self, began: float) -> bool:
        """Apply the summed vector of an averaging round, unless all ranks are leaving; return whether they are."""
        total = self._round
        round_here(self.codec, total[:-4])  # the counts stay exact
        weights, leaving, trainers, computing = (float(count) for count in total[-4:])
        if leaving == trainers:
            return True
        np.divide(total[:-4], np.float32(max(1.0, weights)), out=total[:-4])
        if self.weight and computing:
            self.receive(total[:-4], began, len(total) * (trainers - 1) / trainers)
        return False


@dataclass(eq=False)
class AveragingRounds(AveragingRound):
    """Rounds in which all trainers average their replicas, over a collective of their own."""

    NAME: ClassVar[str] = "replicas"

    collective: Collective

    def exchange_once(self, leaving: bool) -> bool:
        """Do an averaging round; return whether it was the last. `leaving`: this trainer ends. Raises GbactlError."""
        began = self.now()
        self.collective.wait(self.collective.start(self.NAME, self.fill(leaving)))
        return self.apply(began)


class CentreSlices:
    """EASGD centre, assembled from one slice of every shard, as the servers answer an exchange."""

    def __init__(self, cuts: Mapping[int, Cut], size: int) -> None:
        self.cuts = cuts
        self.centre: Floats = np.empty(size, np.float32)
        self.missing: set[int] = set()  # shards that have not answered yet
        self._sent = self.centre
        self._request = 0

    def ask(self, replica: Floats, alpha: float, served: Collection[int]) -> list[tuple[int, EasgdUpdate, Floats]]:
        """Begin an exchange: make (shard, message, slice of the replica) for every connected server.

        Slices of other servers keep the replica's values."""
        self._request, self._sent, self.missing = self._request + 1, replica, self.cuts.keys() & set(served)
        for shard in self.cuts.keys() - self.missing:
            self._use_replica(shard)
        update, cuts = EasgdUpdate(self._request, alpha), self.cuts.items()
        return [(shard, update, replica[low:high]) for shard, (low, high) in cuts if shard in self.missing]

    def on_slice(self, shard: int, message: EasgdCentre, payload: Bytes) -> None:
        """Store a server's slice of the centre. Raises WireError for a slice that was not requested."""
        low, high = self.cuts[shard]
        if message.request != self._request or payload.size != 4 * (high - low):
            raise WireError(f"S{shard} answered an exchange with {payload.size} bytes.")
        self.centre[low:high] = payload.view(np.float32)
        self.missing.discard(shard)

    def on_server_lost(self, shard: int) -> None:
        """Stop waiting for a failed server's slice of the centre, and use the replica's values there."""
        if shard in self.missing:
            self._use_replica(shard)
            self.missing.discard(shard)

    def _use_replica(self, shard: int) -> None:
        low, high = self.cuts[shard]
        self.centre[low:high] = self._sent[low:high]


class EasgdExchange:
    """EASGD exchange over the servers: sends the replica's slices, receives the slices of the previous centre.

    One exchange at a time, from any thread but the reading one. A dense vector each way; what is sent is copied once.
    The slice of a server that is disconnected, or fails during the exchange, stays unchanged: nobody waits for its
    successor. `cuts`: range of each server's slice."""

    def __init__(self, client: WorkerClient, cuts: Mapping[int, Cut], size: int) -> None:
        self.client, self._slices = client, CentreSlices(cuts, size)
        self.client.handlers[EasgdCentre] = self._on_centre
        self.client.on_server_lost = self._slices.on_server_lost

    def __call__(self, replica: Floats, alpha: float) -> Floats | None:
        """Exchange a replica with the servers; return the centre before it moved by `alpha` towards the replica.

        The result is valid until the next call. It has the replica's own values where a server does not answer, and is
        None where none does. Raises GbactlError when the run is over, or a server is gone for good."""
        self.client.wait_until(self._any_connected, AWAY_SECONDS)
        with self.client.connected() as served:
            requests = [
                (served[shard], update, part) for shard, update, part in self._slices.ask(replica, alpha, served)
            ]
        for channel, update, part in requests:
            out = channel.reserve(part.nbytes)
            out.view(np.float32)[:] = part
            channel.send(update, out)
        self.client.wait_until(lambda: not self._slices.missing)
        if self._slices.missing:
            raise PeerGoneError("The run ended before an exchange of replicas was complete.")
        return self._slices.centre if requests else None

    def _any_connected(self) -> bool:
        with self.client.connected() as connected:
            return not self._slices.cuts.keys().isdisjoint(connected)

    def _on_centre(self, shard: int, message: EasgdCentre, frame: Frame) -> None:
        self._slices.on_slice(shard, message, frame.payload)
        frame.release()


ExchangeKind = CentreExchange | AveragingRounds
IDLE_SECONDS = 0.001  # between two exchanges of a trainer without data
Paused = Callable[[], AbstractContextManager[None]]
Fail = Callable[[BaseException], None]


class ForegroundDriver:
    """Foreground exchanges every k local iterations, during which no thread of the trainer computes.

    `fail` is called with an error of an exchange in the background."""

    def __init__(self, exchange: ExchangeKind, k: float, fail: Fail, paused: Paused = nullcontext) -> None:
        self.exchange, self.k, self.fail, self.paused = exchange, k, fail, paused
        self._next = exchange.statistics.next_exchange(k)
        self._lock = threading.Lock()  # threads that arrive during an exchange wait here
        self._idle_driver: ShadowDriver | None = None

    def on_step(self, iterations: int) -> None:
        """Exchange if an exchange is due after `iterations` local steps."""
        with self._lock:
            if self._idle_driver is not None or iterations < self._next:
                return
            self._next += self.k
            with self.paused():
                began = time.perf_counter()  # from here on no thread computes
                self.exchange.exchange_once(False)
            self.exchange.statistics.foreground += time.perf_counter() - began

    def idle(self) -> None:
        """Join the other trainers' exchanges in a background thread; they no longer count as sync gaps."""
        if self._idle_driver is None and not math.isinf(self.k):
            self.exchange.statistics.idle = True
            self._idle_driver = ShadowDriver(self.exchange, IDLE_SECONDS, self.fail)

    def close(self) -> None:
        """Join exchanges until every trainer has finished the phase."""
        if self._idle_driver is not None:
            self._idle_driver.close()
            return
        while not self.exchange.exchange_once(True):
            pass


class ShadowDriver:
    """Background exchanges every `interval` seconds (infinity: never); the first one after `part` * `interval`.

    `fail` is called with the error that ends them."""

    def __init__(self, exchange: ExchangeKind, interval: float, fail: Fail, part: float = 1.0) -> None:
        self.exchange, self.fail = exchange, fail
        self._interval = None if math.isinf(interval) else interval
        self._first = None if self._interval is None else part * interval
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._leaving.wait(self._first)
            while not self.exchange.exchange_once(self._leaving.is_set()):
                self._leaving.wait(self._interval)
        except BaseException as error:
            self.fail(error)

    def on_step(self, iterations: int) -> None:
        """Do nothing: the background thread exchanges at its own pace."""

    def idle(self) -> None:
        """Do nothing: the background thread continues its exchanges without the compute threads."""

    def close(self) -> None:
        """Join exchanges until every trainer has finished the phase, or an exchange has failed."""
        self._leaving.set()
        self._thread.join()


ExchangeDriver = ForegroundDriver | ShadowDriver


def start_exchanges(
    pace: ExchangePace, exchange: ExchangeKind, fail: Fail, paused: Paused = nullcontext
) -> ExchangeDriver:
    """Start the exchanges of a phase at a pace; `fail` is called with an error of an exchange in the background."""
    if pace.shadow:
        return ShadowDriver(exchange, pace.interval, fail, pace.part)
    return ForegroundDriver(exchange, pace.k, fail, paused)
