"""Write results.md: the tables of the three studies, each with its origin.

Costs a few seconds. Part of `make switching`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import both_ways
import busy_day
import pauses
from study_results import Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))


def switched(*parts: str) -> str:
    """Section on AUC after a switch (study 1) in some parts; the baseline is the first part's all-sync runs."""
    origins = [STUDY.origin(part) for part in parts]
    return "\n".join([*origins, both_ways.table([cell for part in parts for cell in STUDY.done(part)])])


def day() -> str:
    """Section on a day of varying load on a shared cluster (study 2)."""
    found = STUDY.done("day")
    busy_day.plot(busy_day.days(found), STUDY.place / "day.png")
    tables = busy_day.table(found), "![samples by hour](day.png)\n", "What auto decided:\n", busy_day.decisions(found)
    return "\n".join([STUDY.origin("day"), *tables])


SECTIONS: dict[str, Callable[[], str]] = {
    "## 0. sync's learning rate": lambda: f"{STUDY.origin('rates')}\n{both_ways.rates(STUDY.done('rates'))}",
    "## 1. AUC after a switch: Adam": lambda: switched("both_ways", "anew"),
    "## 1. AUC after a switch: Adagrad": lambda: switched("adagrad"),
    "## 1. AUC after a switch: Frappe": lambda: switched("frappe"),
    "## 2. A day on a shared cluster": day,
    "## 3. Pauses": lambda: f"{STUDY.origin('pauses')}\n{pauses.table(STUDY.done('pauses'), STUDY.done('restarts'))}",
}


def main() -> None:
    """Write results.md; a section whose part has cells without a result stays as it was."""
    STUDY.write(*STUDY.sections(SECTIONS))
