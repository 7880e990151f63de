"""Comparison of runs: which runs count, how they are grouped, how groups differ from the baseline. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean

from gbactl.checked_dataclasses import did_you_mean
from gbactl.data.dataset import DAYS_BY_ROWS
from gbactl.errors import UsageError
from gbactl.policies.policy import names
from gbactl.report.columns import AUC, CLOCKS, GROUPED, REPLICAS, STANDARD, Column, column_of
from gbactl.report.configuration_differences import (
    TAGS,
    Configuration,
    configuration,
    differing,
    is_modelled,
    mixed,
    shown_value_of,
    value_of,
)
from gbactl.report.equivalence_tests import Scale, Verdict, scale_of, verdicts
from gbactl.report.failures_and_slowdowns import FailureLine, SlowdownLine, failures, slowdowns
from gbactl.report.paired_statistics import (
    Difference,
    Key,
    Pairs,
    Stat,
    by_pairs,
    free_keys,
    name_of,
    natural_key,
    paired,
    paired_ratio,
    pairs_of,
    stats_of,
    why_alone,
)  # fmt: skip
from gbactl.report.run_curves import TimeLine
from gbactl.tracking.metrics_and_tags import DAYS_TAG, OWN_SAMPLES, SLOW_WORKER, plain_name
from gbactl.tracking.mlflow_store import Run

DEFAULT_BASELINE = "sync"
DIFFERS = "what differs"
SHORT_SECONDS = 5.0  # seconds of training below which a throughput is marked
# appended to a value: throughput over little time; model no better than predicting the base rate
MARKS = {"eps": "*", "ne": "!"}


@dataclass(frozen=True)
class Group:
    """Row of the report's table, with statistics over its runs.

    `runs`: their MLflow ids. `marks`: warnings for the reader, as in MARKS. `against`: the key of the baseline's line
    with which it is compared. `rate`: throughput over the baseline's."""

    key: Key
    n: int
    seeds: tuple[str, ...]
    stats: Mapping[str, Stat | None]
    difference: Difference | None = None
    runs: tuple[str, ...] = ()
    marks: str = ""
    against: Key | None = None
    verdict: Verdict | None = None
    rate: Difference | None = None


@dataclass(frozen=True)
class Line:
    """Runs that form one row of the report's table.

    `alike`: values that a line and its baseline line must have in common. `place`: sort key.
    """

    key: Key
    alike: Key
    place: Key
    runs: list[Run]


