"""Write results.md: AUC with dense computation or wire values in two bytes against fp32, in pairs of one seed.

Part of `make precision`. Costs a second.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import study
from report_tables import against, by_line, markdown, written
from study_results import Done, Results, size

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
TARGET = 0.0003  # AUC
VARIED, FP32 = ("precision", "transport.wire_dtype"), "fp32"
HEADS = ("data", "mode", "what", "n", "AUC, fp32", "- fp32", "log loss, fp32", "- fp32")
NOTE = (
    '"- fp32": the value minus that of fp32 with the same seed; +-: half of a 95 % t interval; bold: the whole '
    f"interval is within +-{TARGET} AUC."
)


def setting(cell: Done) -> str:
    """Name of a cell's setting: the one value that is not fp32, else fp32."""
    return next((f"{name}={cell.options[name]}" for name in VARIED if cell.options.get(name, FP32) != FP32), FP32)


def rows(name: str, cells: Sequence[Done]) -> list[list[str]]:
    """Rows of a part: each mode and setting minus fp32, over the seeds of both."""
    found = []
    named = [replace(cell, options={**cell.options, "setting": setting(cell)}) for cell in cells]
    for mode in dict.fromkeys(cell.options["mode"] for cell in cells):
        here = [cell for cell in named if cell.options["mode"] == mode]
        aucs = by_line(here, "setting", lambda result: float(result["auc"]))
        losses = by_line(here, "setting", lambda result: float(result["logloss"]))
        for kind in aucs:
            off, worse = (against(values, kind, FP32) for values in (aucs, losses))
            if kind != FP32 and off is not None and worse is not None:
                auc, loss = (f"{statistics.fmean(values[FP32].values()):.5f}" for values in (aucs, losses))
                differences = written(off, 5, "+", TARGET), written(worse, 5, "+")
                found.append([name, mode, f"`{kind}`", str(len(aucs[FP32])), auc, differences[0], loss, differences[1]])
    return found


def kept(text: str, name: str) -> tuple[list[list[str]], str]:
    """Read a part's rows and their origin from an existing results.md."""
    table = [each.strip("| ").split(" | ") for each in text.splitlines() if each.startswith(f"| {name} |")]
    return table, next((each[2:] for each in text.splitlines() if each.startswith(f"- {name}: ")), "")


def main() -> None:
    """Write results.md; the rows of a part that has cells without a result stay as they were."""
    path, table, origins = STUDY.place / "results.md", list[list[str]](), list[str]()
    before = path.read_text() if path.exists() else ""
    for part in study.read_study(STUDY.sweep, size()):
        try:
            found, told = rows(part.name, STUDY.done(part.name)), STUDY.origin(part.name).rstrip()
        except SystemExit as missing:
            print(missing, file=sys.stderr)
            found, told = kept(before, part.name)
        table += found
        origins += [told] * bool(told)
    STUDY.write(markdown(HEADS, table, NOTE, *origins, names=(0, 1, 2)))
