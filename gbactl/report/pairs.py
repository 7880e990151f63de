"""Which runs are compared with which: pairs of one seed that differ in what the groups differ in alone. Pure.

By a parameter: the groups differ in it, by `mode` in all of mode.*. By a tag, which says nothing of the configuration:
in mode.*, switch.*, collective.* and in every parameter that has one value in each group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gbactl.report.runs import Run
from gbactl.report.stats import Difference, paired
from gbactl.switching.modes import from_listed

TAGS = "tags."
_IRRELEVANT = ("run_dir", "tracking.", "cluster.start_timeout", "cluster.stop_seconds", "cluster.bind", "data.cache")
_BY_TAG = ("mode", "mode.", "switch.", "collective.")
Key = tuple[str, ...]
Configuration = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Pairing:
    """How runs are compared: on which metric, and what the two of a pair may differ in.

    `free` are parameters, and prefixes of some that end with a dot; `varied` those of them a reader has to be told.
    """

    on: str
    free: tuple[str, ...]
    varied: tuple[str, ...] = ()


def value_of(run: Run, key: str) -> str:
    """A parameter, or a tag (tags.NAME); `-` where a run has none. `mode` is what a run did: sync>gba@day2."""
    if key.startswith(TAGS):
        return run.tags.get(key.removeprefix(TAGS), "-")
    own = run.params.get(key, run.params.get(f"{key}.name", "-"))
    if key not in ("mode", "mode.name"):
        return own
    return run.tags.get("gbactl.mode") or from_listed(run.tags.get("gbactl.phases", own))


def configuration(run: Run, without: Iterable[str] = ()) -> Configuration:
    """What a run was trained with, but for parameters (or prefixes that end with a dot) in `without`."""
    skipped = (*_IRRELEVANT, *without)
    prefixes = tuple(name for name in skipped if name.endswith("."))
    return frozenset(
        (key, value) for key, value in run.params.items() if key not in skipped and not key.startswith(prefixes)
    )


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
        free += ["collective.", "switch."]
    if not any(key.startswith(TAGS) for key in keys):
        return Pairing(on, tuple(free))
    also = _one_value_each(members, (*free, *_BY_TAG, "seed"))
    told = [f"{name}*" for name in _BY_TAG if name.endswith(".")]
    return Pairing(on, (*free, *_BY_TAG, *also), (*told, *also))


def _one_value_each(members: Mapping[Key, Sequence[Run]], without: Iterable[str]) -> list[str]:
    """Parameters that have one value in every group, but not the same in all."""
    groups = [values(runs, without) for runs in members.values()]
    names = {name for group in groups for name in group}
    single = [name for name in names if all(len(group.get(name, ())) <= 1 for group in groups)]
    return sorted(name for name in single if len({frozenset(group.get(name, ())) for group in groups}) > 1)


def difference(runs: Sequence[Run], reference: Sequence[Run], rule: Pairing) -> tuple[Difference | None, str | None]:
    """Runs minus their partners in `reference`, and a sentence's end if some have none: "2 of 5 runs ... (why)"."""
    ours, theirs = _by_pair(runs, rule), _by_pair(reference, rule)
    found = paired([(_mean(theirs[pair], rule), _mean(ours[pair], rule)) for pair in ours if pair in theirs])
    alone = [run for pair in ours if pair not in theirs for run in ours[pair]]
    if not alone:
        return found, None
    return found, f"{len(alone)} of {len(runs)} runs have no partner in {{}} ({_why(alone, reference, rule)})."


def _by_pair(runs: Sequence[Run], rule: Pairing) -> dict[Configuration, list[Run]]:
    grouped: dict[Configuration, list[Run]] = defaultdict(list)
    for run in runs:
        grouped[configuration(run, rule.free)].append(run)
    return grouped


def _mean(runs: Sequence[Run], rule: Pairing) -> float:
    return sum(run.metrics[rule.on] for run in runs) / len(runs)


def _why(alone: Sequence[Run], reference: Sequence[Run], rule: Pairing) -> str:
    if not reference:
        return "no run of it is otherwise grouped alike"
    seeds = {run.seed for run in reference}
    lonely = sorted({run.seed for run in alone if run.seed not in seeds}, key=lambda seed: natural((seed,)))
    if lonely:
        return f"seed {', '.join(lonely)}"
    twin = next(run for run in reference if run.seed == alone[0].seed)
    differing = sorted({key for key, _ in configuration(alone[0], rule.free) ^ configuration(twin, rule.free)})
    return f"they differ in {', '.join(differing)}"


def natural(key: Key) -> list[tuple[int, float, str]]:
    """For sorting: numbers before words, in numeric order."""
    order = []
    for part in key:
        try:
            order.append((0, float(part), part))
        except ValueError:
            order.append((1, 0.0, part))
    return order
