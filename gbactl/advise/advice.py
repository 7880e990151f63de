"""Advice from simulations: the modes as a ranked report, the mode to run in, and one sentence. Pure.

The mode to run in is the fastest of those with an acceptable AUC, if it is faster than sync by more than WORTHWHILE;
else sync. An AUC is acceptable if it is shown to be the same as sync's (TOST), or better. A better AUC does not count
where the mode takes more optimizer steps than sync: more steps help early in a training, and the simulations do not see
its end. Of modes within WORTHWHILE of the fastest, the one with the strongest evidence about its AUC is chosen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from gbactl.advise.simulation_jobs import Outcome
from gbactl.errors import DivergedError
from gbactl.report.columns import AUC, STANDARD
from gbactl.report.compare import Group, Report, compare
from gbactl.report.equivalence_tests import AUC_MARGIN, BETTER, SAME, WORSE
from gbactl.report.run_curves import Curves, times_to_auc
from gbactl.switching.auto_controller import SYNC
from gbactl.tracking.mlflow_store import Run

WORTHWHILE = 0.05  # share by which a mode has to be faster: about what a prediction may be wrong
UNSURE = 4.0  # margins; more seeds are for modes whose mean AUC loses less
COLUMNS = tuple(column for column in STANDARD if column.metrics in (("auc",), ("eps",)))
# Global batches below which the sentence says that there were few. A mode with stale gradients lags behind sync for
# some 100 global batches after a switch, and has sync's AUC behind them.
LEAST_BASE, LEAST_STEPS = 100, 100
LEAST_LONGER, MOST_LONGER = 2.0, 10.0  # times as many minutes that the sentence asks for
SLOW_DOWNS = (1.0, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 3.0, 4.0)  # of one worker


@dataclass(frozen=True)
class ModeComparison:
    """Comparison of one mode with sync: the verdict on its AUC, and the ratio of its EPS to sync's.

    `auc`: kind of the verdict on its AUC, or "" for sync. `rate`: EPS over sync's, and its range over seeds."""

    mode: str
    auc: str
    counts: bool
    rate: float
    least: float
    most: float
    group: Group


@dataclass(frozen=True)
class Advice:
    """Advice on the mode. `rates`: EPS of the mode `beside` over sync's EPS, by slow-down of one worker."""

    report: Report
    standings: tuple[ModeComparison, ...]
    mode: str
    beside: str
    rates: Mapping[float, float] = field(default_factory=dict)

    def for_mode(self, mode: str) -> ModeComparison:
        """Return the comparison of a mode with sync."""
        return next(each for each in self.standings if each.mode == mode)


def advice_of(outcomes: Sequence[Outcome], margin: float | None, notes: Sequence[str] = ()) -> Advice:
    """Compare the simulated modes, rank them and choose one. Raises DivergedError if sync diverged."""
    failed = {each.mode: each for each in outcomes if each.diverged}
    if SYNC in failed:
        raise DivergedError(f"{SYNC} itself diverges, so no mode can be compared with it: {failed[SYNC].diverged}")
    kept = [each for each in outcomes if each.mode not in failed]
    made = compare([_run(each) for each in kept], None, SYNC, (), "auc", margin)
    said = [f"{mode} diverged with seed {each.seed}, and is left out: {each.diverged}" for mode, each in failed.items()]
    # first those whose AUC is as good as sync's, the fastest first; then the others likewise
    standings = sorted(
        (_standing(group, kept) for group in made.groups), key=lambda each: (not each.counts, -each.rate)
    )
    chosen = _chosen(standings)
    made = replace(
        made, columns=COLUMNS, groups=tuple(each.group for each in standings),
        notes=(*made.notes, *notes, *_ranges(kept, standings), *said),
    )  # fmt: skip
    return Advice(_with_times(made, kept), tuple(standings), chosen.mode, _mode_at_slow_downs(standings, chosen))


def modes_needing_seeds(outcomes: Sequence[Outcome], margin: float | None) -> list[str]:
    """Return the modes that need more seeds: sync and the fastest that may prove worthwhile; [] if none may.

    A mode may that is faster than sync, whose AUC is not shown to be worse, and whose mean AUC
    loses less than UNSURE margins."""
    found = advice_of(outcomes, margin)
    limit = UNSURE * (found.report.margin or AUC_MARGIN)
    able = [
        each for each in found.standings
        if each.rate > 1 + WORTHWHILE and each.auc != WORSE and _mean(each.group) > -limit
    ]  # fmt: skip
    fastest = max((each.rate for each in able), default=0.0)
    near = [each.mode for each in able if each.rate * (1 + WORTHWHILE) >= fastest]
    return [SYNC, *near] if near else []


def _mean(group: Group) -> float:
    """Mean difference in AUC to sync; 0 for sync."""
    return 0.0 if group.difference is None else group.difference.mean


def _run(outcome: Outcome) -> Run:
    """Convert an outcome to a run for the comparison, whose configuration has only mode and seed."""
    metrics = {"auc": float(outcome.result["auc"]), "eps": outcome.eps}
    name = f"{outcome.mode}-s{outcome.seed}"
    return Run(name, name, "FINISHED", 0, {"mode": outcome.mode, "seed": str(outcome.seed)}, metrics)


