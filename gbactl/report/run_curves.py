"""Curves, switches and incidents of a run from its result.json, and the times until runs reached an AUC. Pure.

Evaluations give points after a phase. Training gives about fifty points a phase: the loss and the AUC of each batch
before the model is trained on it, and how fast each worker computed.

A run is at an AUC from its first evaluation with at least this AUC. One that never gets there is censored: its time is
known to be longer than the run. The median counts it as such, and is a lower bound where it falls on censored runs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from gbactl.report.configuration_differences import Configuration
from gbactl.report.paired_statistics import Key
from gbactl.tracking.metrics_and_tags import own_phases, phases_since_resume


class SwitchPoint(NamedTuple):
    """Switch of a run to another mode, after `samples` samples and `seconds` seconds of training."""

    mode: str
    samples: float
    seconds: float


class TrainingPoint(NamedTuple):
    """Point of the training curves, over the batches since the point before: at `samples` and `seconds` of training.

    `speeds`: samples per second of each worker's own computation."""

    samples: float
    seconds: float
    loss: float | None
    auc: float | None
    speeds: Mapping[str, float]


class Incident(NamedTuple):
    """Failure, slow-down or other fault of a process, between two seconds of training.

    `factor`: how much slower the process was at most; None for a failure, 1 for a fault whose slow-down is not known,
    as of a CPU hog."""

    process: str
    what: str
    begin: float
    end: float
    factor: float | None = None


@dataclass(frozen=True)
class Curves:
    """Curves of one run: its evaluations, training curves, staleness, switches and incidents.

    auc[i] was measured after samples[i] samples and seconds[i] of training and draining. `alike`: configuration that
    paired runs have in common; empty where this is the seed alone."""

    seed: str
    samples: tuple[float, ...]
    seconds: tuple[float, ...]
    auc: tuple[float, ...]
    staleness: Mapping[int, int]
    switches: tuple[SwitchPoint, ...] = ()
    training: tuple[TrainingPoint, ...] = ()
    incidents: tuple[Incident, ...] = ()
    bytes_per_sample: Mapping[str, float] = field(default_factory=dict)
    time: Mapping[str, Any] = field(default_factory=dict)
    alike: Configuration = frozenset()


def curves_of(
    seed: str, result: Mapping[str, Any], alike: Configuration = frozenset(), label: str | None = None
) -> Curves:
    """Extract a run's curves from its result.json; `label`: the round whose staleness is wanted, if not the run's.

    Phases add up; one without an evaluation adds samples and time but no point. Samples are those of any fate."""
    samples = seconds = 0.0
    points: list[tuple[float, float, float]] = []
    switches: list[SwitchPoint] = []
    last: str | None = None
    for phase in result.get("phases") or []:
        mode = phase.get("mode") or last
        if last is not None and mode is not None and mode != last:
            switches.append(SwitchPoint(mode, samples, seconds))
        last = mode
        samples += sum(phase.get(outcome) or 0 for outcome in ("samples", "decayed", "lost"))
        # results of older runs have drain_seconds: since the last batch was granted
        rest = phase.get("closing_seconds", phase.get("drain_seconds"))
        seconds += (phase.get("seconds") or 0) + (rest or 0)
        if phase.get("auc") is not None:
            points.append((samples, seconds, phase["auc"]))
    curve = result.get("curve") or []
    return Curves(
        seed=seed,
        samples=tuple(point[0] for point in points),
        seconds=tuple(point[1] for point in points),
        auc=tuple(point[2] for point in points),
        staleness=_staleness(result, label),
        switches=tuple(switches),
        training=tuple(_training_point(each) for each in curve),
        incidents=tuple(_incidents(result, curve)),
        bytes_per_sample=_bytes(result),
        time=result.get("time") or {},
        alike=alike,
    )


def _staleness(result: Mapping[str, Any], label: str | None) -> Counter[int]:
    """Return the histogram of the staleness of a round's gradients, or else of those that the run itself applied.

    Where phases have no histogram, as in results of older versions, it is the one of the whole job."""
    rounds = [each for each in result.get("rounds") or [] if each.get("day") == label]
    parts = rounds or own_phases(result)
    if not parts or any("staleness_histogram" not in each for each in parts):
        parts = [{"staleness_histogram": result.get("staleness_histogram") or {}}]
    found = Counter[int]()
    for part in parts:
        found.update({int(steps): count for steps, count in part["staleness_histogram"].items()})
    return found


def _bytes(result: Mapping[str, Any]) -> dict[str, float]:
    """Compute the bytes sent per sample trained, by kind; payloads in shared memory are a kind of their own.

    Both count from where the run resumed, if it did: the bytes sent before are not known."""
    wire, trained = result.get("wire") or {}, sum(phase.get("samples") or 0 for phase in phases_since_resume(result))
    sent = {**(wire.get("bytes") or {}), "shared memory": wire.get("shared_memory") or 0}
    return {kind: value / trained for kind, value in sent.items() if value} if trained else {}


