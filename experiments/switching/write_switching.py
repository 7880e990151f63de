"""Write results.md: the tables of the three studies, each with its origin.

    .venv/bin/python experiments/switching/write_switching.py

Costs a few seconds. Part of `make switching`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import both_ways  # noqa: E402  (scripts in the same folder, not a package)
import busy_day  # noqa: E402
import pauses  # noqa: E402
import study_results  # noqa: E402

SWEEP = HERE / "sweep.yaml"


def cells(part: str) -> list[study_results.Done]:
    """Finished cells of a part."""
    return study_results.done(SWEEP, part, "switching")


def switched(*parts: str) -> list[str]:
    """Section of study 1 on some parts, whose lines are compared with the all-sync of the first."""
    origins = [study_results.origin(SWEEP, part) for part in parts]
    return [*origins, both_ways.table([cell for part in parts for cell in cells(part)])]


def day() -> list[str]:
    """Section of study 2."""
    found = cells("day")
    busy_day.plot(busy_day.days(found), HERE / "day.png")
    return [
        study_results.origin(SWEEP, "day"),
        busy_day.table(found),
        "![samples by hour](day.png)\n",
        "What auto decided:\n",
        busy_day.decisions(found),
    ]


def paused() -> list[str]:
    """Section of study 3."""
    return [study_results.origin(SWEEP, "pauses"), pauses.table(cells("pauses"), cells("restarts"))]


SECTIONS: dict[str, Callable[[], list[str]]] = {
    "0. sync's learning rate": lambda: [study_results.origin(SWEEP, "rates"), both_ways.rates(cells("rates"))],
    "1. AUC after a switch: Adam": lambda: switched("both_ways", "anew"),
    "1. AUC after a switch: Adagrad": lambda: switched("adagrad"),
    "1. AUC after a switch: Frappe": lambda: switched("frappe"),
    "2. A day on a shared cluster": day,
    "3. Pauses": paused,
}


def main() -> None:
    """Write results.md; a section whose part has cells without a result stays as it was."""
    path = study_results.place(HERE) / "results.md"
    before, text = path.read_text() if path.exists() else "", [f"{study_results.title('switching')}\n"]
    for title, section in SECTIONS.items():
        try:
            text += [f"## {title}\n", *section()]
        except SystemExit as missing:
            print(missing, file=sys.stderr)
            there = study_results.section(before, f"## {title}")
            text += [f"{there.rstrip()}\n"] if there else []
    path.write_text("\n".join(text))


if __name__ == "__main__":
    main()