def _standing(group: Group, outcomes: Sequence[Outcome]) -> ModeComparison:
    mode = group.key[0]
    paces = list(_rates(mode, outcomes).values())
    auc = "" if group.verdict is None else group.verdict.kind
    own = next(each for each in outcomes if each.mode == mode)
    fine = auc in ("", SAME) or (auc == BETTER and own.global_step)
    return ModeComparison(mode, auc, fine, fmean(paces), min(paces), max(paces), group)


def _rates(mode: str, outcomes: Sequence[Outcome]) -> dict[int, float]:
    """Compute the ratio of a mode's EPS to sync's, by seed."""
    reference = {each.seed: each.eps for each in outcomes if each.mode == SYNC}
    ours = {each.seed: each.eps for each in outcomes if each.mode == mode and each.seed in reference}
    return {seed: eps / reference[seed] for seed, eps in ours.items()}


def _chosen(standings: Sequence[ModeComparison]) -> ModeComparison:
    able = [each for each in standings if each.counts]
    fastest = max(each.rate for each in able)
    near = [each for each in able if each.rate * (1 + WORTHWHILE) >= fastest]
    sync = [each for each in near if each.mode == SYNC]
    return min(sync or near, key=_auc_sort_key)


def _auc_sort_key(found: ModeComparison) -> float:
    """Return a sort key for modes: 0 for a better AUC than sync's, else the p-value (TOST) for the same AUC."""
    verdict = found.group.verdict
    p_same = 1.0 if verdict is None or verdict.p_same is None else verdict.p_same
    return 0.0 if found.auc == BETTER else p_same


def _mode_at_slow_downs(standings: Sequence[ModeComparison], chosen: ModeComparison) -> str:
    """Choose the mode to compare with sync under slow-downs: the advised one, or the next if that is sync; "": none."""
    others = [each.mode for each in standings if each.counts and each.mode != SYNC]
    return chosen.mode if chosen.mode != SYNC else next(iter(others), "")


def _ranges(outcomes: Sequence[Outcome], standings: Sequence[ModeComparison]) -> list[str]:
    """Describe the range of the predicted EPS over the seeds, of each mode with more than one seed."""
    every = {each.mode: [o.eps for o in outcomes if o.mode == each.mode] for each in standings}
    found = {mode: eps for mode, eps in every.items() if len(eps) > 1}
    if not found:
        return []
    if all(max(eps) - min(eps) < 1e-6 * max(eps) for eps in found.values()):
        return ["EPS is the same for all seeds: in this cost model and these faults nothing is random."]
    texts = (f"{mode} {min(eps):,.0f} to {max(eps):,.0f}" for mode, eps in found.items())
    return [f"EPS over the seeds: {'; '.join(texts)}."]


def _with_times(report: Report, outcomes: Sequence[Outcome]) -> Report:
    """Add to a report each mode's time to sync's final AUC less the margin, at the predicted EPS."""
    curves = {group.key: [_curves(each) for each in outcomes if each.mode == group.key[0]] for group in report.groups}
    less = report.margin or 0.0
    times = times_to_auc({key: (SYNC,) for key in curves}, curves, None, less)
    return replace(report, times=times, time_to=f"{SYNC}'s AUC less {less:g}")


def _curves(outcome: Outcome) -> Curves:
    """Make the curve of the AUC after the switch; its seconds are samples over the predicted EPS."""
    samples = tuple(float(n) for n in itertools.accumulate(phase["samples"] for phase in outcome.parts))
    seconds, auc = tuple(n / outcome.eps for n in samples), tuple(phase["auc"] for phase in outcome.parts)
    return Curves(str(outcome.seed), samples, seconds, auc, {})


def sentence(
    advice: Advice, workers: int, minutes: float | None, base: int, steps: int, more: str, assumed: str = ""
) -> str:  # fmt: skip
    """Describe the advice in a sentence: the mode, what to expect of it, and at which slow-downs sync is as good.

    `minutes`: how long this advice took, None if its number of seeds was typed; `base`, `steps`: global batches that
    were trained before, and in each mode; `more`: what to do where these are few; `assumed`: name of a cost model that
    comes with gbactl, "" for a measured one."""
    found = advice.for_mode(advice.mode)
    with_workers = f"with {workers} workers" if workers > 1 else "with 1 worker"
    if advice.mode == SYNC:
        said = f"Stay with {SYNC} {with_workers}: {_why_sync(advice, minutes)}"
    else:
        said = f"Run {advice.mode} {with_workers}: expect {_times(found)} {SYNC}'s rate and {_quality(advice)}"
    few = [f"{base} global batches of {SYNC} and {steps} in each mode are few to go by, {more}"] * (
        base < LEAST_BASE or steps < LEAST_STEPS
    )
    costs = [f"cost={assumed} is no measurement of your cluster, gbactl calibrate makes one"] * bool(assumed)
    return "; ".join([said, *_slow_downs(advice), *few, *costs]) + "."


