"""Tables of the study: what `gbactl advise` predicted beside what real processes did, and whether it named the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from report_tables import markdown, written  # a script of the parent folder, not a package

from gbactl.advise.advice import Advice, advice_of
from gbactl.advise.simulation_jobs import Outcome, SimulationSeconds
from gbactl.report.paired_statistics import paired, paired_ratio

NEAR = 0.95  # of the best mode's EPS, which the named mode has to have
SYNC = "sync"


def of_real(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Advice:
    """Apply the rule of `gbactl advise` to real runs: the last round's EPS, and the AUC after it."""
    outcomes = [
        Outcome(
            mode,
            int(run["seed"]),
            float(run["rounds"][-1]["eps"]),
            SimulationSeconds(0.0, 0.0, 0.0),
            run,
            (run["rounds"][-1],),
        )
        for mode, found in runs.items()
        for run in found
    ]
    return advice_of(outcomes, None)


def best(found: Advice) -> tuple[str, float]:
    """Fastest mode whose measured AUC is as good as sync's, and the ratio of its EPS to sync's."""
    top = max((each for each in found.standings if each.counts), key=lambda each: each.rate)
    return top.mode, top.rate


def judged(advice: Mapping[str, Any], found: Advice) -> tuple[str, bool]:
    """Say whether the named mode is the best in truth, or how close it is."""
    named, (top, rate) = found.for_mode(advice["mode"]), best(found)
    share = named.rate / rate
    right = named.counts and share >= NEAR
    if not named.counts:
        return f"`gbactl advise` named {named.mode}, whose measured AUC is {named.auc}; the best mode is {top}", right
    return f"`gbactl advise` named {named.mode}, with {share:.2f} of the EPS of the best mode, {top}", right


def line(
    mode: str, told: Mapping[str, Any], runs: Mapping[str, Sequence[Mapping[str, Any]]], found: Advice
) -> list[str]:
    """Line of the table: predicted and measured EPS, rates beside sync, and differences in AUC."""
    ours, theirs = runs[mode], runs[SYNC]
    eps = [run["rounds"][-1]["eps"] for run in ours]
    predicted = "-" if told["auc_difference"] is None else f"{told['auc_difference']:+.5f}"
    if told["auc_difference_half"] is not None:
        predicted += f" +-{told['auc_difference_half']:.5f}"
    rate = paired_ratio([(b["rounds"][-1]["eps"], a["rounds"][-1]["eps"]) for a, b in zip(ours, theirs, strict=True)])
    difference = paired([(b["auc"], a["auc"]) for a, b in zip(ours, theirs, strict=True)])
    assert rate is not None and difference is not None
    return [
        mode, f"{told['eps']:,.0f}", f"{fmean(eps):,.0f}", f"{told['eps_ratio']:.2f}",
        "-" if mode == SYNC else written(rate, 2), predicted, "-" if mode == SYNC else written(difference, 5, "+"),
        told["verdict"] or "-", found.for_mode(mode).auc or "-", f"{fmean(run['others'] for run in ours):.2f}",
    ]  # fmt: skip


HEAD = (
    "mode", "predicted EPS", "measured EPS", "predicted EPS / sync", "measured EPS / sync", "predicted AUC vs sync",
    "measured AUC vs sync", "predicted verdict", "measured verdict", "others' cores",
)  # fmt: skip


def section(done: Mapping[str, Any]) -> tuple[str, bool]:
    """Section of one setting, and whether the advice was right."""
    setting, advice, runs = done["setting"], done["advice"], done["runs"]
    found = of_real(runs)
    verdict, right = judged(advice, found)
    told = {each["mode"]: each for each in advice["modes"]}
    kept = [each.mode for each in found.standings if each.mode in told]
    lines = [line(mode, told[mode], runs, found) for mode in kept]
    lost = sorted({*runs} - set(kept))
    sample = advice["sample"]
    return "\n".join([
        f"## {setting.name}", "",
        f"Overrides: `{' '.join((*setting.machine, *setting.load))}`.", "",
        f"> {advice['sentence']}", "",
        markdown(HEAD, lines).rstrip(), "",
        *([f"Diverged, in the advice or in truth: {', '.join(lost)}.", ""] if lost else []),
        f"On real processes: {verdict}. The advice was {'right' if right else 'wrong'}.",
        f"The advice took {advice['seconds']:.0f} s, in which other processes used {advice['others']:.2f} cores. It "
        f"trained {len(advice['modes'][0]['seeds'])} seeds with {sample['base']:,} samples of sync and then "
        f"{sample['trained']:,} in each mode, and evaluated on {sample['judged']:,}.", "",
    ]), right  # fmt: skip


def text(done: Sequence[Mapping[str, Any]], version: str) -> str:
    """results.md."""
    sections = [section(each) for each in done]
    right = sum(found for _, found in sections)
    seeds = ", ".join(str(seed) for seed in done[0]["setting"].seeds)
    return "\n".join([
        "# Results", "", f"Written by `make advise`, code version {version}.", "",
        f"The named mode is the best one, or within {100 * (1 - NEAR):.0f} % of its EPS, in {right} of {len(done)} "
        "settings.", "",
        f"The measured figures are from real processes with seeds {seeds}, in the day after two days of sync. +- is "
        "half of a 95 % interval over pairs of the same seed. The best mode is the fastest one whose AUC counts by the "
        "rule of `gbactl advise`, applied to the measured runs. A predicted difference without +- is from one seed. "
        "Others' cores: the cores that processes outside of the run used during the run.", "",
        *(each for each, _ in sections),
    ])  # fmt: skip
