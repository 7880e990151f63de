"""Tables of process failures and of injected slow-downs in compared runs. Pure.

The injected slow-down of faulty workers and servers is shown beside the observed one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gbactl.report.columns import Column
from gbactl.report.paired_statistics import Stat, stat
from gbactl.tracking.final_metrics import FAILURE_KINDS
from gbactl.tracking.mlflow_connection import Run

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


@dataclass(frozen=True)
class FailureLine:
    """Line of the failure table: one kind of failure of one process, averaged over `n` runs of a group.

    Seconds count from the failure, or from the last sign of life where it was not injected.
    """

    key: tuple[str, ...]
    process: str
    failure: str
    n: int
    stats: Mapping[str, Stat | None]


def failures(key: tuple[str, ...], runs: Sequence[Run]) -> list[FailureLine]:
    """Make the lines of the failure table for one group; none where nothing failed."""
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
    """Line of the slow-down table: a worker or server (or several together), averaged over `n` runs of a group.

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
    """Make the lines of the slow-down table for one group; none where no run has faults."""
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
    """Make one line of the slow-down table; a run's value is the mean over the line's workers."""
    stats = []
    for kind in SLOWDOWN_KINDS:
        values = [[each[w][kind] for w in workers if kind in each.get(w, {})] for each in found]
        stats.append(stat([sum(one) / len(one) for one in values if one]))
    n = sum(any(worker in each for worker in workers) for each in found)
    return SlowdownLine(key, name, n, *stats)
