"""Study 1: effect of a switch on next-day AUC, with optimizer state kept or reset, against all-sync. Costs a second."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from report_tables import written  # noqa: E402
from study_results import Done  # noqa: E402  (scripts of the parent folder, not a package)

from gbactl.report.paired_statistics import Difference, paired  # noqa: E402

TARGET = 0.0005
DIRECTIONS = {"to": "sync -> {}", "from": "{} -> sync"}
Aucs = dict[str, dict[str, Sequence[float]]]


def after(result: Mapping[str, Sequence[Mapping[str, float]]]) -> list[float]:
    """AUC on the following day (or epoch) for every day of a run's second half, which follows the switch."""
    judged = [phase["auc"] for phase in result["phases"] if "auc" in phase]
    return judged[len(judged) // 2 :]


def by_line(cells: Iterable[Done]) -> Aucs:
    """AUCs after the switch: line -> seed -> list."""
    found: Aucs = {}
    for cell in cells:
        found.setdefault(cell.options["line"], {})[cell.seed] = after(cell.result)
    return found


def modes(found: Aucs) -> list[str]:
    """Modes compared with sync, in order."""
    return list(dict.fromkeys(line.split("-")[1] for line in found if line.startswith(tuple(DIRECTIONS))))


def difference(found: Aucs, line: str, base: str, day: int) -> Difference | None:
    """Difference of a line's AUC to another's, over the seeds of both; `day` counts from the switch, -1 is the last."""
    mine, other = found.get(line, {}), found.get(base, {})
    return paired([(other[seed][day], mine[seed][day]) for seed in mine if seed in other])


def shown(each: Difference | None, bold: bool = False) -> str:
    """Format such as +.0003 +-.0001; bold where the interval lies inside the target."""
    return "-" if each is None else written(each, 4, "+", TARGET if bold else None)


def table(found: Aucs) -> str:
    """Markdown table, one line a switch."""
    heads = ("kept, first", "kept, last", "anew, first", "anew, last", "kept - anew, first")
    lines = [f"| switch | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    for prefix, name in DIRECTIONS.items():
        for mode in modes(found):
            kept, anew = f"{prefix}-{mode}", f"{prefix}-{mode}-anew"
            cells = [difference(found, line, "sync", day) for line in (kept, anew) for day in (0, -1)]
            own = difference(found, kept, anew, 0)
            told = [shown(each, bold=True) for each in cells] + [shown(own)]
            lines.append(f"| {name.format(mode.replace('_prefetch_0', ', prefetch 0'))} | {' | '.join(told)} |")
    seeds = len(found["sync"])
    return "\n".join(
        [
            *lines,
            "",
            f"- AUC minus that of all-sync of the same seed, first and last day (epoch) after the switch; n = {seeds}.",
            f"- +-: half of a 95 % interval; bold: it lies inside +-{TARGET}.",
            "- kept: optimizer state goes on; anew: it begins anew, as after a restart that kept the parameters alone.",
            f"- AUC of all-sync: {_mean(found, 0):.5f} and {_mean(found, -1):.5f}.",
        ]
    ) + "\n"  # fmt: skip


def _mean(found: Aucs, day: int) -> float:
    values = [aucs[day] for aucs in found["sync"].values()]
    return sum(values) / len(values)