@dataclass(frozen=True)
class ExcludedRun:
    """Run that was left out of the report, and the reason."""

    run: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Comparison of runs in the form that the renderers need; the first column is the compared metric.

    `times`: times until runs reached the AUC that `time_to` names, where this was asked for. `rounds`: of one run, the
    metrics of each day or epoch, by label. `free`: keys and prefixes in which the runs of a pair may differ. `label`:
    of the round whose metrics alone are compared, if any."""

    by: Key
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    baseline: str | None
    left_out: tuple[ExcludedRun, ...] = ()
    notes: tuple[str, ...] = ()
    slowdowns: tuple[SlowdownLine, ...] = ()
    on: str = "auc"
    varied: tuple[str, ...] = ()
    failures: tuple[FailureLine, ...] = ()
    margin: float | None = None
    time_to: str = ""
    times: tuple[TimeLine, ...] = ()
    rounds: tuple[tuple[str, Mapping[str, float]], ...] = ()
    free: Key = ()
    label: str | None = None


def compare(
    runs: Sequence[Run],
    by: Sequence[str] | None = None,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    on: str = "auc",
    margin: float | None = None,
    label: str | None = None,
) -> Report:
    """Group runs by parameters or tags, and compare the metric `on` between each group and the baseline.

    Without `by`, runs share a line if they differ in their seed alone. With `by`, a line has the mean over all other
    differences except the mode. Without `baseline`, sync is the baseline if there is one. `margin`: the largest
    difference that counts as none. `label`: compare the runs by the metrics of this round alone. Raises UsageError
    for a key, a baseline, a metric or a round that no run has.
    """
    on, named = plain_name(on), {name for run in runs for name in run.metrics}
    runs = [_completed(run) for run in (runs if label is None else _of_round(runs, label))]
    usable, left_out = _usable(runs, on, by or ())
    keys, lines = _lines(usable) if by is None else _lines_by(usable, by)
    _check_metrics(runs, [on] if on != "auc" else [], "--on")
    _check_metrics(usable, metrics, "--metric")
    chosen, columns = _baseline(lines, baseline), _columns(usable, on, metrics)
    free, varied = free_keys(("mode",) if by is None else keys, {line.key: line.runs for line in lines})
    scale = scale_of(columns[0], margin)
    groups, judged = list[Group](), list[Difference | None]()
    notes, slowed, failed = [] if by is None else _mixtures(lines, keys), list[SlowdownLine](), list[FailureLine]()
    for line in sorted(lines, key=lambda line: _order(line, chosen, by is None)):
        group, difference, said, alone = _group(line, _reference(line, lines, chosen), columns, free, scale)
        groups.append(group)
        judged.append(difference)
        left_out += alone
        notes += [f"{name_of(line.key)}: {note}" for note in said] + _slow_worker(line)
        slowed += slowdowns(line.key, line.runs)
        failed += failures(line.key, line.runs)
    of_label = [] if label is None else [_of_label(label, columns, named)]
    below = (*of_label, *notes, *_evaluated(usable), *_collectives(usable), *_ceiling(usable), *_days(usable))
    found = zip(groups, verdicts(judged, scale, chosen or ""), strict=True)
    with_verdicts = tuple(replace(group, verdict=verdict) for group, verdict in found)
    more = (tuple(slowed), on, varied, tuple(failed), scale.margin)
    rounds = _rounds(usable[0]) if len(usable) == 1 else ()
    return Report(
        keys, columns, with_verdicts, chosen, tuple(left_out), below, *more, rounds=rounds, free=free, label=label
    )


def last_round(runs: Sequence[Run]) -> str | None:
    """Return the label of the last round that all finished runs have; None if they share no round."""
    each = [{name[4:] for name in run.metrics if name[:4] == "auc/"} for run in runs if run.status == "FINISHED"]
    return max(set.intersection(*each), key=_in_order, default=None) if each else None


def _in_order(label: str) -> list[tuple[int, float, str]]:
    """Return the sort key of a round's label, by its number."""
    return natural_key(tuple(label.split()))


def _of_round(runs: Sequence[Run], label: str) -> list[Run]:
    """Replace each run's metrics by its metrics of one round (`label`: "day 2"), if rounds have them.

    Runs without this round keep no score. Raises UsageError if no run has the round."""
    ending, known = f"/{label}", {name.partition("/")[2] for run in runs for name in run.metrics if name[:4] == "auc/"}
    if runs and label not in known:
        raise UsageError(f"No run has the round {label}; type --round with one of: {', '.join(sorted(known))}")
    return [replace(run, metrics=_metrics_of_round(run.metrics, ending)) for run in runs]


def _of_label(label: str, columns: Sequence[Column], named: Set[str]) -> str:
    """Write that all columns are of one round, except columns of metrics that rounds lack; `named`: all metrics."""
    of_rounds = {"decayed_percent", *(name.partition("/")[0] for name in named if name.endswith(f"/{label}"))}
    whole = [column.title for column in columns if not of_rounds & set(column.metrics)]
    but = f"; of the whole run: {', '.join(whole)}" if whole else ""
    return f"All columns are of {label} alone{but}."


def _metrics_of_round(metrics: Mapping[str, float], ending: str) -> dict[str, float]:
    of_rounds = {OWN_SAMPLES, *(name.partition("/")[0] for name in metrics if "/" in name)}
    found = {name.removesuffix(ending): value for name, value in metrics.items() if name.endswith(ending)}
    counts = [found[name] for name in ("samples_trained", "samples_decayed", "samples_lost") if name in found]
    kept = {name: value for name, value in metrics.items() if name not in of_rounds}
    return {**kept, **found, "samples_read": sum(counts)}


