"""Write results.md and its heat maps: AUC difference and EPS ratio to sync, by mode, over two pairs of axes.

Reads cells.jsonl, in a few seconds; cells that are missing stay empty. Part of `make map`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import figures
import study
from report_tables import markdown, written
from study_results import Done, Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
SAFE = 0.0005
WORKERS, RATE, SLOW = "cluster.workers", "optim.lr", "slow"
Place = tuple[str, str]  # value of the part's own axis, number of workers
Map = dict[str, dict[Place, list[float]]]  # of every mode and place, a value for each seed
NOT_DERIVED = ("sync", "shadow_easgd", "local_sgd")  # modes that are not derived from synchronous training
PARTS = {"rate": (RATE, "learning rate"), "severity": (SLOW, "slow-down of one worker in eight")}


def cells(part: str) -> list[Done]:
    """Finished cells of a part; those of `severity` begin with the cells of `rate` that have no stragglers."""
    if part == "rate":
        return STUDY.found("rate")
    slowed = STUDY.found("severity")
    rates = {cell.options[RATE] for cell in slowed}
    calm = [cell for cell in STUDY.found("rate") if cell.options[RATE] in rates]
    return [Done({**cell.options, SLOW: "1x"}, cell.result, cell.folder, cell.code) for cell in calm] + slowed


def compared(
    found: Iterable[Done], axis: str, compare: Callable[[Any, Any], float], reference: str = "sync"
) -> Map:  # fmt: skip
    """Compare each mode's result with that of the `reference` mode of the same place and seed."""
    results = {_key(cell, axis): cell.result for cell in found}
    made: defaultdict[str, defaultdict[Place, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (mode, value, workers, seed), result in results.items():
        other = results.get((reference, value, workers, seed))
        if mode != reference and other is not None:
            made[mode][value, workers].append(compare(result, other))
    return {mode: dict(places) for mode, places in made.items()}


def _key(cell: Done, axis: str) -> tuple[str, str, str, str]:
    options = cell.options
    return options["mode"], options[axis], options[WORKERS], cell.seed


def auc_difference(result: Mapping[str, float], sync: Mapping[str, float]) -> float:
    """AUC after the last day, minus sync's."""
    return result["auc"] - sync["auc"]


def eps_ratio(result: Mapping[str, Any], sync: Mapping[str, Any]) -> float:
    """EPS of the days in the mode, over sync's."""
    return eps(result) / eps(sync)


def eps(result: Mapping[str, Any]) -> float:
    """Samples trained per second in the days after the base."""
    phases = study.without_base_phases(result)["phases"]
    return float(sum(phase["samples"] for phase in phases) / sum(phase["seconds"] for phase in phases))


def axes_of(found: Map) -> tuple[list[str], list[str]]:
    """Sorted values of a map's two axes: learning rates or slow-downs, and numbers of workers."""
    places = {place for mode in found.values() for place in mode}
    return sorted({value for value, _ in places}, key=lambda value: float(value.rstrip("x"))), sorted(
        {workers for _, workers in places}, key=int
    )


def mean(found: Mapping[Place, Sequence[float]]) -> dict[Place, float]:
    """Mean over the seeds."""
    return {place: statistics.fmean(values) for place, values in found.items()}


def plot(aucs: Map, ratios: Map, title: str, path: Path) -> None:
    """Draw both maps: a column for each mode; green is as good, or faster."""
    from matplotlib.colors import SymLogNorm, TwoSlopeNorm

    places = axes_of(aucs)
    figure = figures.new_figure(1.6 * len(aucs) + 1.6, 4.6)
    grid = figure.subplots(2, len(aucs), squeeze=False, sharex=True, sharey=True)
    of_auc = {"cmap": "RdYlGn", "norm": SymLogNorm(SAFE, linscale=0.3, vmin=-0.05, vmax=0.05)}
    of_eps = {"cmap": "PuOr", "norm": TwoSlopeNorm(1.0, 0.0, 4.0)}
    for column, mode in enumerate(aucs):
        top, below = grid[0][column], grid[1][column]
        auc = figures.heat(top, mean(aucs[mode]), places, lambda v: f"{1e4 * v:+.0f}", **of_auc)
        ratio = figures.heat(below, mean(ratios[mode]), places, lambda v: f"{v:.1f}", **of_eps)
        top.set_title(mode, fontsize=10)
        below.set_xlabel("workers")
    for row in grid:
        row[0].set_ylabel(title)
    ticks = [sign * SAFE * 10**power for sign in (-1, 1) for power in range(3)]
    bar = figure.colorbar(auc, ax=list(grid[0]), ticks=ticks, label="AUC - sync's, in .0001")
    bar.ax.set_yticklabels([f"{1e4 * tick:+.0f}" for tick in ticks])
    figure.colorbar(ratio, ax=list(grid[1]), label="EPS / sync's")
    figures.save(figure, path)


def table(aucs: Map, ratios: Map, axis: str) -> str:
    """Markdown table, one line a mode and value: AUC difference and EPS ratio by workers; bold where safe."""
    values, workers = axes_of(aucs)
    heads = [f"mode, {axis}", *(f"{what}, {n}" for what in ("AUC", "EPS") for n in workers)]
    rows = []
    for mode, value in ((mode, value) for mode in aucs for value in values):
        places = [(value, n) for n in workers]
        quality = [written(aucs[mode][p], 4, "+", SAFE) if p in aucs[mode] else "-" for p in places]
        speed = [written(ratios[mode][p], 2) if p in ratios[mode] else "-" for p in places]
        rows.append([f"{mode}, {value}", *quality, *speed])
    return markdown(
        heads, rows,
        "AUC: the AUC after the last day minus that of sync with the same seed; EPS: the EPS in the day of the mode "
        "divided by that of sync.",
        f"+-: half of a 95 % interval over seeds; bold: it lies inside +-{SAFE}.",
        "The number after AUC or EPS in the head of a column is the number of workers.",
    )  # fmt: skip


def leads(found: Iterable[Done], axis: str, title: str) -> str:
    """Table of gba's AUC minus that of each mode not in NOT_DERIVED, by value and workers; bold if within SAFE."""
    less = compared(found, axis, lambda result, gba: auc_difference(gba, result), "gba")
    values, workers = axes_of(less)
    rows = []
    for mode, value in ((mode, value) for mode in less if mode not in NOT_DERIVED for value in values):
        places = [less[mode].get((value, n)) for n in workers]
        rows.append([f"{mode}, {value}", *("-" if each is None else written(each, 4, "+", SAFE) for each in places)])
    return markdown([f"gba minus mode, {title}", *(f"AUC, {n}" for n in workers)], rows)


def gaps(found: Iterable[Done]) -> str:
    """Sentence on how far sync is from the best possible AUC, by learning rate."""
    by_rate: defaultdict[str, list[float]] = defaultdict(list)
    for cell in found:
        if cell.options["mode"] == "sync":
            by_rate[cell.options[RATE]].append(cell.result["best_possible_auc"] - cell.result["auc"])
    told = ", ".join(f"{statistics.fmean(each):.4f} at {rate}" for rate, each in by_rate.items())
    return f"The best possible AUC minus the AUC of sync, by learning rate: {told}.\n"


def main() -> None:
    """Write results.md and the figures."""
    text = [gaps(cells("rate"))]
    for part, (axis, title) in PARTS.items():
        found = cells(part)
        if not found:
            continue
        aucs, ratios = compared(found, axis, auc_difference), compared(found, axis, eps_ratio)
        path = STUDY.assets / f"map-{part}.png"
        plot(aucs, ratios, title, path)
        text += [f"## {title.capitalize()} x workers\n", STUDY.origin(part), table(aucs, ratios, title)]
        text.append(leads(found, axis, title))
        text.append(f"![{title} and workers](../../docs/assets/{path.name})\n")
    STUDY.write(*text)