def _training_point(point: Mapping[str, Any]) -> TrainingPoint:
    at = point.get("training_seconds", point["seconds"])  # older runs have the clock with evaluations alone
    return TrainingPoint(point["samples"], at, point.get("loss"), point.get("auc"), point.get("speeds") or {})


def _incidents(result: Mapping[str, Any], curve: Sequence[Mapping[str, Any]]) -> list[Incident]:
    """List failures and slow-downs, with times of the run's clock converted to seconds of training."""
    clock = [each["seconds"] for each in curve]
    training = [each.get("training_seconds", each["seconds"]) for each in curve]
    found = [
        (each["process"], each["failure"], each["at_s"], each["at_s"] + (each["useful_s"] or 0.0), None)
        for each in result.get("recovery") or () if each.get("at_s") is not None
    ]  # fmt: skip
    faults = result.get("faults") or {}
    kinds = [plan.get("kind", "") for plan in faults.get("plans") or ()]
    found += [
        (each["process"], kinds[each["plan"]], each["from_s"], each["until_s"], each.get("factor"))
        for each in faults.get("acted") or () if each.get("from_s") is not None
    ]  # fmt: skip
    return [
        Incident(process, what, _at(begin, clock, training), _at(end, clock, training), factor)
        for process, what, begin, end, factor in found
    ]


def _at(second: float, clock: Sequence[float], training: Sequence[float]) -> float:
    """Convert a time of the run's clock to seconds of training, by interpolation between points of the curve."""
    return float(np.interp(second, [0.0, *clock], [0.0, *training])) if clock else second


def shares(runs: Sequence[Curves]) -> dict[int, float]:
    """Compute the percentage of all runs' gradients at each staleness (in steps)."""
    total = sum(sum(run.staleness.values()) for run in runs)
    steps = sorted({step for run in runs for step in run.staleness})
    return {step: 100.0 * sum(run.staleness.get(step, 0) for run in runs) / total for step in steps if total}


@dataclass(frozen=True)
class CensoredMedian:
    """Median of times, some of them lower bounds. `bound`: the median is a lower bound. `range`: least, largest."""

    value: float
    bound: bool
    range: tuple[float, float] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class TimeLine:
    """Row of the time-to-AUC table: `reached` of `n` runs reached the AUC; median seconds and samples until then.

    `auc`: the AUC, as the mean over the runs."""

    key: Key
    n: int
    reached: int
    auc: float
    seconds: CensoredMedian
    samples: CensoredMedian


def censored_median(times: Sequence[tuple[float, bool]]) -> CensoredMedian:
    """Compute the median of times (value, reached); a value that was not reached counts as longer than all others."""
    found = median(value if reached else math.inf for value, reached in times)
    values = [value for value, _ in times]
    bound = not math.isfinite(found)
    return CensoredMedian(median(values) if bound else found, bound, (min(values), max(values)))


def times_to_auc(
    against: Mapping[Key, Key | None], curves: Mapping[Key, Sequence[Curves]], auc: float | None, less: float = 0.0
) -> tuple[TimeLine, ...]:
    """Make the rows of the time-to-AUC table from each group's curves, for groups with a target AUC.

    `auc`: the same for all, or None for the last AUC, less `less`, of the paired runs in the group of the baseline,
    which `against` names for each group (None: no such group)."""
    lasts: dict[tuple[Key, str, Configuration], list[float]] = defaultdict(list)
    for key, runs in curves.items():
        for run in runs:
            lasts[key, run.seed, run.alike] += run.auc[-1:]
    made = []
    for key, reference in against.items():
        aims = list[tuple[Curves, float]]()
        for run in curves.get(key, ()):
            targets = [auc] if auc is not None else [] if reference is None else lasts[reference, run.seed, run.alike]
            if run.auc and targets:
                aims.append((run, fmean(targets) - less))
        if aims:
            made.append(_line(key, aims))
    return tuple(made)


def _line(key: Key, aims: Sequence[tuple[Curves, float]]) -> TimeLine:
    places = [next((i for i, found in enumerate(run.auc) if found >= aim), None) for run, aim in aims]
    medians = []
    for values in ([run.seconds for run, _ in aims], [run.samples for run, _ in aims]):
        times = [(each[-1 if i is None else i], i is not None) for each, i in zip(values, places, strict=True)]
        medians.append(censored_median(times))
    reached = sum(place is not None for place in places)
    return TimeLine(key, len(aims), reached, fmean(aim for _, aim in aims), *medians)
