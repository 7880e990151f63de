"""Process failures and slow-downs in compared runs: their tables, and who was slow by the processes' times. Pure.

The injected slow-down of faulty workers and servers is shown beside the observed one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from time import localtime, strftime
from typing import Any

from gbactl.report.columns import Column
from gbactl.report.paired_statistics import Stat, stat
from gbactl.tracking.metrics_and_tags import FAILURE_KINDS
from gbactl.tracking.mlflow_store import Run

FAILURE_COLUMNS = (
    Column("failures", ("count",), 0),
    Column("detected s", ("detected_s",), 2),
    Column("loaded s", ("loaded_s",), 2),
    Column("useful s", ("useful_s",), 2),
    Column("samples undone", ("samples_undone",), 0, thousands=True),
    Column("PLS", ("pls",), 5),
    Column("row updates undone", ("row_updates_undone",), 0, thousands=True),
    Column("rolled back", ("samples_rolled_back",), 0, thousands=True),
)
_METRIC = re.compile(rf"recovery_({'|'.join(FAILURE_KINDS)})/([A-Z]\d*)\.(\w+)")
SLOWDOWN_KINDS = ("injected", "observed")
MOST_LINES = 8  # workers (or servers) of a group with a line each; if there are more they share one
_FACTOR = re.compile(rf"fault_({'|'.join(SLOWDOWN_KINDS)})/([WS]\d+)")
SLOW = 1.5  # times the median worker's computation of a batch
FOR_OTHERS = ("batch", "rows", "all_reduce")  # waits that another worker may cause


@dataclass(frozen=True)
class FailureLine:
    """Row of the failure table: one kind of failure of one process, averaged over `n` runs of a group.

    Seconds count from the failure, or from the last sign of life where it was not injected.
    """

    key: tuple[str, ...]
    process: str
    failure: str
    n: int
    stats: Mapping[str, Stat | None]


def failures(key: tuple[str, ...], runs: Sequence[Run]) -> list[FailureLine]:
    """Make the rows of the failure table for one group; none if nothing failed."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for name, value in run.metrics.items():
            matched = _METRIC.fullmatch(name)
            if matched is not None:
                values[matched[2], matched[3]][matched[1]].append(value)
    return [
        FailureLine(key, process, failure, len(found["count"]), {kind: stat(found[kind]) for kind in FAILURE_KINDS})
        for (process, failure), found in sorted(values.items(), key=lambda item: _order(item[0]))
    ]


def _order(line: tuple[str, str]) -> tuple[str, int, str]:
    process, failure = line
    return process[0], int(process[1:] or 0), failure


@dataclass(frozen=True)
class SlowdownLine:
    """Row of the slow-down table: a worker or server (or several together), averaged over `n` runs of a group.

    Slow-down factors, None where not known.
    """

    key: tuple[str, ...]
    workers: str
    n: int
    injected: Stat | None
    observed: Stat | None

    @property
    def stats(self) -> Mapping[str, Stat | None]:
        """Injected and observed slow-down factors by name."""
        return {"injected": self.injected, "observed": self.observed}

    @property
    def error(self) -> float | None:
        """Difference of the observed to the injected slow-down factor, in percent."""
        if self.injected is None or self.observed is None:
            return None
        return 100.0 * (self.observed.mean / self.injected.mean - 1.0)


def slowdowns(key: tuple[str, ...], runs: Sequence[Run]) -> list[SlowdownLine]:
    """Make the rows of the slow-down table for one group; none if no run has faults."""
    found = [_of(run.metrics) for run in runs]
    names = sorted({name for each in found for name in each}, key=lambda name: (name[0] != "W", int(name[1:])))
    workers, servers = ([name for name in names if name[0] == letter] for letter in "WS")
    return [*_lines(key, "workers", workers, found), *_lines(key, "servers", servers, found)]


def _lines(
    key: tuple[str, ...], what: str, names: Sequence[str], found: Sequence[Mapping[str, Mapping[str, float]]]
) -> list[SlowdownLine]:
    if len(names) > MOST_LINES:
        return [_line(key, f"{len(names)} {what}", names, found)]
    return [_line(key, name, [name], found) for name in names]


