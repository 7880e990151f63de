"""Write results.md: AUC with dense computation or wire values in two bytes against fp32, in pairs of one seed.

Part of `make precision`. Costs a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import study
from report_tables import against, by_line, written
from study_results import Done, Results, size

from gbactl.report.paired_statistics import Difference

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
TARGET = 0.0003  # AUC
VARIED = ("precision", "transport.wire_dtype")
HEADS = "| data | mode | what | n | AUC, fp32 | - fp32 | log loss, fp32 | - fp32 |"


def varied(cells: Sequence[Done]) -> str:
    """Name of the setting in which these cells differ."""
    return next(name for name in VARIED if name in cells[0].options)


def difference(cells: Sequence[Done], metric: str, kind: str) -> Difference:
    """Difference `kind` minus fp32, over the seeds of both."""
    found = against(by_line(cells, varied(cells), lambda result: float(result[metric])), kind, "fp32")
    assert found is not None
    return found


def line(name: str, mode: str, cells: Sequence[Done], kind: str) -> str:
    """Row of the table."""
    what = varied(cells)
    plain = [cell.result for cell in cells if cell.options[what] == "fp32"]
    auc, loss = (sum(result[metric] for result in plain) / len(plain) for metric in ("auc", "logloss"))
    off = written(difference(cells, "auc", kind), 5, "+", TARGET)
    worse = written(difference(cells, "logloss", kind), 5, "+")
    return f"| {name} | {mode} | `{what}={kind}` | {len(plain)} | {auc:.5f} | {off} | {loss:.5f} | {worse} |"


def table(rows: Sequence[str]) -> str:
    """Table of the rows with its header."""
    return "\n".join([HEADS, f"| --- | --- | --- |{' ---: |' * 5}", *rows])


def lines(name: str, cells: Sequence[Done]) -> list[str]:
    """Rows for each mode and kind of a part."""
    found = []
    for mode in dict.fromkeys(cell.options["mode"] for cell in cells):
        of_mode = [cell for cell in cells if cell.options["mode"] == mode]
        kinds = dict.fromkeys(cell.options[varied(cells)] for cell in of_mode)
        found += [line(name, mode, of_mode, kind) for kind in kinds if kind != "fp32"]
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