def _times(found: ModeComparison) -> str:
    mean, least, most = (f"{value:.1f}" for value in (found.rate, found.least, found.most))
    mean = mean if abs(found.rate - 1) >= 0.05 else f"{found.rate:.2f}"
    return f"{mean} times" if least == most else f"{mean} ({least} to {most}) times"


def _difference(found: ModeComparison) -> str:
    difference = found.group.difference
    assert difference is not None
    half = "" if difference.half is None else f" ±{AUC.write(difference.half)}"
    return f"{AUC.write(difference.mean)}{half}"


def _quality(advice: Advice) -> str:
    """Describe the AUC to expect in the advised mode, compared with sync's."""
    found = advice.for_mode(advice.mode)
    if found.auc == SAME:
        return f"the same AUC (margin {advice.report.margin or AUC_MARGIN:g})"
    return f"a better AUC ({_difference(found)})"


def _more(found: ModeComparison, minutes: float | None) -> str:
    """Describe how many seeds a verdict needs, and what to type for them; "" if that is unknown."""
    needed = None if found.group.verdict is None else found.group.verdict.seeds
    if needed is None:
        return ""
    if minutes is None:
        return f", about {needed} seeds needed: --seeds {needed} may tell"
    longer = math.ceil(minutes * min(max(needed / found.group.n, LEAST_LONGER), MOST_LONGER))
    return f", about {needed} seeds needed: --minutes {longer} may tell"


def _why_sync(advice: Advice, minutes: float | None) -> str:
    if len(advice.standings) == 1:
        return "all other modes diverge"
    able = [each for each in advice.standings if each.counts and each.mode != SYNC]
    barred = [each for each in advice.standings if not each.counts and each.rate > 1 + WORTHWHILE]
    if not barred:
        return f"no other mode is faster by more than {100 * WORTHWHILE:g} %"
    fastest = max(barred, key=lambda each: each.rate)
    what = f"is worse ({_difference(fastest)})"
    if fastest.auc == BETTER:
        what = f"is better only in a short training ({_difference(fastest)}), for it takes more steps"
    elif fastest.auc != WORSE:
        what = f"may be worse ({_difference(fastest)}{_more(fastest, minutes)})"
    also = f"; of the modes with {SYNC}'s AUC none is faster by more than {100 * WORTHWHILE:g} %" if able else ""
    return f"{fastest.mode} has {_times(fastest)} its rate, but its AUC {what}{also}"


def _slow_downs(advice: Advice) -> list[str]:
    """Say at which slow-down of one worker the answer changes."""
    if not advice.rates:
        return []
    gains = {factor: rate > 1 + WORTHWHILE for factor, rate in advice.rates.items()}
    last = max((factor for factor, gain in gains.items() if not gain), default=None)
    first = min((factor for factor, gain in gains.items() if gain and factor > (last or 0)), default=None)
    if advice.mode != SYNC:
        if last is None:
            return [f"even without a slow worker it has {advice.rates[min(gains)]:.1f} times {SYNC}'s rate"]
        where = "without a slow worker" if last == 1 else f"up to a {last:g}x slow-down of one worker"
        return [f"{where} stay with {SYNC}"]
    if first is None:
        return [f"nor does {advice.beside} gain with one worker {max(gains):g}x slower"]
    return [
        f"from one worker {first:g}x slower on, {advice.beside} would have {advice.rates[first]:.1f} times its rate"
    ]


def plain(advice: Advice) -> dict[str, Any]:
    """Return the advice as plain containers, for JSON."""
    times = {each.key[0]: each for each in advice.report.times}
    return {
        "mode": advice.mode,
        "margin": advice.report.margin,
        "modes": [_plain(rank, each, times) for rank, each in enumerate(advice.standings, 1)],
        "one_worker_slower": [
            {"factor": factor, "mode": advice.beside, "eps_ratio": rate} for factor, rate in advice.rates.items()
        ],
        "notes": list(advice.report.notes),
    }


def _plain(rank: int, found: ModeComparison, times: Mapping[str, Any]) -> dict[str, Any]:
    group, time = found.group, times.get(found.mode)
    stats, difference, verdict = group.stats, group.difference, group.verdict
    auc, eps = stats["auc"], stats["eps"]
    return {
        "rank": rank, "mode": found.mode, "seeds": [int(seed) for seed in group.seeds],
        "may_count_on_auc": found.counts, "verdict": found.auc, "words": None if verdict is None else verdict.words,
        "eps": None if eps is None else eps.mean,
        "eps_ratio": found.rate, "eps_ratio_least": found.least, "eps_ratio_most": found.most,
        "auc": None if auc is None else auc.mean,
        "auc_difference": None if difference is None else difference.mean,
        "auc_difference_half": None if difference is None else difference.half,
        "seconds_to_auc": None if time is None else time.seconds.value,
        "seconds_to_auc_is_bound": None if time is None else time.seconds.bound,
        "reached": None if time is None else time.reached,
    }  # fmt: skip