def _rounds(run: Run) -> tuple[tuple[str, Mapping[str, float]], ...]:
    """Collect the metrics of each day or epoch of a run, by label."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for name, value in run.metrics.items():
        family, _, label = name.partition("/")
        if label.startswith(("day ", "epoch ")):
            found[label][family] = value
    return tuple((label, _with_decayed(found[label])) for label in sorted(found, key=_in_order))


def _lines(runs: Sequence[Run]) -> tuple[Key, list[Line]]:
    """Make a row of the table for every mode and configuration.

    If several rows have the same mode, a second key names the differences."""
    members: dict[tuple[str, Key, Key], list[tuple[Run, Key]]] = defaultdict(list)
    for run, each in zip(runs, differing(runs), strict=True):
        members[value_of(run, "mode"), each.beyond, each.own].append((run, each.labels))
    labels = {place: min((each for _, each in found), key=len) for place, found in members.items()}
    several = any(labels.values())
    lines = []
    for (mode, beyond, own), found in members.items():
        key = (mode, ", ".join(labels[mode, beyond, own])) if several else (mode,)
        lines.append(Line(key, beyond, (mode, *own), [run for run, _ in found]))
    return (("mode", DIFFERS) if several else ("mode",)), lines


def _lines_by(runs: Sequence[Run], by: Sequence[str]) -> tuple[Key, list[Line]]:
    """Make a row of the table for every combination of values of the keys `by` (and of modes) that a run has.

    The mode becomes a further key if the given ones do not separate modes."""
    keys = tuple(key.removeprefix("params.").strip('`"') for key in by)
    _check_keys(runs, keys)
    if len({_values(run, (*keys, "mode")) for run in runs}) > len({_values(run, keys) for run in runs}):
        keys = (*keys, "mode")
    members: dict[Key, list[Run]] = defaultdict(list)
    for run in runs:
        members[_values(run, keys)].append(run)
    return keys, [Line(key, key[1:], key, found) for key, found in members.items()]


def _values(run: Run, keys: Key) -> Key:
    return tuple(shown_value_of(run, key) for key in keys)


def _order(line: Line, chosen: str | None, by_likeness: bool) -> tuple[object, ...]:
    """Return a row's sort key: the baseline comes first.

    With `by_likeness` it comes first among the rows with the same `alike` values."""
    first = natural_key(line.alike) if by_likeness else []
    return first, chosen is None or line.key[0] != chosen, natural_key(line.place)


def _reference(line: Line, lines: Sequence[Line], chosen: str | None) -> Line | None:
    """Choose the baseline's row to compare `line` with; of several, the row with the most equal parameters."""
    if chosen is None or line.key[0] == chosen:
        return None
    found = [each for each in lines if each.key[0] == chosen and each.alike == line.alike]
    own = set(line.runs[0].params.items())
    return max(found, key=lambda each: len(own & set(each.runs[0].params.items())), default=None)


def _columns(runs: Sequence[Run], on: str, metrics: Sequence[str]) -> tuple[Column, ...]:
    """List the table's columns: the compared metric, the standard ones, then `metrics`."""
    clocks = CLOCKS if any("virtual_seconds" in run.metrics for run in runs) else ()
    replicas = REPLICAS if any("elp" in run.metrics for run in runs) else ()
    grouped = GROUPED if any("gauc" in run.metrics for run in runs) else ()
    first = AUC if on == "auc" else column_of(on)
    more = (*STANDARD, *grouped, *replicas, *clocks, *map(column_of, metrics))
    return (first, *(column for column in more if column.metrics != first.metrics))


def _completed(run: Run) -> Run:
    """Add the share of decayed samples to a run's metrics, and drop throughputs of 0 (no time was measured)."""
    metrics = {name: value for name, value in run.metrics.items() if value or name.partition("/")[0] != "eps"}
    return replace(run, metrics=_with_decayed(metrics))


def _with_decayed(metrics: Mapping[str, float]) -> dict[str, float]:
    counts = [metrics.get(name, 0.0) for name in ("samples_trained", "samples_decayed", "samples_lost")]
    read, decayed = metrics.get("samples_read", sum(counts)), metrics.get("samples_decayed")
    more = {"decayed_percent": 100.0 * decayed / read} if read and decayed is not None else {}
    return {**metrics, **more}


