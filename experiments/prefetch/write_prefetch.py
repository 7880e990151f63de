"""Write results.md: AUC difference and EPS ratio to sync, by what of the next batch a worker of gba fetches early.

    .venv/bin/python experiments/prefetch/write_prefetch.py

Reads cells.jsonl, in a few seconds. Part of `make prefetch`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study_results  # noqa: E402  (scripts of the parent folder, not a package)
from report_tables import mean_of, written  # noqa: E402
from study_results import Done  # noqa: E402

SWEEP = HERE / "sweep.yaml"
SAFE = 0.0005
Figure = Callable[[Mapping[str, Any]], float]


def auc_of(day: int) -> Figure:
    """AUC after a day of training, counted from 0."""

    def auc(result: Mapping[str, Any]) -> float:
        [found] = [phase["auc"] for phase in result["phases"] if phase["day"] == f"day {day}"]
        return float(found)

    return auc


def eps(result: Mapping[str, Any]) -> float:
    """Samples per second in the two days of the mode, with the pauses of the switches."""
    phases = [phase for phase in result["phases"] if phase["day"] in ("day 2", "day 3")]
    pauses = sum(phase["pause_ms"] or 0.0 for phase in result["phases"]) / 1000
    return float(sum(phase["samples"] for phase in phases) / (pauses + sum(phase["seconds"] for phase in phases)))


def staleness(result: Mapping[str, Any]) -> float:
    """Mean staleness, in steps, of the gradients in the two days of the mode."""
    counts: dict[str, int] = {}
    for phase in result["phases"]:
        if phase["day"] in ("day 2", "day 3"):
            for steps, count in phase["staleness_histogram"].items():
                counts[steps] = counts.get(steps, 0) + count
    return sum(int(steps) * count for steps, count in counts.items()) / sum(counts.values())


def pairs(cells: Sequence[Done], baseline: Sequence[Done], figure: Figure) -> list[tuple[float, float]]:
    """Figure of each cell and of the baseline's cell with the same seed."""
    theirs = {cell.seed: figure(cell.result) for cell in baseline}
    return [(figure(cell.result), theirs[cell.seed]) for cell in cells if cell.seed in theirs]


def take_over() -> str:
    """Table of the cells that take over from sync."""
    found = study_results.found(SWEEP, "take_over")
    lines = [
        "| faults | `mode.prefetch` | AUC - sync, after two days | after one more day of sync | EPS / sync | "
        "EPS / `rows` | staleness | samples decayed |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    calm = [cell.result for cell in found if cell.options["prefetch"] == "sync" and cell.options["faults"] == "none"]
    reached, best = mean_of([auc_of(4)(result) for result in calm]), mean_of([r["best_possible_auc"] for r in calm])
    lines.insert(0, f"`sync` reaches {reached.mean:.4f}; {best.mean:.4f} is possible.\n")
    for faults in dict.fromkeys(cell.options["faults"] for cell in found):
        here = [cell for cell in found if cell.options["faults"] == faults]
        group = {name: [cell for cell in here if cell.options["prefetch"] == name] for name in _names(here)}
        for name, cells in group.items():
            if name == "sync":
                continue
            columns = [f"`{faults}`", "`async`" if name == "async" else f"`{name}`"]
            for day in (3, 4):
                gaps = [ours - theirs for ours, theirs in pairs(cells, group["sync"], auc_of(day))]
                columns.append(written(mean_of(gaps), 4, "+", SAFE))
            for other in ("sync", "rows"):
                columns.append(written(mean_of([a / b for a, b in pairs(cells, group.get(other, []), eps)]), 3))
            columns.append(f"{mean_of([staleness(cell.result) for cell in cells]).mean:.2f}")
            columns.append(f"{mean_of([cell.result['samples']['decayed'] for cell in cells]).mean:,.0f}")
            lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def start() -> str:
    """Table of the cells that start from nothing."""
    found = study_results.found(SWEEP, "start")
    group = {name: [c for c in found if c.options["start"] == name] for name in _names(found, "start")}
    lines = ["| start | AUC after the first day - sync |", "| --- | ---: |"]
    for name, cells in group.items():
        if name != "sync":
            gaps = [ours - theirs for ours, theirs in pairs(cells, group["sync"], lambda result: float(result["auc"]))]
            told = "`gba`" if name == "gba" else f"{name.replace('-', ' ')} of `sync`, then `gba`"
            lines.append(f"| {told} | {written(mean_of(gaps), 4, '+', SAFE)} |")
    return "\n".join(lines) + "\n"


def _names(cells: Sequence[Done], tag: str = "prefetch") -> list[str]:
    return list(dict.fromkeys(cell.options[tag] for cell in cells))


def main() -> None:
    """Write results.md."""
    text = [study_results.title("prefetch"), "", "## Taking over from sync", ""]
    text += [study_results.origin(SWEEP, "take_over"), take_over(), "## From nothing\n"]
    text += [study_results.origin(SWEEP, "start"), start()]
    (study_results.place(HERE) / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