def _of(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    made: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        matched = _FACTOR.fullmatch(name)
        if matched is not None:
            made.setdefault(matched[2], {})[matched[1]] = value
    return made


def _line(
    key: tuple[str, ...], name: str, workers: Sequence[str], found: Sequence[Mapping[str, Mapping[str, float]]]
) -> SlowdownLine:
    """Make one row of the slow-down table; a run's value is the mean over the row's workers."""
    stats = []
    for kind in SLOWDOWN_KINDS:
        values = [[each[w][kind] for w in workers if kind in each.get(w, {})] for each in found]
        stats.append(stat([sum(one) / len(one) for one in values if one]))
    n = sum(any(worker in each for worker in workers) for each in found)
    return SlowdownLine(key, name, n, *stats)


def shares_of(times: Mapping[str, float]) -> dict[str, float]:
    """Compute the share of a process's time by activity, from its seconds by activity; empty if it has none."""
    seconds = {activity: value for activity, value in times.items() if activity != "batches"}
    total = sum(seconds.values())
    return {activity: value / total for activity, value in seconds.items()} if total else {}


def activity_shares(time: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Compute the share of each process's time by activity; empty for runs without times."""
    each = {name: shares_of(times) for name, times in (time.get("processes") or {}).items()}
    return {name: shares for name, shares in each.items() if shares}


def _ratios(processes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Compute each worker's computing time per batch relative to the median worker's; {} for fewer than two."""
    each = {name: times["compute"] / times["batches"] for name, times in processes.items() if times.get("batches")}
    usual = median(each.values()) if len(each) > 1 else 0.0
    return {worker: value / usual for worker, value in each.items()} if usual else {}


def _losses(worker: str, bins: Sequence[Mapping[str, Mapping[str, Mapping[str, float]]]]) -> dict[str, float]:
    """Compute by mode the share of the others' time that a slow worker costs; `bins`: times by mode of each interval.

    It is the mean share of the others' time that they wait for batches, rows and all-reduces, less its own share."""
    waits: dict[str, dict[str, tuple[float, float]]] = {}
    for mode, workers in (pair for each in bins for pair in each.items()):
        for name, times in workers.items():
            waited, total = waits.setdefault(mode, {}).get(name, (0.0, 0.0))
            more = sum(value for activity, value in times.items() if activity != "batches")
            waits[mode][name] = waited + sum(times.get(activity, 0.0) for activity in FOR_OTHERS), total + more
    found = {}
    for mode, each in waits.items():
        shares = {name: waited / total for name, (waited, total) in each.items() if total}
        own = shares.pop(worker, None)
        if own is not None and shares:
            found[mode] = max(0.0, fmean(shares.values()) - own)
    return found


def slow_sentence(time: Mapping[str, Any]) -> str:
    """Describe the slowest worker: since when it has been slow, and how much time each mode lost; "" if none is slow.

    The clock's time is local; in virtual time there is none."""
    ratios = _ratios(time.get("processes") or {})
    worker = max(ratios, key=lambda each: ratios[each], default="")
    if not worker or ratios[worker] < SLOW:
        return ""
    begin, bins = None, time.get("bins_by_mode") or []
    for place, workers in ((place, workers) for place, each in enumerate(bins) for workers in each.values()):
        if worker in (found := _ratios(workers)):
            if found[worker] < SLOW:
                begin = None
            elif begin is None:
                begin = place
    said = f"{worker}'s compute takes {ratios[worker]:.1f} times the median"
    if begin is None:
        return said
    second = time["first_second"] + begin * time["bin_seconds"]
    clock = time.get("began_at")
    at = f"second {second:.0f} of the run" if clock is None else strftime("%H:%M:%S", localtime(clock + second))
    losses = _losses(worker, bins[begin:])
    lost = [f"{mode}{' loses' if not place else ''} {share:.0%}{' to it' if not place else ''}"
            for place, (mode, share) in enumerate(losses.items())]  # fmt: skip
    return f"{said} since {at}" + (f"; {', '.join(lost)}" if lost else "")
