"""Statistics over seeds (mean, deviation, paired t interval), and the pairing of runs that are compared. Pure.

A pair has the same seed and the same data, and differs only in the keys that make the groups (which may be keys of the
data). Grouped by a parameter, a pair may differ in that parameter; grouped by `mode`, in all of mode.*. Grouped by a
tag, which says nothing of the configuration, it may differ in mode.*, switch.*, collective.* and every parameter that
has one value in each group. Runs of one seed in several configurations depend on each other: they are averaged per seed
first.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gbactl.report.configuration_differences import (
    OF_THE_MODE,
    TAGS,
    Configuration,
    configuration,
    settings,
    values_of,
    without,
)
from gbactl.tracking.mlflow_store import Run


@dataclass(frozen=True)
class Stat:
    """Mean and sample standard deviation over n values; sd is None for n = 1."""

    mean: float
    sd: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """Mean and sample deviation of n paired differences, with half the width of the mean's 95 % interval.

    The deviation and the width are None for one pair."""

    mean: float
    half: float | None
    n: int
    sd: float | None = None


def stat(values: Sequence[float]) -> Stat | None:
    """Compute mean and sample standard deviation; None if there are no values."""
    if not values:
        return None
    return Stat(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None, len(values))


def interval_of(stat: Stat, confidence: float = 0.95) -> float | None:
    """Compute half the width of the mean's Student's t interval; None for one value."""
    if stat.sd is None:
        return None
    from scipy.stats import t  # type: ignore[import-untyped]

    return float(t.ppf(0.5 + confidence / 2, stat.n - 1)) * stat.sd / math.sqrt(stat.n)


def paired(pairs: Sequence[tuple[float, float]]) -> Difference | None:
    """Compute the mean of (second - first) over pairs, with a Student's t interval; None if there are no pairs."""
    found = stat([second - first for first, second in pairs])
    return None if found is None else Difference(found.mean, interval_of(found), found.n, found.sd)


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Difference | None:
    """Compute the mean of (second / first) over pairs, with a Student's t interval; None if there are no pairs."""
    return paired([(0.0, second / first) for first, second in pairs])


Key = tuple[str, ...]


def name_of(key: Key) -> str:
    """Return the name of a row, from its key: sync, or gba, cluster.workers=8."""
    return ", ".join(filter(None, key))


@dataclass(frozen=True)
class Pairs:
    """Pairs of runs of two groups, as (runs of the reference, compared runs), and compared runs without a partner."""

    both: list[tuple[list[Run], list[Run]]]
    alone: list[Run]

    @property
    def theirs(self) -> list[Run]:
        """Runs of the reference that have a partner."""
        return [run for theirs, _ in self.both for run in theirs]

    @property
    def ours(self) -> list[Run]:
        """Runs of the compared group that have a partner."""
        return [run for _, ours in self.both for run in ours]


def free_keys(keys: Key, members: Mapping[Key, Sequence[Run]]) -> tuple[Key, Key]:
    """Choose the keys in which the runs of a pair may differ, for runs that are grouped by `keys`.

    They are parameters, and prefixes that end with a dot. Returns also those that a reader has to be told of."""
    names = [key.removesuffix(".name") for key in keys]
    free = [*(f"{name}." for name in names), *keys, *names]
    if "mode" in names:
        free += OF_THE_MODE
    if not any(key.startswith(TAGS) for key in keys):
        return tuple(free), ()
    also = _one_value_each(members, (*free, *OF_THE_MODE, "seed"))
    of_mode = [f"{name}*" for name in OF_THE_MODE if name.endswith(".")]
    return (*free, *OF_THE_MODE, *also), (*of_mode, *also)


