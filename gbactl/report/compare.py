"""From runs to a comparison: which count, how they group, what differs from the baseline. Pure.

A pair is two runs of one seed whose configuration differs only in what the groups differ in.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gbactl.errors import UsageError
from gbactl.report.columns import STANDARD, Column, extra
from gbactl.report.runs import Run
from gbactl.report.stats import Difference, Stat, paired, stat

DEFAULT_BASELINE = "sync"
_IRRELEVANT = ("run_dir", "tracking.", "cluster.start_timeout", "cluster.bind", "data.cache")
Key = tuple[str, ...]


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
    """Everything a renderer needs."""

    by: Key
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    baseline: str | None
    left_out: tuple[LeftOut, ...] = ()
    notes: tuple[str, ...] = ()


def compare(
    runs: Sequence[Run],
    by: Sequence[str] = ("mode",),
    baseline: str | None = None,
    metrics: Sequence[str] = (),
) -> Report:
    """Group by parameters and compare AUC with the groups whose first key is `baseline`.

    Without `baseline`, sync is it where there is one. Raises UsageError for a key or a baseline that
    no run has.
    """
    keys = tuple(key.removeprefix("params.").strip('`"') for key in by)
    usable, left_out = _usable([_with_shares(run) for run in runs])
    _check_keys(usable, keys)
    members: dict[Key, list[Run]] = defaultdict(list)
    for run in usable:
        members[tuple(value_of(run, key) for key in keys)].append(run)
    chosen = _baseline(members, baseline)
    columns = STANDARD + tuple(extra(metric) for metric in metrics)
    groups, notes = [], []
    for key in sorted(members, key=lambda key: (chosen is None or key[0] != chosen, _natural(key))):
        reference = members.get((chosen, *key[1:]), []) if chosen is not None else []
        difference, said = None, _mixture(key, members[key], keys)
        if chosen is not None and key[0] != chosen:
            difference, unpaired = _difference(members[key], reference, keys, chosen)
            said += unpaired
        notes += [f"{', '.join(key)}: {note}" for note in said]
        groups.append(_group(key, members[key], columns, difference))
    return Report(keys, columns, tuple(groups), chosen, tuple(left_out), (*notes, *_ceiling(usable)))


def value_of(run: Run, key: str) -> str:
    """A parameter, `mode` standing for `mode.name`; `-` where a run has none."""
    return run.params.get(key, run.params.get(f"{key}.name", "-"))


def _with_shares(run: Run) -> Run:
    read, decayed = run.metrics.get("samples_read"), run.metrics.get("samples_decayed")
    if not read or decayed is None:
        return run
    return replace(run, metrics={**run.metrics, "decayed_percent": 100.0 * decayed / read})


def _configuration(run: Run, without: Iterable[str] = ()) -> frozenset[tuple[str, str]]:
    skipped = (*_IRRELEVANT, *without)
    prefixes = tuple(name for name in skipped if name.endswith("."))
    return frozenset(
        (key, value)
        for key, value in run.params.items()
        if key not in skipped and not key.startswith(prefixes)
    )


def _usable(runs: Sequence[Run]) -> tuple[list[Run], list[LeftOut]]:
    """The newest run of every configuration (seed included) that finished with an AUC."""
    left_out: list[LeftOut] = []
    newest: dict[frozenset[tuple[str, str]], Run] = {}
    for run in sorted(runs, key=lambda run: run.start_ms):
        if run.status != "FINISHED":
            left_out.append(LeftOut(run.label, run.status))
        elif not math.isfinite(run.metrics.get("auc", math.nan)):
            left_out.append(LeftOut(run.label, "no AUC"))
        else:
            older = newest.pop(_configuration(run), None)
            if older is not None:
                left_out.append(LeftOut(older.label, f"repeated by {run.label}, which is newer"))
            newest[_configuration(run)] = run
    return list(newest.values()), left_out


def _check_keys(runs: Sequence[Run], keys: Key) -> None:
    for key in keys:
        if runs and all(value_of(run, key) == "-" for run in runs):
            known = sorted({name for run in runs for name in run.params})
            raise UsageError(f"No run has the parameter {key}; type --by with some of: {', '.join(known)}")


def _baseline(members: Mapping[Key, list[Run]], wanted: str | None) -> str | None:
    firsts = sorted({key[0] for key in members})
    if wanted is not None and wanted not in firsts and members:
        raise UsageError(f"No run has --baseline {wanted}; type one of: {', '.join(firsts)}")
    return wanted if wanted is not None else (DEFAULT_BASELINE if DEFAULT_BASELINE in firsts else None)


def _families(keys: Key) -> tuple[str, ...]:
    """Parameters, and prefixes with a dot, in which groups may differ: by mode, all of mode.* may."""
    names = [key.removesuffix(".name") for key in keys]
    exact = [f"{name}." for name in names] + [*keys, *names]
    return (*exact, "collective.") if "mode" in names else tuple(exact)


def _difference(
    runs: Sequence[Run], reference: Sequence[Run], keys: Key, baseline: str
) -> tuple[Difference | None, list[str]]:
    ours, theirs = _by_pair(runs, keys), _by_pair(reference, keys)
    common = [pair for pair in ours if pair in theirs]
    missing = sum(len(ours[pair]) for pair in ours if pair not in theirs)
    difference = paired([(_auc(theirs[pair]), _auc(ours[pair])) for pair in common])
    if not missing:
        return difference, []
    why = _why_unpaired([run for pair in ours if pair not in theirs for run in ours[pair]], reference, keys)
    return difference, [f"{missing} of {len(runs)} runs have no partner in {baseline} ({why})."]


def _by_pair(runs: Sequence[Run], keys: Key) -> dict[frozenset[tuple[str, str]], list[Run]]:
    grouped: dict[frozenset[tuple[str, str]], list[Run]] = defaultdict(list)
    for run in runs:
        grouped[_configuration(run, _families(keys))].append(run)
    return grouped


def _auc(runs: Sequence[Run]) -> float:
    return sum(run.metrics["auc"] for run in runs) / len(runs)


def _why_unpaired(runs: Sequence[Run], reference: Sequence[Run], keys: Key) -> str:
    if not reference:
        return "no run of it is otherwise grouped alike"
    seeds = {run.seed for run in reference}
    alone = sorted({run.seed for run in runs if run.seed not in seeds}, key=lambda seed: _natural((seed,)))
    if alone:
        return f"seed {', '.join(alone)}"
    mine = _configuration(runs[0], _families(keys))
    twin = next(run for run in reference if run.seed == runs[0].seed)
    differing = sorted({key for key, _ in mine ^ _configuration(twin, _families(keys))})
    return f"they differ in {', '.join(differing)}"


def _mixture(key: Key, runs: Sequence[Run], keys: Key) -> list[str]:
    """A mean over different configurations is said to be one."""
    values: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for name, value in _configuration(run, ("seed",)):
            values[name].add(value)
    mixed = [name for name in sorted(values) if len(values[name]) > 1]
    if not mixed:
        return []
    shown = "; ".join(f"{name} = {', '.join(sorted(values[name]))}" for name in mixed)
    return [f"a mean over {shown}; to tell them apart: --by {','.join((*keys, *mixed))}."]


def _group(key: Key, runs: Sequence[Run], columns: Sequence[Column], difference: Difference | None) -> Group:
    names = [metric for column in columns for metric in column.metrics]
    stats = {name: stat([run.metrics[name] for run in runs if name in run.metrics]) for name in names}
    seeds = tuple(sorted({run.seed for run in runs}, key=lambda seed: _natural((seed,))))
    return Group(key, len(runs), seeds, stats, difference)


def _ceiling(runs: Sequence[Run]) -> list[str]:
    best = {round(run.metrics["best_auc"], 5) for run in runs if "best_auc" in run.metrics}
    return [f"Best possible AUC on these data: {best.pop():.5f}."] if len(best) == 1 else []


def _natural(key: Key) -> list[tuple[int, float, str]]:
    """Numbers before words, in numeric order."""
    order = []
    for part in key:
        try:
            order.append((0, float(part), part))
        except ValueError:
            order.append((1, 0.0, part))
    return order
