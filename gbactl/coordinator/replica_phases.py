"""Coordinator's part in replica phases, whose workers are trainers: opens and closes them, sums trainers' statistics.

A phase is closed when all its gradients have arrived, since a failed trainer's batches may still be handed to a trainer
that was out of data. Where replicas are averaged in the foreground, a trainer that is out of data is told so before the
phase is closed: it must take part in the all-reduce rounds of the others (see trainer/replica_exchange.py). At the
close every trainer sends the servers its replica, and the servers then hold the mean of these replicas, or keep the
centre. A failed trainer's replica is in no mean after the failure. If a server fails after it got replicas, all
trainers send theirs again, and so they do after a coordinator failover. A close costs two or three messages to and one
from every worker.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gbactl.checkpoint.publishing import ReplicaMean
from gbactl.coordinator.run_context import Flow, RunContext, WaitCondition
from gbactl.coordinator.state import kind_of_dense
from gbactl.coordinator.statistics import quantiles
from gbactl.errors import WireError
from gbactl.policies.policy import Policy
from gbactl.policies.replica_modes import ReplicaOptions, ReplicaPolicy
from gbactl.wire.messages import AverageReplicas, ClosedReplicas, CloseReplicas, ExchangeTotals, OpenReplicas

POINTS = 20


class ReplicaPhases:
    """Coordinator's part in phases of replica modes: opens and closes them on the trainers, sums up their exchanges.

    In other modes it does nothing. `term`: number of coordinators before this one."""

    def __init__(self, run: RunContext, term: int = 0) -> None:
        self.run, self.members, self.state = run, run.members, run.state.replicas
        self._began = 0.0
        self.request = term << 20  # number of the request to close a phase; unique across coordinators
        self._policy: type[ReplicaPolicy] | None = None
        self._asked: set[int] = set()
        self._idle_sent = False
        self._extra_requests: list[int] = []
        self._totals: dict[int, ExchangeTotals] = {}

    def open(self, began: float | None = None) -> None:
        """Open the replica phase that has just begun; no trainer has a batch of it yet.

        A trainer asks for as many further batches as its threads beyond the first can use. A phase that `began` so many
        seconds into the run is continued after a failover: trainers that know it ignore the message, and waiting ones
        are known already."""
        cfg = self.run.current
        policy = cfg.mode.policy
        self._policy = policy if issubclass(policy, ReplicaPolicy) else None
        if self._policy is None:
            return
        options, trainers = cfg.policy_options(), cfg.cluster.workers
        assert isinstance(options, ReplicaOptions)
        values = dataclasses.asdict(options)
        self._began = self.run.record.seconds if began is None else began
        self._renew_request()
        self._idle_sent = False
        rule, shadow = self._policy.rule, self._policy.shadow
        self.members.send_to_all("worker", OpenReplicas(self.run.phase_number, rule, shadow, trainers, values))
        self.run.fencing.tell_workers()
        self._close(worker for worker in self.members.channels_of("worker") if worker >= trainers)
        threads = options.hogwild_threads
        live = [worker for worker in self.members.channels_of("worker") if worker < trainers]
        self._extra_requests = [
            worker for _ in range((threads - 1) * (1 + cfg.mode.prefetched_batches)) for worker in live
        ]
        self.run.waiting.extend(self._extra_requests if began is None else ())
        self.state.settings = {
            "evaluated": kind_of_dense(self._policy), "trainers": trainers, "hogwild_threads": threads,
            "elp": cfg.local_batch * threads * trainers,
        }  # fmt: skip

    def poll(self, policy: Policy) -> None:
        """Once all batches of the phase are handed out, inform the trainers that average in the foreground.

        Called between two messages."""
        if (
            self._policy is None
            or self._policy.shadow
            or not self._policy.collective
            or self._idle_sent
            or not policy.exhausted
        ):
            return
        self._idle_sent = True
        for worker in sorted(set(self.members.channels_of("worker")) - self._asked):
            self.members.channels_of("worker")[worker].send(CloseReplicas(self.request, False))

    def close(self) -> Flow[dict[str, Any]]:
        """Wait until all trainers have sent their replicas to the servers, which then keep the mean or the centre.

        Nothing is in flight. Returns the result's fields about the phase's replicas; empty where it had none."""
        if self._policy is None:
            return {}
        extra, self._extra_requests = self._extra_requests, []
        for worker in extra:
            if worker in self.run.waiting:
                self.run.waiting.remove(worker)
            else:
                self.run.surplus_requests[worker] += 1
        yield from self._collect_replicas()
        self.members.send_to_all("server", AverageReplicas(self._policy.collective))
        totals = sum_of(self._totals.values())
        totals.distances = [(self._began + at, distance) for at, distance in totals.distances]
        self.state.phases.append(totals)
        self._policy = None
        return {"replicas": {**self.state.settings, **summary(totals)}}

    def _collect_replicas(self) -> Flow[None]:
        """Wait until every server has the replicas of all trainers."""
        while True:
            lost = self.run.server_losses
            self._close(self.members.channels_of("worker"))
            yield WaitCondition(lambda: set(self.members.channels_of("worker")) <= set(self._totals))
            if lost == self.run.server_losses:
                return
            self._renew_request()

    def _renew_request(self) -> None:
        self.request += 1
        self._asked, self._totals = set(), {}

    def _close(self, workers: Any) -> None:
        for worker in sorted(set(workers) - self._asked):
            self._asked.add(worker)
            self.members.channels_of("worker")[worker].send(CloseReplicas(self.request))

    def drop_requests(self, worker: int) -> None:
        """Drop the batch requests of a failed worker's compute threads: its successor sends its own."""
        self._extra_requests = [requester for requester in self._extra_requests if requester != worker]
        self.run.surplus_requests.pop(worker, None)

    def extra_requests(self, worker: int) -> int:
        """Number of open batch requests of a worker's additional compute threads in this phase."""
        return self._extra_requests.count(worker)

    def on_closed(self, message: ClosedReplicas) -> None:
        """Record a trainer's statistics, sent at the end of a phase. Raises WireError if they are not finite."""
        totals = message.totals
        if not all(map(math.isfinite, (totals.seconds, totals.foreground, totals.sent))):
            raise WireError(f"W{message.worker} tells times or bytes that are not finite.")
        if message.request == self.request:
            self._totals[message.worker] = totals

    def gathering(self) -> ReplicaMean | None:
        """Return an empty mean of the trainers' replicas, for a checkpoint to fill; None outside of a replica phase."""
        if self._policy is None:
            return None
        trainers = [worker for worker in self.members.channels_of("worker") if worker < self.state.settings["trainers"]]
        return ReplicaMean(trainers, centred=not self._policy.collective) if trainers else None

    def result(self) -> dict[str, Any]:
        """Fields of result.json about replicas, combined over all replica phases."""
        if not self.state.phases:
            return {}
        return {"replicas": {**self.state.settings, **summary(sum_of(self.state.phases))}}