def _marks(runs: Sequence[Run]) -> str:
    """Return the warning marks that apply to any of the runs."""
    found = {"eps": any(map(_is_short, runs)), "ne": any(run.metrics.get("ne", 0.0) > 1 for run in runs)}
    return "".join(MARKS[metric] for metric, deserved in found.items() if deserved)


def _is_short(run: Run) -> bool:
    """Return whether a run trained for too few seconds for its throughput to be meaningful."""
    rate, trained = run.metrics.get("eps"), run.metrics.get(OWN_SAMPLES, run.metrics.get("samples_trained"))
    return bool(rate) and trained is not None and trained < SHORT_SECONDS * (rate or 0.0)


def _usable(runs: Sequence[Run], on: str, by: Sequence[str]) -> tuple[list[Run], list[ExcludedRun]]:
    """Split runs into usable and excluded ones.

    Usable is the newest finished run of every configuration (seed included) with a value of the metric `on`; runs with
    different values of the keys or tags `by` do not repeat each other."""
    left_out: list[ExcludedRun] = []
    newest: dict[tuple[str, Configuration, Key], Run] = {}
    for run in sorted(runs, key=lambda run: run.start_ms):
        if run.status != "FINISHED":
            left_out.append(ExcludedRun(run.label, run.status))
        elif not math.isfinite(run.metrics.get(on, math.nan)):
            left_out.append(ExcludedRun(run.label, f"no {'AUC' if on == 'auc' else on}"))
        else:
            same = value_of(run, "mode"), configuration(run, ("mode", "mode.name")), _values(run, tuple(by))
            older = newest.pop(same, None)
            if older is not None:
                left_out.append(ExcludedRun(older.label, f"repeated by {run.label}, which is newer"))
            newest[same] = run
    return list(newest.values()), left_out


def _check_keys(runs: Sequence[Run], keys: Key) -> None:
    for key in keys:
        if runs and all(value_of(run, key) == "-" for run in runs):
            tag = key.startswith(TAGS)
            known = sorted({f"{TAGS}{name}" for run in runs for name in run.tags if not name.startswith("mlflow.")})
            known = known if tag else sorted({name for run in runs for name in run.params})
            what = f"tag {key.removeprefix(TAGS)}" if tag else f"parameter {key}"
            meant = did_you_mean(key, known) or f"Type --by with some of: {', '.join(known)}"
            raise UsageError(f"No run has the {what}. {meant}")


def _check_metrics(runs: Sequence[Run], metrics: Sequence[str], option: str) -> None:
    known = {name for run in runs for name in run.metrics}
    for metric in metrics:
        if known and plain_name(metric) not in known:
            families = sorted({name.partition("/")[0] for name in known})
            meant = did_you_mean(metric, families) or f"Type {option} with some of: {', '.join(families)}"
            raise UsageError(f"No run has the metric {metric}. {meant}")


def _baseline(lines: Sequence[Line], wanted: str | None) -> str | None:
    firsts = sorted({line.key[0] for line in lines})
    if wanted is not None and wanted not in firsts and lines:
        raise UsageError(f"No run has --baseline {wanted}; type one of: {', '.join(firsts)}")
    return wanted if wanted is not None else (DEFAULT_BASELINE if DEFAULT_BASELINE in firsts else None)


def _mixtures(lines: Sequence[Line], keys: Key) -> list[str]:
    """Describe in a sentence which configuration keys differ between runs of the same row."""
    names = sorted({name for line in lines for name in mixed(line.runs)})
    if not names:
        return []
    apart = f"to tell them apart: --by {','.join((*keys, *names))}"
    return [f"Means over {', '.join(names)} where a row has several, within a seed first; {apart}."]


