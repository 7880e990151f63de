"""Write results.md: the tables of this study, each with its origin. Part of `make cpr`.

Costs 20 seconds, for study 2. Sections whose cells have not all run stay unchanged in the file.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import equations
import overhead_table
import priorities
import real_table
from study_results import Done, Results, options, size

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
COUNTS = {"tiny": (200, 20)}  # failures in a long job, number of short jobs


def beside(name: str, none: str, table: Callable[[Sequence[Done], Sequence[Done]], str]) -> Callable[[], str]:
    """Section with a part's table, compared with jobs without failures."""
    return lambda: f"{STUDY.origin(name)}\n{table(STUDY.done(name), STUDY.done(none))}"


def of_mode(mode: str) -> str:
    """Section on the overhead of checkpoints and failures (study 1) in another mode."""
    cells, none = ([c for c in STUDY.done(name) if c.options["mode"] == mode] for name in ("modes", "modes_none"))
    return f"{STUDY.origin('modes')}\n{overhead_table.table(cells, none)}"


def priced() -> str:
    """Table of study 4. Raises SystemExit where it was not measured."""
    if not priorities.OUT.exists():
        raise SystemExit("Priorities: not measured; `experiments/cpr/priorities.py` wants an otherwise idle machine")
    return priorities.table(json.loads(priorities.OUT.read_text()))


def main() -> None:
    """Write results.md; a section whose part has cells without a result stays as it was."""
    modes = sorted({options(cell.overrides)["mode"] for cell in STUDY.part("modes").cells})
    against = COUNTS.get(size(), (equations.FAILURES, equations.JOBS))
    STUDY.write(*STUDY.sections({
        "## 1. What saving and failing cost": beside("abstract", "none", overhead_table.table),
        "### Cheaper still": beside("beyond", "none", overhead_table.table),
        **{f"### In `{mode}`": functools.partial(of_mode, mode) for mode in modes},
        "## 2. The equations against emulated jobs": lambda: equations.against(*against),
        "## 3. Three kills in a job of real processes": beside("real", "real_none", real_table.table),
        "### In the baselines": beside("real_others", "real_others_none", real_table.table),
        "### With replicas": beside("real_replicas", "real_replicas_none", real_table.table),
        "## 4. What each priority costs": priced,
        "## 5. Other costs, other targets": lambda: equations.sensitivity(
            COUNTS.get(size(), (equations.FAILURES // 5, 0))[0]
        ),
    }))  # fmt: skip
