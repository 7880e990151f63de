"""Statistics that the coordinator counts during a run: staleness, rates, losses, norms, workers' time by activity.

norms.jsonl in the run directory has one line per sampled step: {"step", "mode", "dense": L2 norm of the applied dense
gradient, "rows": norms of some rows' gradients}. All else is pure.
"""

from __future__ import annotations

import copy
import json
import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.faults.observed_effects import ObservedBatches
from gbactl.policies.policy import Member, Step
from gbactl.wire.messages import WAITS, GradientNorms

NORMS_FILE = "norms.jsonl"
DIVERGED = 1000.0  # limit of a loss, as a multiple of the first loss
ADVICE = "type a smaller optim.lr, or train.on_divergence=continue to train on."
MOST_SPEEDS = 32
ACTIVITIES = ("compute", *WAITS)
MOST_BINS = 64
MOST_WORKERS = 64  # of more workers, only totals of their times are kept
MOST_PENDING = 256  # gradients' times that are added together: each one's addition alone costs five times as much
LEAST_FIRST = math.log(2.0)  # nats: the loss of a model that predicts one half for every sample

Row = list[float]  # batches, then seconds of each of ACTIVITIES
GradientTimes = tuple[float, int, float, Sequence[float], str]  # arguments of ActivityTimes.add


def _add(rows: dict[int, Row], worker: int, row: Sequence[float]) -> None:
    found = rows.get(worker)
    rows[worker] = list(row) if found is None else list(map(operator.add, found, row))


def _rounded(times: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 4) for name, seconds in times.items()}


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _named(rows: dict[int, Row]) -> dict[str, dict[str, float]]:
    return {
        f"W{worker}": {"batches": int(row[0])} | _rounded(dict(zip(ACTIVITIES, row[1:], strict=True)))
        for worker, row in sorted(rows.items())
    }


