"""Write results.md: the tables of the three studies, each with its origin.

    .venv/bin/python experiments/switching/write_switching.py

Costs a few seconds; reads runs/studies/. Part of `make switching`.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import busy_day  # noqa: E402  (scripts in the same folder, not a package)
import pauses  # noqa: E402
import state_carry_over  # noqa: E402
import study_results  # noqa: E402

SWEEP = HERE / "sweep.yaml"


def cells(part: str) -> list[study_results.Done]:
    """Return the finished runs of one part of sweep.yaml."""
    return study_results.done(SWEEP, part, "switching")


def carried(part: str) -> list[str]:
    """Section of study 1 on some data, or the reason why it is missing."""
    missing = study_results.part(SWEEP, part).missing
    if missing:
        return [f"Left out: {missing} was not set.\n"]
    return [study_results.origin(SWEEP, part), state_carry_over.table(state_carry_over.by_line(cells(part)))]


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


def main() -> None:
    """Write results.md."""
    text = [
        f"{study_results.title('switching')}\n",
        "## 1. AUC after a switch: synthetic\n", *carried("carry"),
        "## 1. AUC after a switch: Frappe\n", *carried("carry_frappe"),
        "## 2. A day on a shared cluster\n", *day(),
        "## 3. Pauses\n", study_results.origin(SWEEP, "pauses"), pauses.table(cells("pauses"), pauses.measured()),
    ]  # fmt: skip
    (HERE / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
