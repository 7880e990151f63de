"""Write results.md: the tables of the three studies, each with its origin.

Costs a few seconds. Part of `make switching`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import both_ways
import busy_day
import pauses
import study_results

HERE = Path(__file__).resolve().parent
SWEEP = HERE / "sweep.yaml"


def cells(part: str) -> list[study_results.Done]:
    """Finished cells of a part."""
    return study_results.done(SWEEP, part, "switching")


def switched(*parts: str) -> str:
    """Section of study 1 on some parts, whose lines are compared with the all-sync of the first."""
    origins = [study_results.origin(SWEEP, part) for part in parts]
    return "\n".join([*origins, both_ways.table([cell for part in parts for cell in cells(part)])])


def day() -> str:
    """Section of study 2."""
    found = cells("day")
    busy_day.plot(busy_day.days(found), HERE / "day.png")
    tables = busy_day.table(found), "![samples by hour](day.png)\n", "What auto decided:\n", busy_day.decisions(found)
    return "\n".join([study_results.origin(SWEEP, "day"), *tables])


SECTIONS: dict[str, Callable[[], str]] = {
    "## 0. sync's learning rate": lambda: f"{study_results.origin(SWEEP, 'rates')}\n{both_ways.rates(cells('rates'))}",
    "## 1. AUC after a switch: Adam": lambda: switched("both_ways", "anew"),
    "## 1. AUC after a switch: Adagrad": lambda: switched("adagrad"),
    "## 1. AUC after a switch: Frappe": lambda: switched("frappe"),
    "## 2. A day on a shared cluster": day,
    "## 3. Pauses": lambda: (
        f"{study_results.origin(SWEEP, 'pauses')}\n{pauses.table(cells('pauses'), cells('restarts'))}"
    ),
}


def main() -> None:
    """Write results.md; a section whose part has cells without a result stays as it was."""
    study_results.write(HERE, "switching", *study_results.sections(HERE, SECTIONS))