@dataclass
class ActivityTimes:
    """Seconds of every worker by activity: totals, and bins of the run's time, merged in pairs if there are too many.

    A gradient's times count where it was announced. Memory is bounded for any length of the run. A coordinator's
    successor and a resumed run continue from what was saved (see state.py)."""

    since: float = 0.0  # second of the run from which on times are known
    width: float = 1.0
    began: float | None = None  # beginning of the first bin
    bins: list[dict[str, dict[int, Row]]] = field(default_factory=list)  # of each bin, the workers' rows by mode
    totals: dict[int, Row] = field(default_factory=dict)
    recent: dict[int, Row] = field(default_factory=dict)
    servers: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds between the last two heartbeats
    beats: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds at the last heartbeat
    ended: dict[str, dict[str, float]] = field(default_factory=dict)  # seconds of servers' processes that are gone
    # sums at the last call of `take_shares`
    reported: list[float] = field(default_factory=lambda: [0.0] * len(ACTIVITIES))
    _pending: list[GradientTimes] = field(default_factory=list, init=False, compare=False)

    def add(self, now: float, worker: int, compute: float, waits: Sequence[float], mode: str) -> None:
        """Add a gradient's seconds of computation and of waits (in the order of WAITS) in a mode.

        Reports with another number of waits, or values that are negative or not finite, are ignored."""
        self._pending.append((now, worker, compute, waits, mode))
        if len(self._pending) >= MOST_PENDING:
            self._add_pending()

    def _add_pending(self) -> None:
        for each in self._pending:
            self._add_gradient(*each)
        self._pending.clear()

    def _add_gradient(self, now: float, worker: int, compute: float, waits: Sequence[float], mode: str) -> None:
        row = [1.0, compute, *waits]
        if len(waits) != len(WAITS) or min(row) < 0.0 or not math.isfinite(sum(row)):
            return
        _add(self.totals, worker, row)
        _add(self.recent, worker, row)
        self.began = now if self.began is None else self.began
        while (place := int(max(0.0, now - self.began) / self.width)) >= MOST_BINS:
            self._merge()
        if len(self.totals) <= MOST_WORKERS:
            if place >= len(self.bins):
                self.bins.extend({} for _ in range(place + 1 - len(self.bins)))
            _add(self.bins[place].setdefault(mode, {}), worker, row)

    def _merge(self) -> None:
        """Merge neighbouring bins in pairs, so that bins are twice as wide."""
        self.width *= 2.0
        pairs = [self.bins[place : place + 2] for place in range(0, len(self.bins), 2)]
        self.bins = [pair[0] for pair in pairs]
        for kept, pair in zip(self.bins, pairs, strict=True):
            for mode, rows in pair[1].items() if len(pair) > 1 else ():
                for worker, row in rows.items():
                    _add(kept.setdefault(mode, {}), worker, row)

    def take_recent(self) -> dict[str, dict[str, float]]:
        """Seconds by activity: workers' since the last call (none if > MOST_WORKERS), servers' of the last beat."""
        self._add_pending()
        recent, self.recent = self.recent, {}
        return (_named(recent) if len(recent) <= MOST_WORKERS else {}) | self.servers

    def on_heartbeat(self, server: str, times: dict[str, float]) -> None:
        """Record the cumulative seconds by activity that a server's heartbeat reports."""
        before, self.beats[server] = self.beats.get(server, {}), times
        self.servers[server] = {name: max(0.0, value - before.get(name, 0.0)) for name, value in times.items()}

    def on_servers_replaced(self, servers: Iterable[str]) -> None:
        """Keep the seconds at the last heartbeat of servers whose processes are gone; their successors begin with 0."""
        for server in servers:
            self.ended[server] = _sum(self.ended.get(server, {}), self.beats.pop(server, {}))

    def shifted(self, seconds: float) -> ActivityTimes:
        """Return a copy of these times for a clock that is ahead by `seconds`."""
        self._add_pending()
        return replace(self, began=None if self.began is None else self.began + seconds)

    def take_shares(self) -> dict[str, float]:
        """Share of each activity in all workers' time since the last call; empty if no time has passed."""
        self._add_pending()
        before, self.reported = (
            self.reported,
            [sum(row[n] for row in self.totals.values()) for n in range(1, len(ACTIVITIES) + 1)],
        )
        seconds = [now - then for now, then in zip(self.reported, before, strict=True)]
        total = sum(seconds)
        return {name: spent / total for name, spent in zip(ACTIVITIES, seconds, strict=True)} if total > 0 else {}

    def summary(self, began: float, servers: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Field `time` of result.json; `began`: when the run began, on the clock of `add`.

        `servers`: seconds of each server's present process by activity."""
        self._add_pending()
        bins = self.bins if len(self.totals) <= MOST_WORKERS else []
        served = {name: _sum(self.ended.get(name, {}), servers.get(name, {})) for name in {**self.ended, **servers}}
        return {
            "processes": _named(self.totals)
            | {name: _rounded(times) for name, times in sorted(served.items()) if times},
            "since_second": self.since,
            "bin_seconds": self.width,
            "first_second": 0.0 if self.began is None else self.began - began,
            "bins_by_mode": [{mode: _named(rows) for mode, rows in each.items()} for each in bins],
        }


def quantiles(histogram: Counter[int]) -> dict[str, float]:
    """Compute mean, p50 and p99 of a histogram of integers; zeros if it is empty."""
    if not histogram:
        return {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    values = np.array(sorted(histogram))
    counts = np.array([histogram[int(v)] for v in values])
    ranks = np.cumsum(counts) / counts.sum()
    return {
        "mean": float((values * counts).sum() / counts.sum()),
        "p50": float(values[np.searchsorted(ranks, 0.5)]),
        "p99": float(values[np.searchsorted(ranks, 0.99)]),
    }


def histogram_to_json(histogram: Counter[int]) -> dict[str, int]:
    """Convert a histogram of integers to a JSON object with sorted keys."""
    return {str(value): count for value, count in sorted(histogram.items())}


@dataclass
class LossLimit:
    """Limit above which a training loss counts as divergence.

    A loss is compared with `first`, the run's first one, which is taken as at least LEAST_FIRST: a tiny first loss
    would set too low a limit."""

    first: float | None = None

    def exceeded_by(self, loss: float) -> bool:
        """Whether a gradient's loss shows that the model has diverged."""
        if not math.isfinite(loss):
            return True
        if self.first is None:
            self.first = max(loss, LEAST_FIRST)
        return loss > DIVERGED * self.first

    def sentence(self, worker: int, step: int, loss: float, rate: float) -> str:
        """Error sentence about the divergence and what to type; `rate`: the current learning rate."""
        first = "" if self.first is None else f", {DIVERGED:,.0f} times the first one is {DIVERGED * self.first:.4g}"
        return (
            f"The model diverged: the loss of W{worker} at step {step} is {loss:.4g}{first}, at a learning rate of "
            f"{rate:g}; {ADVICE}"
        )


@dataclass
class WorkerRate:
    """Throughput of one worker; `untimed`: samples whose compute time is unknown."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    untimed: int = 0

    @property
    def compute_eps(self) -> float:
        """Samples per second of compute; time spent waiting does not count."""
        return (self.samples - self.untimed) / self.seconds if self.seconds else 0.0


@dataclass
class RecentGradients:
    """Sums over the gradients since the last report of progress: a point of the run's curves.

    `speeds`: each worker's samples and seconds of computation."""

    samples: int = 0
    loss_sum: float = 0.0
    won: float = 0.0
    pairs: int = 0
    speeds: dict[int, tuple[int, float]] = field(default_factory=dict)

    def add(self, worker: int, samples: int, loss: float, seconds: float, ranked: tuple[float, int]) -> None:
        """Add a gradient of `samples` with its mean loss; `ranked`: (correctly ranked pairs, all pairs) for the AUC."""
        self.samples += samples
        self.loss_sum += loss * samples
        self.won += ranked[0]
        self.pairs += ranked[1]
        done, took = self.speeds.get(worker, (0, 0.0))
        self.speeds[worker] = done + samples, took + seconds

    def point(self) -> dict[str, Any]:
        """Training loss (nats), progressive AUC, and samples per second of the workers' own computation; None: unknown.

        Of more than MOST_SPEEDS workers, no speed is kept."""
        rates = {f"W{w}": round(samples / took, 1) for w, (samples, took) in sorted(self.speeds.items()) if took > 0}
        return {
            "loss": self.loss_sum / self.samples if self.samples else None,
            "auc": self.won / self.pairs if self.pairs else None,
            "speeds": rates if len(rates) <= MOST_SPEEDS else {},
        }


@dataclass
class SavedStatistics:
    """Part of the statistics that a checkpoint keeps. `samples_behind`: sum of the gradients' staleness in samples."""

    staleness: dict[int, int] = field(default_factory=dict)
    token_staleness: dict[int, int] = field(default_factory=dict)
    samples_behind: float = 0.0
    gradients: dict[str, int] = field(default_factory=dict)
    workers: dict[int, WorkerRate] = field(default_factory=dict)
    limit: LossLimit = field(default_factory=LossLimit)


@dataclass
class Statistics(SavedStatistics):
    """Statistics of a run: the counts that checkpoints keep, and values that only the running process needs."""

    staleness: Counter[int] = field(default_factory=Counter)
    token_staleness: Counter[int] = field(default_factory=Counter)
    gradients: Counter[str] = field(default_factory=Counter)
    samples_at: list[int] = field(default_factory=lambda: [0])
    recent: RecentGradients = field(default_factory=RecentGradients)
    times: ActivityTimes = field(default_factory=ActivityTimes)
    pulled: dict[int, int] = field(default_factory=dict)
    observed: ObservedBatches | None = None
    # called with worker, samples, seconds of every gradient
    on_gradient: Callable[[int, int, float], None] | None = None
    last_rates: tuple[dict[int, int], float] = field(default_factory=lambda: ({}, 0.0))

    @property
    def counts(self) -> SavedStatistics:
        """Copy of the counts for a checkpoint."""
        return copy.deepcopy(SavedStatistics(*(getattr(self, each.name) for each in fields(SavedStatistics))))

    def restore(self, counts: SavedStatistics, step: int, finished: int) -> None:
        """Continue from a checkpoint's counts at a global step; `finished`: samples trained, decayed or lost before."""
        vars(self).update(vars(counts))
        self.staleness, self.token_staleness = Counter(counts.staleness), Counter(counts.token_staleness)
        self.gradients = Counter(counts.gradients)
        self.samples_at = [finished] * (step + 1)

    def count_gradient(self, worker: int, batch: int, samples: int, pulled: int) -> None:
        """Count a gradient of `samples`, computed from step `pulled`; its seconds are added by `add_timing`."""
        rate = self.workers.setdefault(worker, WorkerRate())
        rate.batches += 1
        rate.samples += samples
        rate.untimed += samples
        self.pulled[batch] = pulled

    def add_timing(
        self, worker: int, samples: int, loss: float, seconds: float, slowdown: float = 1.0,
        ranked: tuple[float, int] = (0.0, 0),
    ) -> None:  # fmt: skip
        """Add an announced gradient's loss, seconds and ranked pairs (for the AUC), which no event log contains."""
        rate = self.workers[worker]
        rate.untimed -= samples
        rate.seconds += seconds
        self.recent.add(worker, samples, loss, seconds, ranked)
        if self.observed is not None:
            self.observed.add(worker, seconds, slowdown, samples)
        if self.on_gradient is not None:
            self.on_gradient(worker, samples, seconds)

    @property
    def observed_faults(self) -> list[dict[str, Any]]:
        """Faults of the plan that have slowed or disturbed workers so far, saved for a coordinator failover."""
        return [] if self.observed is None else self.observed.acted.to_list()

    def unslowed_seconds(self, worker: int, samples: int) -> float:
        """Seconds that workers without faults need for `samples`; 0 if unknown, or if no fault slows this worker."""
        return 0.0 if self.observed is None else samples * self.observed.unslowed_seconds(worker)

    def count_discarded(self, batch: int) -> None:
        """Count the discarded gradient of a batch."""
        del self.pulled[batch]
        self.gradients["dropped"] += 1

    def count_step(self, step: Step) -> None:
        """Count the gradients of an ordered step, and their staleness."""
        before = self.samples_at[step.step]
        for member in step.members:
            self._count_member(step, member, before)
        self.samples_at.append(before + step.samples)

    def _count_member(self, step: Step, member: Member, before: int) -> None:
        pulled = self.pulled.pop(member.batch)
        self.staleness[step.step - pulled] += 1
        self.samples_behind += before - self.samples_at[pulled]
        self.token_staleness[member.token_staleness] += 1
        self.gradients["applied" if member.weight > 0 else "decayed"] += 1

    def rates(self, now: float) -> dict[str, float]:
        """Compute the samples per second of each worker since the last call; `now` in seconds."""
        before, seconds = self.last_rates
        done = {worker: rate.samples for worker, rate in self.workers.items()}
        self.last_rates = (done, now)
        passed = max(1e-9, now - seconds)
        return {f"W{w}": (n - before.get(w, 0)) / passed for w, n in sorted(done.items())}

    def take_recent(self) -> RecentGradients:
        """Sums over the gradients announced since the last call."""
        recent, self.recent = self.recent, RecentGradients()
        return recent

    def summary(
        self, counters: Mapping[str, Mapping[str, int]] | None = None, resumed_at: float = 0.0
    ) -> dict[str, Any]:
        """Fields of result.json from these statistics.

        `counters`: the servers' counters; `resumed_at`: second at which the run was resumed, 0 if it was not."""
        gradients = sum(self.staleness.values())
        behind = self.samples_behind / gradients if gradients else 0.0
        return {
            "staleness": {**quantiles(self.staleness), "samples_mean": behind},
            "token_staleness": quantiles(self.token_staleness),
            "staleness_histogram": histogram_to_json(self.staleness),
            "gradients": {name: self.gradients[name] for name in ("applied", "decayed", "dropped")},
            "per_worker": {
                f"W{w}": {
                    "batches": rate.batches,
                    "samples": rate.samples,
                    "compute_eps": rate.compute_eps,
                }
                for w, rate in sorted(self.workers.items())
            },
            **({} if self.observed is None else {"faults": self.observed.summary(counters, resumed_at)}),
        }


class NormLog:
    """Writer of gradient norms per step, each combined from the shares that several nodes send."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._parts: defaultdict[int, dict[str, GradientNorms]] = defaultdict(dict)
        self._written = -1  # last step that was written

    def roll_back(self) -> None:
        """Forget the shares of steps that are not complete: these steps are trained again."""
        self._parts.clear()
        self._written = -1

    def add(self, mode: str, node: str, part: GradientNorms, nodes: int) -> None:
        """Add a node's share of a step's gradient norms; the last of `nodes` shares completes the step.

        `node` is the same for all workers: all have the same sum of dense gradients, and any one may be lost."""
        if part.step <= self._written:
            return
        self._parts[part.step][node] = part
        if len(self._parts[part.step]) < nodes:
            return
        parts, self._written = self._parts.pop(part.step).values(), part.step
        line = {
            "step": part.step, "mode": mode, "dense": math.sqrt(sum(p.square for p in parts)),
            "rows": [norm for p in parts for norm in p.rows],
        }  # fmt: skip
        with self.path.open("a") as out:
            out.write(json.dumps(line) + "\n")
