"""Write results.md: AUC with dense computation or wire values in two bytes against fp32, in pairs of one seed.

Part of `make precision`. Costs a second.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import study
from report_tables import against, written
from study_results import Done, Results, size

from gbactl.report.paired_statistics import Difference

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
TARGET = 0.0003  # AUC
VARIED, FP32 = ("precision", "transport.wire_dtype"), "fp32"
HEADS = "| data | mode | what | n | AUC, fp32 | - fp32 | log loss, fp32 | - fp32 |"


def setting(cell: Done) -> str:
    """Name of a cell's setting: the one value that is not fp32, else fp32."""
    return next((f"{name}={cell.options[name]}" for name in VARIED if cell.options.get(name, FP32) != FP32), FP32)


def line(name: str, mode: str, cells: Mapping[str, Sequence[Done]], kind: str) -> str:
    """Row of the table: the setting `kind` minus fp32, over the seeds of both."""

    def difference(metric: str) -> Difference:
        values = {each: {c.seed: float(c.result[metric]) for c in of} for each, of in cells.items()}
        found = against(values, kind, FP32)
        assert found is not None
        return found

    plain = [cell.result for cell in cells[FP32]]
    auc, loss = (sum(result[metric] for result in plain) / len(plain) for metric in ("auc", "logloss"))
    off, worse = written(difference("auc"), 5, "+", TARGET), written(difference("logloss"), 5, "+")
    return f"| {name} | {mode} | `{kind}` | {len(plain)} | {auc:.5f} | {off} | {loss:.5f} | {worse} |"


def table(rows: Sequence[str]) -> str:
    """Table of the rows with its header."""
    return "\n".join([HEADS, f"| --- | --- | --- |{' ---: |' * 5}", *rows])


def lines(name: str, cells: Sequence[Done]) -> list[str]:
    """Rows for each mode and setting of a part."""
    found = []
    for mode in dict.fromkeys(cell.options["mode"] for cell in cells):
        by_setting: dict[str, list[Done]] = {}
        for cell in cells:
            if cell.options["mode"] == mode:
                by_setting.setdefault(setting(cell), []).append(cell)
        found += [line(name, mode, by_setting, kind) for kind in by_setting if kind != FP32]
    return found


def kept(text: str, name: str) -> tuple[list[str], str]:
    """Read a part's rows and their origin from an existing results.md."""
    rows = [each for each in text.splitlines() if each.startswith(f"| {name} |")]
    return rows, next((each for each in text.splitlines() if each.startswith(f"- {name}: ")), "")


def main() -> None:
    """Write results.md; the rows of a part that has cells without a result stay as they were."""
    path, rows, origins = STUDY.place / "results.md", list[str](), list[str]()
    before = path.read_text() if path.exists() else ""
    for part in study.read_study(STUDY.sweep, size()):
        try:
            found = lines(part.name, STUDY.done(part.name))
            told = f"- {STUDY.origin(part.name).rstrip()}"
        except SystemExit as missing:
            print(missing, file=sys.stderr)
            found, told = kept(before, part.name)
        rows += found
        origins += [told] * bool(told)
    note = (
        '- "- fp32": minus fp32\'s, pairs of one seed; +-: half of a 95 % t interval; '
        f"bold: all of it within +-{TARGET} AUC."
    )
    STUDY.write(table(rows), "", note, *origins, "")