def _one_value_each(members: Mapping[Key, Sequence[Run]], skipped: Sequence[str]) -> list[str]:
    """List the parameters, but for the `skipped`, that are constant within every group but differ between groups."""
    groups = [values_of(without(settings(run), skipped) for run in runs) for runs in members.values()]
    names = {name for group in groups for name in group}
    single = [name for name in names if all(len(group.get(name, ())) <= 1 for group in groups)]
    return sorted(name for name in single if len({frozenset(group.get(name, ())) for group in groups}) > 1)


def pairs_of(runs: Sequence[Run], reference: Sequence[Run], free: Key) -> Pairs:
    """Pair runs with runs of `reference` that have the same seed, configuration and data, apart from the `free` keys.

    The content of the data may differ where a key of the data is free; where it is unknown, it counts as the same."""
    ours, theirs = _by_pair(runs, free), _by_pair(reference, free)
    any_data = any(key.startswith("data") for key in free)
    shared = {
        pair for pair in ours.keys() & theirs.keys()
        if any_data or len({run.data for run in (*ours[pair], *theirs[pair])} - {""}) <= 1
    }  # fmt: skip
    alone = [run for pair, runs in ours.items() if pair not in shared for run in runs]
    return Pairs([(theirs[pair], runs) for pair, runs in ours.items() if pair in shared], alone)


def by_pairs(pairs: Pairs, metric: str) -> list[tuple[float, float]]:
    """Return a metric of each pair of runs as (reference, compared), one pair a seed.

    A seed's value is the mean over its configurations."""
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for theirs, ours in pairs.both:
        means = (fmean(run.metrics[metric] for run in side) for side in (theirs, ours))
        found[ours[0].seed].append((next(means), next(means)))
    return [(fmean(each[0] for each in means), fmean(each[1] for each in means)) for means in found.values()]


def stats_of(runs: Sequence[Run], metrics: Iterable[str], free: Key) -> dict[str, Stat | None]:
    """Compute mean and deviation of each metric over seeds.

    A seed's value is the mean over its configurations."""
    alike = list(_by_pair(runs, free).values())
    return {metric: _stat(alike, metric) for metric in metrics}


def _stat(alike: Sequence[Sequence[Run]], metric: str) -> Stat | None:
    found: dict[str, list[float]] = defaultdict(list)
    for runs in alike:
        known = [run.metrics[metric] for run in runs if metric in run.metrics]
        if known:
            found[runs[0].seed].append(fmean(known))
    return stat([fmean(means) for means in found.values()])


def _by_pair(runs: Sequence[Run], free: Key) -> dict[Configuration, list[Run]]:
    grouped: dict[Configuration, list[Run]] = defaultdict(list)
    for run in runs:
        grouped[configuration(run, free)].append(run)
    return grouped


def why_alone(alone: Sequence[Run], reference: Sequence[Run], free: Key) -> list[str]:
    """Describe for each run why it has no partner in `reference`: by the seeds, parameters or data that differ.

    Runs whose seed has no run in `reference` have one description, which lists these seeds."""
    seeds = {run.seed for run in reference}
    lonely = sorted({run.seed for run in alone if run.seed not in seeds}, key=lambda seed: natural_key((seed,)))
    missing = f"seed {', '.join(lonely)}"
    return [missing if run.seed in lonely else _differences(run, reference, free) for run in alone]


def _differences(run: Run, reference: Sequence[Run], free: Key) -> str:
    """Describe how a run differs from the nearest run of `reference` with its seed."""
    own = configuration(run, free)
    others = [configuration(other, free) for other in reference if other.seed == run.seed]
    nearest = min(others, key=lambda each: len(each ^ own))
    ours, theirs = dict(own), dict(nearest)
    differing = {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]} or ours.keys() ^ theirs.keys()
    return f"they differ in {', '.join(sorted(differing)) or 'the content of their data'}"


def natural_key(key: Key) -> list[tuple[int, float, str]]:
    """Return a sort key with numbers before words, in numeric order."""
    order = []
    for part in key:
        try:
            order.append((0, float(part), part))
        except ValueError:
            order.append((1, 0.0, part))
    return order