def sum_of(parts: Iterable[ExchangeTotals]) -> ExchangeTotals:
    """Add up trainers' statistics, or totals of them; distances are put in the order of time."""
    whole, gaps = ExchangeTotals(), Counter[int]()
    for part in parts:
        whole.iterations += part.iterations
        whole.exchanges += part.exchanges
        whole.seconds += part.seconds
        whole.foreground += part.foreground
        whole.sent += part.sent
        whole.distances += part.distances
        gaps.update(part.gaps)
    whole.gaps = dict(gaps)
    whole.distances.sort()
    return whole


def summary(totals: ExchangeTotals) -> dict[str, Any]:
    """Fields of result.json from total statistics: ms per exchange, bytes, distance over time in at most 20 points."""
    exchanges = totals.exchanges
    return {
        "sync_gap": quantiles(Counter(totals.gaps)),
        "exchanges": exchanges,
        "exchange_ms": 1000.0 * totals.seconds / exchanges if exchanges else 0.0,
        "foreground_seconds": totals.foreground,
        "bytes_exchanged": int(totals.sent),
        "distance": curve(totals.distances),
    }


def curve(points: Sequence[Sequence[float]]) -> list[list[float]]:
    """Reduce ordered (seconds, distance) points to at most 20 means of neighbours."""
    if not points:
        return []
    parts = np.array_split(np.array(points, np.float64), min(POINTS, len(points)))
    return [[float(x) for x in part.mean(axis=0)] for part in parts]
