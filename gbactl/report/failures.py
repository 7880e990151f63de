"""What failures cost: lines of a third table, for runs in which processes died or hung. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gbactl.report.columns import Column
from gbactl.report.stats import Stat, stat
from gbactl.tracking.runs import Run
from gbactl.tracking.summary import FAILURE_KINDS

COLUMNS = (
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


@dataclass(frozen=True)
class Failure:
    """One line: what happened to which process of a group; `n` runs. Seconds since the failure, or since the
    last sign of life where it was not injected."""

    key: tuple[str, ...]
    process: str
    failure: str
    n: int
    stats: Mapping[str, Stat | None]


def failures(key: tuple[str, ...], runs: Sequence[Run]) -> list[Failure]:
    """The lines of one group; none where nothing failed."""
    values: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for name, value in run.metrics.items():
            matched = _METRIC.fullmatch(name)
            if matched is not None:
                values[matched[2], matched[3]][matched[1]].append(value)
    return [
        Failure(key, process, failure, len(found["count"]), {kind: stat(found[kind]) for kind in FAILURE_KINDS})
        for (process, failure), found in sorted(values.items(), key=lambda item: _order(item[0]))
    ]


def _order(line: tuple[str, str]) -> tuple[str, int, str]:
    process, failure = line
    return process[0], int(process[1:] or 0), failure
