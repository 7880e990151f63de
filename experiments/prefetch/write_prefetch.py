"""Write results.md: AUC difference and EPS ratio to sync by what a worker of gba fetches early, EPS of real processes.

Reads cells.jsonl, in a few seconds. Part of `make prefetch`.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from report_tables import Value, against, by_line, markdown, mean_of, written
from study_results import Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
SAFE = 0.0005
DAYS_WITH_DATA = (2, 4, 6, 8)  # of `local`; on the others a worker fetches rows


def auc_of(day: int) -> Value[float]:
    """AUC after a day of training, counted from 0; the day's last phase has it."""

    def auc(result: Mapping[str, Any]) -> float:
        [found] = [phase["auc"] for phase in result["phases"] if phase["day"] == f"day {day}" and "auc" in phase]
        return float(found)

    return auc


def eps(result: Mapping[str, Any]) -> float:
    """Samples per second in the two days of the mode, with the pauses of the switches."""
    phases = [phase for phase in result["phases"] if phase["day"] in ("day 2", "day 3")]
    pauses = sum(phase["pause_ms"] or 0.0 for phase in result["phases"]) / 1000
    return float(sum(phase["samples"] for phase in phases) / (pauses + sum(phase["seconds"] for phase in phases)))


def staleness(result: Mapping[str, Any]) -> float:
    """Mean staleness, in steps, of the gradients in the two days of the mode."""
    return statistics.fmean(p["staleness_mean"] for p in result["phases"] if p["day"] in ("day 2", "day 3"))


def take_over() -> str:
    """Table of the cells that take over from sync."""
    found = STUDY.found("take_over")
    heads = ("faults", "`mode.prefetch`", "AUC - sync, after two days", "after one more day of sync", "EPS / sync",
             "EPS / `rows`", "staleness", "samples decayed")  # fmt: skip
    rows = []
    calm = [cell.result for cell in found if cell.options["prefetch"] == "sync" and cell.options["faults"] == "none"]
    reached, best = mean_of([auc_of(4)(result) for result in calm]), mean_of([r["best_possible_auc"] for r in calm])
    for faults in dict.fromkeys(cell.options["faults"] for cell in found):
        here = [cell for cell in found if cell.options["faults"] == faults]
        aucs = [by_line(here, "prefetch", auc_of(day)) for day in (3, 4)]
        speeds, stale = by_line(here, "prefetch", eps), by_line(here, "prefetch", staleness)
        decayed = by_line(here, "prefetch", lambda result: float(result["samples"]["decayed"]))
        for name in stale:
            if name == "sync":
                continue
            gaps = [against(values, name, "sync") for values in aucs]
            told = ("-" if gap is None else written(gap, 4, "+", SAFE) for gap in gaps)
            columns = [f"`{faults}`", f"`{name}`", *told]
            for other in ("sync", "rows"):
                ratios = [speeds[name][seed] / speeds[other][seed] for seed in speeds[name] if seed in speeds[other]]
                columns.append(written(ratios, 3))
            columns.append(f"{mean_of([*stale[name].values()]).mean:.2f}")
            columns.append(f"{mean_of([*decayed[name].values()]).mean:,.0f}")
            rows.append(columns)
    table = markdown(heads, rows, names=(0, 1)).removesuffix("\n")
    return f"The AUC of `sync` is {reached.mean:.4f}; the best possible AUC is {best.mean:.4f}.\n\n{table}"


def start() -> str:
    """Table of the cells that start from nothing."""
    found = STUDY.found("start")
    aucs = [by_line(found, "start", auc_of(day)) for day in (0, 4)]
    rows = []
    for name in aucs[0]:
        if name != "sync":
            told = "`gba`" if name == "gba" else f"{name.replace('-', ' ')} of `sync`, then `gba`"
            gaps = [against(values, name, "sync") for values in aucs]
            rows.append((told, *("-" if gap is None else written(gap, 4, "+", SAFE) for gap in gaps)))
    return markdown(("start", "AUC after the first day - sync", "after five days"), rows)


def ratio_of_days(result: Mapping[str, Any]) -> float:
    """Mean over days 2, 4, 6 and 8, with `data`, of their EPS over the mean EPS of the days before and after."""
    rates = [float(phase["eps"]) for phase in result["phases"]]
    return statistics.fmean(2 * rates[day] / (rates[day - 1] + rates[day + 1]) for day in DAYS_WITH_DATA)


def local() -> str:
    """Table of the cells on real processes."""
    rows = []
    for faults, ratios in by_line(STUDY.found("local"), "faults", ratio_of_days).items():
        rows.append((f"`{faults}`", written([*ratios.values()], 3)))
    return markdown(("faults", "EPS with `data` / EPS with `rows`"), rows)


def main() -> None:
    """Write results.md."""
    STUDY.write(
        "## Taking over from sync\n", STUDY.origin("take_over"), take_over(),
        "## From nothing\n", STUDY.origin("start"), start(),
        "## On real processes\n", STUDY.origin("local"), local(),
    )  # fmt: skip
