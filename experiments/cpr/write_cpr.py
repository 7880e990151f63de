"""Write results.md: the tables of this study, each with its origin. Part of `make cpr`.

    .venv/bin/python experiments/cpr/write_cpr.py

Costs 20 seconds, for study 2. Sections whose cells have not all run stay unchanged in the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import equations  # noqa: E402
import overhead_table  # noqa: E402
import priorities  # noqa: E402
import real_table  # noqa: E402
import study_results as of_any  # noqa: E402  (scripts of this folder and its parent, not a package)
from study_results import Done, section, size  # noqa: E402

SWEEP, OUT = HERE / "sweep.yaml", HERE / "results.md"
COUNTS = {"tiny": (200, 20)}  # failures in a long job, number of short jobs


def done(name: str) -> list[Done]:
    """Finished cells of a part."""
    return of_any.done(SWEEP, name, "cpr")


def beside(heading: str, name: str, none: str, of: Callable[[Sequence[Done], Sequence[Done]], str]) -> str:
    """Section with a part's table, compared with jobs without failures; unchanged where not all cells have run."""
    try:
        cells, plain = done(name), done(none)
    except SystemExit:
        before = OUT.read_text() if OUT.exists() else ""
        return section(before, heading) or f"{heading}\n\n{name}: not run.\n"
    return f"{heading}\n\n{of_any.origin(SWEEP, name)}\n{of(cells, plain)}"


def modes() -> list[str]:
    """Sections of study 1 in other modes, where there are cells."""
    found = []
    for mode in sorted({cell.options["mode"] for cell in done("modes")}):
        cells, none = ([c for c in done(name) if c.options["mode"] == mode] for name in ("modes", "modes_none"))
        found += [f"### In `{mode}`\n", of_any.origin(SWEEP, "modes"), overhead_table.table(cells, none)]
    return found


def priced() -> str:
    """Table of study 4, if it was measured."""
    if not priorities.OUT.exists():
        return "Not measured: `experiments/cpr/priorities.py` wants an otherwise idle machine.\n"
    return priorities.table(json.loads(priorities.OUT.read_text()))


def main() -> None:
    """Write results.md."""
    text = [
        f"{of_any.title('cpr')}\n",
        beside("## 1. What saving and failing cost", "abstract", "none", overhead_table.table),
        beside("### Cheaper still", "beyond", "none", overhead_table.table), *modes(),
        "## 2. The equations against emulated jobs\n",
        equations.against(*COUNTS.get(size(), (equations.FAILURES, equations.JOBS))),
        beside("## 3. Three kills in a job of real processes", "real", "real_none", real_table.table),
        beside("### In the baselines", "real_others", "real_others_none", real_table.table),
        beside("### With replicas", "real_replicas", "real_replicas_none", real_table.table),
        "## 4. What each priority costs\n", priced(),
        "## 5. Other costs, other targets\n",
        equations.sensitivity(COUNTS.get(size(), (equations.FAILURES // 5, 0))[0]),
    ]  # fmt: skip
    OUT.write_text("\n".join(text))


if __name__ == "__main__":
    main()