def _group(
    line: Line, reference: Line | None, columns: Sequence[Column], free: Key, scale: Scale
) -> tuple[Group, Difference | None, list[str], list[ExcludedRun]]:
    """Compute the statistics of a row, its difference to the baseline on the scale of the verdict, and its notes.

    Only the runs with a partner count, or all runs if none has one; the others are returned as left out."""
    pairs = pairs_of(line.runs, [] if reference is None else reference.runs, free)
    kept = pairs.ours or line.runs
    names = [metric for column in columns for metric in column.metrics]
    stats = stats_of(kept, names, free)
    seeds = tuple(sorted({run.seed for run in kept}, key=lambda seed: natural_key((seed,))))
    ids = tuple(run.run_id for run in kept)
    both = by_pairs(pairs, columns[0].metrics[0])
    against = None if reference is None else reference.key
    group = Group(line.key, len(kept), seeds, stats, paired(both), ids, _marks(kept), against, rate=_rate(pairs))
    if reference is None:
        return group, None, [], []
    without = [f"no partner in {reference.key[0]} ({why})" for why in why_alone(pairs.alone, reference.runs, free)]
    counts = {} if pairs.ours else Counter(without)
    notes = [f"{count} of {len(line.runs)} runs have {why}." for why, count in counts.items()]
    alone = [ExcludedRun(run.label, why) for run, why in zip(pairs.alone, without, strict=True)] if pairs.ours else []
    return group, paired(scale.pairs(both)), [*notes, *_compared_with(pairs, line, reference, columns[0])], alone


def _rate(pairs: Pairs) -> Difference | None:
    """Compute the ratio of the throughputs of paired runs; None if a run has no throughput."""
    if not all(run.metrics.get("eps") for run in (*pairs.ours, *pairs.theirs)):
        return None
    return paired_ratio(by_pairs(pairs, "eps"))


def _compared_with(pairs: Pairs, line: Line, reference: Line, compared: Column) -> list[str]:
    """Describe pairs that mix code versions, and which of the baseline's runs are in pairs if some are not."""
    said, name = list[str](), reference.key[0]
    versions = [{run.code for run in (*theirs, *ours)} - {""} for theirs, ours in pairs.both]
    if several := [each for each in versions if len(each) > 1]:
        codes = ", ".join(sorted(set.union(*several)))
        said.append(f"{len(several)} of {len(versions)} pairs are of runs of different code versions ({codes}).")
    own = [token for token in ", ".join(reference.key[1:]).split(", ") if token not in ", ".join(line.key[1:])]
    if pairs.ours and (own or len(pairs.theirs) < len(reference.runs)):
        mean = fmean(theirs for theirs, _ in by_pairs(pairs, compared.metrics[0]))
        partners = f"{len(pairs.theirs)} of {len(reference.runs)} runs of {', '.join((name, *own))}"
        said.append(f"compared with {partners}, whose {compared.title} is {compared.write(mean)}.")
    return said


def _slow_worker(line: Line) -> list[str]:
    """Describe the slow worker in the first run of a row that has a slow worker."""
    slow = [run for run in line.runs if SLOW_WORKER in run.tags]
    return [f"{name_of(line.key)}, seed {run.seed}: {run.tags[SLOW_WORKER]}." for run in slow[:1]]


def _evaluated(runs: Sequence[Run]) -> list[str]:
    """Describe which dense vector was evaluated (centre or mean) in modes where every trainer has a replica."""
    found = {value_of(run, "mode") for run in runs if "elp" in run.metrics}
    averaged = set(names(lambda mode: mode.home == "replicas" and mode.collective))
    centred = set(names(lambda mode: mode.home == "replicas" and not mode.collective))
    groups = {"the centre": sorted(found & centred), "the mean of the replicas": sorted(found & averaged)}
    return [f"Evaluated in {', '.join(modes)}: {what}." for what, modes in groups.items() if modes]


def _collectives(runs: Sequence[Run]) -> list[str]:
    """Name the all-reduce that each mode used, as the mode's speed depends on it."""
    found = defaultdict(set)
    for run in runs:
        if "collective.name" in run.params and not is_modelled(value_of(run, "cluster")):
            found[value_of(run, "mode")].add(run.params["collective.name"])
    summed = names(lambda mode: mode.home == "workers")
    return [f"The all-reduce of {mode}: {', '.join(sorted(found[mode]))}." for mode in summed if mode in found]


def _ceiling(runs: Sequence[Run]) -> list[str]:
    best = {round(run.metrics["best_possible_auc"], 5) for run in runs if "best_possible_auc" in run.metrics}
    return [f"Best possible AUC on these data: {best.pop():.5f}."] if len(best) == 1 else []


def _days(runs: Sequence[Run]) -> list[str]:
    return [DAYS_BY_ROWS] if any(DAYS_TAG in run.tags for run in runs) else []
