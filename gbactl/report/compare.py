"""From runs to a comparison: which count, how they group, what differs from the baseline. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gbactl.errors import UsageError
from gbactl.report.columns import AUC, CLOCKS, REPLICAS, STANDARD, Column, column_of
from gbactl.report.failures import Failure, failures
from gbactl.report.pairs import (
    TAGS,
    Configuration,
    Key,
    configuration,
    difference,
    natural,
    pairing,
    value_of,
    values,
)  # fmt: skip
from gbactl.report.runs import Run
from gbactl.report.slowdowns import Slowdown, slowdowns
from gbactl.report.stats import Difference, Stat, stat

DEFAULT_BASELINE = "sync"


@dataclass(frozen=True)
class Group:
    """One line of the table."""

    key: Key
    n: int
    seeds: tuple[str, ...]
    stats: Mapping[str, Stat | None]
    difference: Difference | None = None


@dataclass(frozen=True)
class LeftOut:
    """A run that is not in the table, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything a renderer needs. The first column is what is compared."""

    by: Key
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    baseline: str | None
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()
    slowdowns: tuple[Slowdown, ...] = ()
    on: str = "auc"
    varied: tuple[str, ...] = ()
    failures: tuple[Failure, ...] = ()


def compare(
    runs: Sequence[Run],
    by: Sequence[str] = ("mode",),
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    on: str = "auc",
) -> Report:
    """Group by parameters or tags and compare `on` with the groups whose first key is `baseline`.

    Without `baseline`, sync is it where there is one. Raises UsageError for a key, a baseline or a metric that
    no run has.
    """
    keys = tuple(key.removeprefix("params.").strip('`"') for key in by)
    usable, left_out = _usable([_with_shares(run) for run in runs], on)
    _check_keys(usable, keys)
    members: dict[Key, list[Run]] = defaultdict(list)
    for run in usable:
        members[tuple(value_of(run, key) for key in keys)].append(run)
    chosen, rule, columns = _baseline(members, baseline), pairing(on, keys, members), _columns(usable, on, metrics)
    groups, notes, slowed, failed = [], list[str](), list[Slowdown](), list[Failure]()
    for key in sorted(members, key=lambda key: (chosen is None or key[0] != chosen, natural(key))):
        found, said = None, _mixture(members[key], keys)
        if chosen is not None and key[0] != chosen:
            found, unpaired = difference(members[key], members.get((chosen, *key[1:]), []), rule)
            said += [unpaired.format(chosen)] if unpaired else []
        notes += [f"{', '.join(key)}: {note}" for note in said]
        groups.append(_group(key, members[key], columns, found))
        slowed += slowdowns(key, members[key])
        failed += failures(key, members[key])
    below = (*notes, *_evaluated(usable), *_collectives(usable), *_ceiling(usable))
    more = (tuple(slowed), on, rule.varied, tuple(failed))
    return Report(keys, columns, tuple(groups), chosen, tuple(left_out), below, *more)


def _columns(runs: Sequence[Run], on: str, metrics: Sequence[str]) -> tuple[Column, ...]:
    """What is compared first, then the standard ones, then `metrics`."""
    clocks = CLOCKS if any("virtual_seconds" in run.metrics for run in runs) else ()
    replicas = REPLICAS if any("elp" in run.metrics for run in runs) else ()
    first = AUC if on == "auc" else column_of(on)
    more = (*STANDARD, *replicas, *clocks, *map(column_of, metrics))
    return (first, *(column for column in more if column.metrics != first.metrics))


def _with_shares(run: Run) -> Run:
    read, decayed = run.metrics.get("samples_read"), run.metrics.get("samples_decayed")
    if not read or decayed is None:
        return run
    return replace(run, metrics={**run.metrics, "decayed_percent": 100.0 * decayed / read})


def _usable(runs: Sequence[Run], on: str) -> tuple[list[Run], list[LeftOut]]:
    """The newest run of every configuration (seed included) that finished with a value to compare."""
    left_out: list[LeftOut] = []
    newest: dict[Configuration, Run] = {}
    for run in sorted(runs, key=lambda run: run.start_ms):
        if run.status != "FINISHED":
            left_out.append(LeftOut(run.label, run.status))
        elif not math.isfinite(run.metrics.get(on, math.nan)):
            left_out.append(LeftOut(run.label, f"no {'AUC' if on == 'auc' else on}"))
        else:
            older = newest.pop(configuration(run), None)
            if older is not None:
                left_out.append(LeftOut(older.label, f"repeated by {run.label}, which is newer"))
            newest[configuration(run)] = run
    return list(newest.values()), left_out


def _check_keys(runs: Sequence[Run], keys: Key) -> None:
    for key in keys:
        if runs and all(value_of(run, key) == "-" for run in runs):
            tag = key.startswith(TAGS)
            known = sorted({f"{TAGS}{name}" for run in runs for name in run.tags if not name.startswith("mlflow.")})
            known = known if tag else sorted({name for run in runs for name in run.params})
            what = f"tag {key.removeprefix(TAGS)}" if tag else f"parameter {key}"
            raise UsageError(f"No run has the {what}; type --by with some of: {', '.join(known)}")


def _baseline(members: Mapping[Key, list[Run]], wanted: str | None) -> str | None:
    firsts = sorted({key[0] for key in members})
    if wanted is not None and wanted not in firsts and members:
        raise UsageError(f"No run has --baseline {wanted}; type one of: {', '.join(firsts)}")
    return wanted if wanted is not None else (DEFAULT_BASELINE if DEFAULT_BASELINE in firsts else None)


def _mixture(runs: Sequence[Run], keys: Key) -> list[str]:
    """A mean over different configurations is said to be one."""
    found = values(runs, ("seed",))
    mixed = [name for name in sorted(found) if len(found[name]) > 1]
    if not mixed:
        return []
    shown = "; ".join(f"{name} = {', '.join(sorted(found[name]))}" for name in mixed)
    return [f"a mean over {shown}; to tell them apart: --by {','.join((*keys, *mixed))}."]


def _group(key: Key, runs: Sequence[Run], columns: Sequence[Column], found: Difference | None) -> Group:
    names = [metric for column in columns for metric in column.metrics]
    stats = {name: stat([run.metrics[name] for run in runs if name in run.metrics]) for name in names}
    seeds = tuple(sorted({run.seed for run in runs}, key=lambda seed: natural((seed,))))
    return Group(key, len(runs), seeds, stats, found)


def _evaluated(runs: Sequence[Run]) -> list[str]:
    """Which of a run's dense vectors was judged where every trainer has its own."""
    modes = sorted({value_of(run, "mode") for run in runs if "elp" in run.metrics})
    groups = {
        "the centre": [mode for mode in modes if mode.endswith("_easgd")],
        "the mean of the replicas": [mode for mode in modes if mode.endswith(("_ma", "_bmuf", "local_sgd"))],
    }
    return [f"Evaluated in {', '.join(names)}: {what}." for what, names in groups.items() if names]


def _collectives(runs: Sequence[Run]) -> list[str]:
    """Which all-reduce the runs of sync had: no speed of theirs means anything without it."""
    real = [run for run in runs if value_of(run, "mode") == "sync" and value_of(run, "cluster") != "virtual"]
    names = sorted({run.params["collective.name"] for run in real if "collective.name" in run.params})
    return [f"The all-reduce of sync: {', '.join(names)}."] if names else []


def _ceiling(runs: Sequence[Run]) -> list[str]:
    best = {round(run.metrics["best_possible_auc"], 5) for run in runs if "best_possible_auc" in run.metrics}
    return [f"Best possible AUC on these data: {best.pop():.5f}."] if len(best) == 1 else []
