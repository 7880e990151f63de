"""Samples trained in a day of varying load by always sync, always async, always gba and auto.

Costs two seconds.
"""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import figures
import yaml
from report_tables import against, by_line, markdown, written
from study_results import Done

HOURS = 24
TARGET_SHARE, TARGET_AUC = 0.95, 0.0005
CHOICES = ("sync", "gba")  # modes that auto chooses from
Curve = list[tuple[float, float]]


def curve(result: Mapping[str, Any]) -> Curve:
    """Curve of a run from its start: (virtual seconds, samples)."""
    return [(0.0, 0.0), *((point["seconds"], float(point["samples"])) for point in result["curve"])]


def at(points: Curve, seconds: float) -> float:
    """Samples at a time, interpolated. Raises SystemExit where the run had ended before."""
    place = bisect.bisect_left([time for time, _ in points], seconds)
    if place == len(points):
        raise SystemExit(f"A run ended after {points[-1][0]:.0f} s, before {seconds:.0f} s; give it more samples.")
    if place == 0:
        return points[0][1]
    (begin, before), (end, after) = points[place - 1], points[place]
    return before + (after - before) * (seconds - begin) / (end - begin)


def hour_of(options: Mapping[str, str]) -> float:
    """Virtual seconds of an hour: the scale of a cell's load trace."""
    return float(yaml.safe_load(options["faults.plans"])[0]["scale"])


def by_hour(points: Curve, hour: float) -> list[float]:
    """Samples in every hour of the day."""
    marks = [at(points, hour * number) for number in range(HOURS + 1)]
    return [after - before for before, after in itertools.pairwise(marks)]


Days = dict[str, dict[str, list[float]]]


def days(cells: Iterable[Done]) -> Days:
    """Samples by hour: line -> seed -> list."""
    found: defaultdict[str, dict[str, list[float]]] = defaultdict(dict)
    for cell in cells:
        found[cell.options["line"]][cell.seed] = by_hour(curve(cell.result), hour_of(cell.options))
    return dict(found)


def hindsight(found: Days) -> dict[str, float]:
    """Samples a day, by seed, of an ideal choice of the faster mode in every hour, with free switches."""
    return {
        seed: sum(max(hours) for hours in zip(*(found[mode][seed] for mode in CHOICES), strict=True))
        for seed in found[CHOICES[0]]
    }


def table(cells: Sequence[Done]) -> str:
    """Markdown table, one line for each way to train."""
    found, best = days(cells), hindsight(days(cells))
    aucs, rows = by_line(cells, "line", lambda result: float(result["auc"])), []
    for line, by_seed in found.items():
        per_day = statistics.fmean(sum(hours) for hours in by_seed.values())
        share = statistics.fmean(sum(hours) / best[seed] for seed, hours in by_seed.items())
        gap = against(aucs, line, "sync")
        auc = "0" if gap is None or line == "sync" else written(gap, 4, "+", TARGET_AUC)
        switched = [len(of_the_day(cell)) for cell in cells if cell.options["line"] == line]
        cut = f"{share:.3f}" if line != "auto" or share < TARGET_SHARE else f"**{share:.3f}**"
        rows.append((line, f"{per_day:,.0f}", cut, auc, f"{statistics.fmean(switched):.1f}"))
    rows.append(("best in hindsight", f"{statistics.fmean(best.values()):,.0f}", "1", "-", "-"))
    heads = "trained", "samples a day", "of the best in hindsight", "AUC minus all-sync", "switches"
    notes = (
        f"{len(best)} seeds. samples a day: the samples trained in {HOURS} hours; AUC: at the end, after the same "
        "samples for all lines.",
        f"best in hindsight: in every hour the better of {' and '.join(CHOICES)}, as if switches took no time.",
        f"bold: at least {TARGET_SHARE} of the best in hindsight, or an interval inside +-{TARGET_AUC}.",
    )
    return markdown(heads, rows, *notes)


def of_the_day(cell: Done) -> list[dict[str, Any]]:
    """Decisions of auto that led to a switch within the day."""
    looks = (cell.result.get("auto") or {}).get("switched", [])
    return [look for look in looks if look["at"] < HOURS * hour_of(cell.options)]


def decisions(cells: Iterable[Done]) -> str:
    """Markdown table of auto's switches of the first seed, with the predictions that led to them."""
    cell = next(each for each in cells if each.options["line"] == "auto")
    rows = []
    for look in of_the_day(cell):
        numbers = f"{look['sync']:,.0f}", f"{look['gba']:,.0f}"
        rows.append(
            (f"{look['at'] / hour_of(cell.options):.1f}", look["mode"], look["wanted"], *numbers, look["reason"])
        )
    note = (
        f"seed {cell.seed}; the controller decided {cell.result['auto']['looks']} times. sync, gba: the samples/s that "
        "it predicted for the mode."
    )
    return markdown(("hour", "from", "to", "sync", "gba", "why"), rows, note, names=(1, 2, 5))


def plot(found: Days, path: Path) -> None:
    """Plot samples by hour, as means over the seeds."""
    figure = figures.new_figure(7.2, 3.6)
    axes = figure.subplots()
    for line, by_seed in found.items():
        means = [statistics.fmean(hour) for hour in zip(*by_seed.values(), strict=True)]
        axes.stairs(means, range(HOURS + 1), label=line, linewidth=2.0 if line == "auto" else 1.2)
    axes.set_xlabel("hour of the day")
    axes.set_ylabel("samples in an hour")
    axes.legend(frameon=False)
    figures.save(figure, path)
