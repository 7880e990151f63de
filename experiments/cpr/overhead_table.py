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
        f"none, the job without checkpoints and failures: {hours:.1f} h, AUC {auc:.5f}, {len(plain)} seeds. The jobs "
        f"of the table have {failures:.1f} failures each. +-: half of a 95 % interval over pairs of jobs with the same "
        "seed.",
        "expected: the overhead by the equations, with the checkpoints of all rows between those of chosen rows.",
        "overhead: on the clock, against none with the same seed; the next columns are the parts of the overhead, of "
        "which `again` is training that was undone and repeated.",
        "lost updates: the share of row updates that were undone; samples again: the number of samples that were "
        "trained a second time after a full recovery.",
        f"bold: the whole interval is at most {100 * TARGET_OVERHEAD:.2f} % (overhead) or within +-{TARGET_AUC} (AUC).",
    )
    return markdown(("variant", *HEADS), ([name, *row(line, plain)] for name, line in found.items()), *notes)
