"""Write results.md: AUC with the dense part, or what travels, in two bytes against fp32, in pairs of one seed. Part of
`make precision`.

    .venv/bin/python experiments/precision/compare_precision.py

Costs a second; reads runs/studies/.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import done as of_any  # noqa: E402  (scripts beside this folder, not a package)
import study  # noqa: E402
from done import Done, seeds, size  # noqa: E402
from figures import written  # noqa: E402

from gbactl.report.stats import Difference, paired  # noqa: E402

SWEEP = HERE / "sweep.yaml"
TARGET = 0.0003  # AUC
VARIED = ("precision", "transport.wire_dtype")
HEADS = "| data | mode | what | n | AUC, fp32 | - fp32 | log loss, fp32 | - fp32 |"


def varied(cells: Sequence[Done]) -> str:
    """Which setting these cells differ in."""
    return next(name for name in VARIED if name in cells[0].options)


def difference(cells: Sequence[Done], metric: str, kind: str) -> Difference:
    """`kind` minus fp32, over the seeds of both."""
    what = varied(cells)
    fp32, other = (
        {cell.seed: cell.result[metric] for cell in cells if cell.options[what] == each} for each in ("fp32", kind)
    )
    found = paired([(fp32[seed], other[seed]) for seed in fp32])
    assert found is not None
    return found


def line(name: str, mode: str, cells: Sequence[Done], kind: str) -> str:
    """A row of the table."""
    what = varied(cells)
    plain = [cell.result for cell in cells if cell.options[what] == "fp32"]
    auc, loss = (sum(result[metric] for result in plain) / len(plain) for metric in ("auc", "logloss"))
    off = written(difference(cells, "auc", kind), 5, "+", TARGET)
    worse = written(difference(cells, "logloss", kind), 5, "+")
    return f"| {name} | {mode} | `{what}={kind}` | {len(plain)} | {auc:.5f} | {off} | {loss:.5f} | {worse} |"


def table(parts: dict[str, Sequence[Done]]) -> str:
    """A row for each data set, mode and kind."""
    rows = [HEADS, f"| --- | --- | --- |{' ---: |' * 5}"]
    for name, cells in parts.items():
        for mode in dict.fromkeys(cell.options["mode"] for cell in cells):
            of_mode = [cell for cell in cells if cell.options["mode"] == mode]
            kinds = dict.fromkeys(cell.options[varied(cells)] for cell in of_mode)
            rows += [line(name, mode, of_mode, kind) for kind in kinds if kind != "fp32"]
    return "\n".join(rows)


def main() -> None:
    """Write the file."""
    parts = [part for part in study.read_study(SWEEP, size()) if not part.missing]
    origin = [f"{p.name}: {len(p.cells)} runs, seeds {', '.join(seeds(p.cells))}." for p in parts]
    made = f"make precision{'' if size() == 'default' else f' SIZE={size()}'}"
    notes = (
        "\"- fp32\": minus fp32's, pairs of one seed; +-: half of a 95 % t interval; "
        f"bold: all of it within +-{TARGET} AUC.",
        f"code version {study.code_version()}. {' '.join(origin)}",
    )
    found = table({part.name: of_any.done(SWEEP, part.name, "precision") for part in parts})
    head = f"# Results\n\nWritten by `{made}`; the question and its answer are in README.md."
    text = "\n".join([f"{head}\n", found, "", *(f"- {note}" for note in notes)])
    (HERE / "results.md").write_text(f"{text}\n")
    print(text)


if __name__ == "__main__":
    main()
