"""Choice of the runs that a report compares: by typed conditions, by their sweep, or the newest. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gbactl.errors import UsageError
from gbactl.report.configuration_differences import value_of
from gbactl.tracking.mlflow_connection import PARENT, Run

LAST = "last"
_MOST = 8
_TYPED = re.compile(r"(?!(?:metrics?|attributes?|attr|run)\.)([A-Za-z_][\w.]*)=([^\s'\"=<>][^\s'\"<>]*)")


class Condition(NamedTuple):
    """Condition on a configuration key or tag (tags.NAME): it has one of the values."""

    key: str
    values: tuple[str, ...]

    def holds(self, run: Run) -> bool:
        """Return whether a run meets the condition; numbers are compared as numbers."""
        own = value_of(run, self.key)
        return any(_same(own, value) for value in (*self.values, ",".join(self.values)))


def conditions(where: Sequence[str]) -> tuple[list[Condition], list[str]]:
    """Split typed filters into those of the form KEY=VALUE[,VALUE...], and those in MLflow's syntax."""
    found = [(_TYPED.fullmatch(text.strip()), text) for text in where]
    typed = [Condition(match[1].removeprefix("params."), tuple(match[2].split(","))) for match, _ in found if match]
    return typed, [text for match, text in found if not match]


def selected(
    runs: Sequence[Run], typed: Sequence[Condition] = (), sweep: str | None = None, last: int | None = None
) -> list[Run]:
    """Choose the runs that meet all conditions, of one sweep, and of these the `last` newest.

    `sweep`: "last", or the beginning of the MLflow id of the sweep's run. Raises UsageError if no run is left."""
    chosen = list(runs)
    for condition in typed:
        before, chosen = chosen, [run for run in chosen if condition.holds(run)]
        if not chosen:
            _none_with(condition, before)
    if sweep is not None:
        chosen = _of_sweep(chosen, sweep)
    return sorted(chosen, key=lambda run: run.start_ms)[0 if last is None else -last :]


def _of_sweep(runs: Sequence[Run], sweep: str) -> list[Run]:
    """Choose the runs of one sweep: the newest one, or the one whose id begins with `sweep`."""
    parents = {run.tags[PARENT]: run.start_ms for run in runs if PARENT in run.tags}
    found = [max(parents, key=parents.__getitem__)] if parents and sweep == LAST else []
    found = found or [parent for parent in parents if parent.startswith(sweep)]
    if len(found) != 1:
        told = f"{sweep} is the beginning of {len(found)} sweeps" if found else f"None of the runs is of sweep {sweep}"
        raise UsageError(f"{told}; type --sweep last, or more of the MLflow id of the sweep's run.")
    return [run for run in runs if run.tags.get(PARENT) == found[0]]


def _none_with(condition: Condition, runs: Sequence[Run]) -> None:
    """Raise the UsageError for a condition that none of the runs meets."""
    there = sorted({value_of(run, condition.key) for run in runs} - {"-"})
    told = f"{condition.key}={','.join(condition.values)}"
    if not there:
        raise UsageError(f"No run has the key {condition.key}; type --where KEY=VALUE with a key of the configuration.")
    more = f" and {len(there) - _MOST} more" if len(there) > _MOST else ""
    raise UsageError(f"None of the {len(runs)} runs has {told}; there are: {', '.join(there[:_MOST])}{more}.")


def _same(own: str, value: str) -> bool:
    if own == value:
        return True
    try:
        return float(own) == float(value)
    except ValueError:
        return own.lower() == value.lower() and value.lower() in ("true", "false", "none", "null")
