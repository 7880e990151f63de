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
import study  # noqa: E402
import study_results  # noqa: E402

SWEEP = HERE / "sweep.yaml"


def cells(part: str) -> list[study_results.Done]:
    """Finished cells of a part."""
    return study_results.done(SWEEP, part, "switching")


def origin(part: str) -> str:
    """Sentence on the number of runs, seeds and code version of a part."""
    found = study_results.part(SWEEP, part).cells
    seeds = ", ".join(study_results.seeds(found))
    return f"{part}: {len(found)} runs, seeds {seeds}, code version {study.code_version()}.\n"


def carried(part: str) -> list[str]:
    """Section of study 1 on some data, or the reason why it is missing."""
    missing = study_results.part(SWEEP, part).missing
    if missing:
        return [f"Left out: {missing} was not set.\n"]
    return [origin(part), state_carry_over.table(state_carry_over.by_line(cells(part)))]


def day() -> list[str]:
    """Section of study 2."""
    found = cells("day")
    busy_day.plot(busy_day.days(found), HERE / "day.png")
    return [
        origin("day"),
        busy_day.table(found),
        "![samples by hour](day.png)\n",
        "What auto decided:\n",
        busy_day.decisions(found),
    ]


def main() -> None:
    """Write results.md."""
    size = "" if study_results.size() == "default" else f" SIZE={study_results.size()}"
    text = [
        f"# Results\n\nWritten by `make switching{size}`; questions and answers are in README.md.\n",
        "## 1. AUC after a switch: synthetic\n", *carried("carry"),
        "## 1. AUC after a switch: Frappe\n", *carried("carry_frappe"),
        "## 2. A day on a shared cluster\n", *day(),
        "## 3. Pauses\n", origin("pauses"), pauses.table(cells("pauses"), pauses.measured()),
    ]  # fmt: skip
    (HERE / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
