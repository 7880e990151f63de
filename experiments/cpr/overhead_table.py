"""Markdown table of study 1: overhead of checkpoints and failures, and their effect on AUC. Pure; costs a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from report_tables import by_line, markdown, mean_of, written  # a script of the parent folder, not a package
from study_results import Done

TARGET_OVERHEAD, TARGET_AUC = 0.0068, 0.0005  # from the paper's abstract
PARTS = ("saving", "loading", "rescheduling", "again")
HEADS = ("expected %", "overhead %", *(f"{part} %" for part in PARTS), "PLS expected", "PLS", "lost updates %",
         "samples again", "AUC - none", "MB saved")  # fmt: skip
Results = dict[str, dict[str, Any]]


def row(line: Results, none: Results) -> list[str]:
    """Cells of a line, compared with the jobs of the same seeds without failures."""
    told = [result["checkpoint"] for result in line.values()]
    longer = [each["virtual_seconds"] / none[seed]["virtual_seconds"] - 1 for seed, each in line.items()]
    expected = 100 * told[0][f"{told[0]['recovery']}_overhead"]
    lost = [each["lost_updates"] for each in told]
    auc = [each["auc"] - none[seed]["auc"] for seed, each in line.items()]
    return [
        f"{expected:.2f}", written([100 * x for x in longer], 2, most=100 * TARGET_OVERHEAD),
        *(written([100 * each["overhead"][part] for each in told], 3) for part in PARTS),
        f"{told[0]['expected_pls']:.4f}", written([each["pls"] for each in told], 4),
        written([100 * x for x in lost], 3),
        f"{mean_of([each['overhead']['samples_rolled_back'] for each in told]).mean:,.0f}",
        written(auc, 5, sign="+", most=TARGET_AUC), f"{mean_of([each['bytes'] / 1e6 for each in told]).mean:,.0f}",
    ]  # fmt: skip


def table(cells: Sequence[Done], none: Sequence[Done]) -> str:
    """Table with a line for each variant."""
    found: dict[str, Results] = by_line(cells, "line", dict)
    plain = {cell.seed: dict(cell.result) for cell in none if any(cell.seed in line for line in found.values())}
    hours = mean_of([each["virtual_seconds"] / 3600 for each in plain.values()]).mean
    auc = mean_of([each["auc"] for each in plain.values()]).mean
    failures = mean_of([float(len(each["recovery"])) for line in found.values() for each in line.values()]).mean
    notes = (
        f"none: {hours:.1f} h, AUC {auc:.5f}, {len(plain)} seeds; {failures:.1f} failures a job; +-: half of a 95 % "
        "interval over seeds, of differences or ratios in pairs of one seed.",
        "expected: by the equations, and the whole saves between chosen rows; overhead: by the clock, against the "
        "job of the same seed without saves and failures; its parts as they were charged, `again`: training that was "
        "undone and done once more.",
        "lost updates: row updates undone, of all; samples again: trained a second time after a full recovery.",
        f"bold: all of the interval is at or under {100 * TARGET_OVERHEAD:.2f} %, or within +-{TARGET_AUC} AUC.",
    )
    return markdown(("variant", *HEADS), ([name, *row(line, plain)] for name, line in found.items()), *notes)
