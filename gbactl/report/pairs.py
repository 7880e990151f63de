"""Which runs are compared with which: pairs of one seed that differ in what the groups differ in alone. Pure.

By a parameter: the groups differ in it, by `mode` in all of mode.*. By a tag, which says nothing of the configuration:
in mode.*, switch.*, collective.* and in every parameter that has one value in each group. Runs of one seed in several
configurations depend on each other: they are averaged before anything is made of seeds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from gbactl.report.configurations import OF_THE_MODE, TAGS, Configuration, configuration
from gbactl.report.stats import Stat, stat
from gbactl.tracking.runs import Run

Key = tuple[str, ...]


@dataclass(frozen=True)
class Pairing:
    """How runs are compared: on which metric, and what the two of a pair may differ in.

    `free` are parameters, and prefixes of some that end with a dot; `varied` those of them a reader has to be told.
    """

    on: str
    free: tuple[str, ...]
    varied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pairs:
    """The runs of two groups that have a partner in the other one, and those of the first that have none."""

    ours: list[Run]
    theirs: list[Run]
    alone: list[Run]


def values(runs: Iterable[Run], without: Iterable[str] = ()) -> dict[str, set[str]]:
    """Every parameter's values over some runs."""
    found: dict[str, set[str]] = defaultdict(set)
    skipped = tuple(without)
    for run in runs:
        for name, value in configuration(run, skipped):
            found[name].add(value)
    return found


def pairing(on: str, keys: Key, members: Mapping[Key, Sequence[Run]]) -> Pairing:
    """How runs grouped by `keys` are compared."""
    names = [key.removesuffix(".name") for key in keys]
    free = [*(f"{name}." for name in names), *keys, *names]
    if "mode" in names:
        free += OF_THE_MODE
    if not any(key.startswith(TAGS) for key in keys):
        return Pairing(on, tuple(free))
    also = _one_value_each(members, (*free, *OF_THE_MODE, "seed"))
    told = [f"{name}*" for name in OF_THE_MODE if name.endswith(".")]
    return Pairing(on, (*free, *OF_THE_MODE, *also), (*told, *also))


def _one_value_each(members: Mapping[Key, Sequence[Run]], without: Iterable[str]) -> list[str]:
    """Parameters that have one value in every group, but not the same in all."""
    groups = [values(runs, without) for runs in members.values()]
    names = {name for group in groups for name in group}
    single = [name for name in names if all(len(group.get(name, ())) <= 1 for group in groups)]
    return sorted(name for name in single if len({frozenset(group.get(name, ())) for group in groups}) > 1)


def pairs_of(runs: Sequence[Run], reference: Sequence[Run], rule: Pairing) -> Pairs:
    """Partners by seed and by everything that `rule` does not leave free."""
    ours, theirs = _by_pair(runs, rule), _by_pair(reference, rule)
    return Pairs(
        [run for pair in ours if pair in theirs for run in ours[pair]],
        [run for pair in theirs if pair in ours for run in theirs[pair]],
        [run for pair in ours if pair not in theirs for run in ours[pair]],
    )


def by_pairs(pairs: Pairs, rule: Pairing) -> list[tuple[float, float]]:
    """What is compared, of them and of us, a pair for each of our seeds: means over its configurations."""
    ours, theirs = _by_pair(pairs.ours, rule), _by_pair(pairs.theirs, rule)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for pair, runs in ours.items():
        both = (fmean(run.metrics[rule.on] for run in side) for side in (theirs[pair], runs))
        found[runs[0].seed].append((next(both), next(both)))
    return [(fmean(each[0] for each in means), fmean(each[1] for each in means)) for means in found.values()]


def stats_of(runs: Sequence[Run], metrics: Iterable[str], rule: Pairing) -> dict[str, Stat | None]:
    """Of each metric mean and deviation over seeds of the means over each one's configurations, which count alike."""
    alike = list(_by_pair(runs, rule).values())
    return {metric: _stat(alike, metric) for metric in metrics}


def _stat(alike: Sequence[Sequence[Run]], metric: str) -> Stat | None:
    found: dict[str, list[float]] = defaultdict(list)
    for runs in alike:
        known = [run.metrics[metric] for run in runs if metric in run.metrics]
        if known:
            found[runs[0].seed].append(fmean(known))
    return stat([fmean(means) for means in found.values()])


def _by_pair(runs: Sequence[Run], rule: Pairing) -> dict[Configuration, list[Run]]:
    grouped: dict[Configuration, list[Run]] = defaultdict(list)
    for run in runs:
        grouped[configuration(run, rule.free)].append(run)
    return grouped


def why_alone(alone: Sequence[Run], reference: Sequence[Run], rule: Pairing) -> str:
    """What runs have that those of `reference` have not."""
    seeds = {run.seed for run in reference}
    lonely = sorted({run.seed for run in alone if run.seed not in seeds}, key=lambda seed: natural((seed,)))
    if lonely:
        return f"seed {', '.join(lonely)}"
    twin = next(run for run in reference if run.seed == alone[0].seed)
    ours, theirs = (dict(configuration(run, rule.free)) for run in (alone[0], twin))
    differing = {key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]} or ours.keys() ^ theirs.keys()
    return f"they differ in {', '.join(sorted(differing))}"


def natural(key: Key) -> list[tuple[int, float, str]]:
    """For sorting: numbers before words, in numeric order."""
    order = []
    for part in key:
        try:
            order.append((0, float(part), part))
        except ValueError:
            order.append((1, 0.0, part))
    return order
