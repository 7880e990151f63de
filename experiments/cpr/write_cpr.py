"""Write results.md: the tables of this study, each with what made it. Part of `make cpr`.

    .venv/bin/python experiments/cpr/write_cpr.py

Costs 20 seconds, for study 2; reads runs/studies/. What has not run with this version of the code stays as it is in
the file, which says of which version it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import done as of_any  # noqa: E402  (scripts beside this one and its folder, not a package)
import equations  # noqa: E402
import overhead_table  # noqa: E402
import priorities  # noqa: E402
import real_table  # noqa: E402
import study  # noqa: E402
from done import Done, seeds, size  # noqa: E402

SWEEP, OUT = HERE / "sweep.yaml", HERE / "results.md"
COUNTS = {"tiny": (200, 20)}  # failures of the long jobs, short jobs


def done(name: str) -> list[Done]:
    """The finished cells of a part."""
    return of_any.done(SWEEP, name, "cpr")


def beside(heading: str, name: str, none: str, of: Callable[[Sequence[Done], Sequence[Done]], str]) -> str:
    """A section: a part's table beside jobs without failures, and what made it; as it was where not all has run."""
    try:
        cells, plain = done(name), done(none)
    except SystemExit:
        before = OUT.read_text() if OUT.exists() else ""
        return section(before, heading) or f"{heading}\n\n{name}: not run.\n"
    return f"{heading}\n\n{origin(name)}\n{of(cells, plain)}"


def section(text: str, heading: str) -> str:
    """A heading of a Markdown text and what stands below it, up to the next one; nothing where it is not there."""
    found = re.search(rf"^{re.escape(heading)}\n.*?(?=\n^#|\Z)", text, re.DOTALL | re.MULTILINE)
    return "" if found is None else found.group()


def origin(name: str) -> str:
    """How many runs of which seeds, from which code."""
    cells = of_any.part(SWEEP, name).cells
    return f"{name}: {len(cells)} runs, seeds {', '.join(seeds(cells))}, code version {study.code_version()}.\n"


def modes() -> list[str]:
    """Study 1 in other modes, where there are cells."""
    found = []
    for mode in sorted({cell.options["mode"] for cell in done("modes")}):
        cells, none = ([c for c in done(name) if c.options["mode"] == mode] for name in ("modes", "modes_none"))
        found += [f"### In `{mode}`\n", origin("modes"), overhead_table.table(cells, none)]
    return found


def priced() -> str:
    """Study 4, if it was measured."""
    if not priorities.OUT.exists():
        return "Not measured: `experiments/cpr/priorities.py` wants an otherwise idle machine.\n"
    return priorities.table(json.loads(priorities.OUT.read_text()))


def main() -> None:
    """Write the file."""
    made = f"make cpr{'' if size() == 'default' else f' SIZE={size()}'}"
    text = [
        f"# Results\n\nWritten by `{made}`; questions and answers are in README.md.\n",
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
