"""Write results.md: stale and fresh gradients by mode, the norms of what was applied, and the AUC that goes with them.

Costs a few seconds; reads cells.jsonl. Part of `make mechanism`.
"""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import figures
import report_tables
from scipy.stats import wasserstein_distance
from study_results import Done, Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
PART, RATE = "gradients", "optim.lr"
KINDS = {"dense": "dense gradient", "rows": "a row's gradient"}
NUMBERS = ("cosine", "error")
Lines = dict[str, list[Done]]


def by_rate(cells: Iterable[Done]) -> dict[str, Lines]:
    """Cells of each learning rate, by line."""
    found: defaultdict[str, defaultdict[str, list[Done]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        found[cell.options[RATE]][cell.options["line"]].append(cell)
    return {rate: dict(lines) for rate, lines in found.items()}


def mean(cells: Sequence[Done], value: Callable[[Mapping[str, Any]], float]) -> float:
    """Mean of a value over cells."""
    return statistics.fmean(value(cell.result) for cell in cells)


def compared(cells: Sequence[Done], kind: str, number: str) -> list[float]:
    """Mean number of a cell's comparisons of stale and fresh gradients, for each cell."""
    return [float(cell.result["stale"][kind][number]) for cell in cells]


def distances(cells: Sequence[Done], others: Sequence[Done], kind: str) -> list[float]:
    """Wasserstein distance of each cell's norms to those of the other cell of its seed, in units of their mean."""
    pairs = {cell.seed: cell.result["norms"][kind]["quantiles"] for cell in others}
    found = []
    for cell in cells:
        theirs = pairs[cell.seed]
        apart = wasserstein_distance(cell.result["norms"][kind]["quantiles"], theirs)
        found.append(float(apart) / statistics.fmean(theirs))
    return found


def table(lines: Lines) -> str:
    """Table of one learning rate: AUC, staleness, cosines, errors and norms, one line each."""
    aucs = report_tables.by_line((cell for cells in lines.values() for cell in cells), "line", lambda r: r["auc"])
    rows = []
    for line, cells in lines.items():
        found = report_tables.against(aucs, line, "sync")
        difference = "-" if found is None or line == "sync" else report_tables.written(found, 4, "+")
        row = [line, difference, f"{mean(cells, lambda r: r['phases'][-1]['staleness_mean']):.1f}"]
        row += [f"{statistics.fmean(compared(cells, *pair)):.3f}" for pair in itertools.product(KINDS, NUMBERS)]
        row.append(f"{mean(cells, lambda r: statistics.median(r['norms']['dense']['quantiles'])):.4f}")
        row += [report_tables.written(distances(cells, lines["sync"], kind), 2) for kind in KINDS]
        row.append(f"{mean(cells, lambda r: sum(phase['steps'] for phase in r['phases'])):,.0f}")
        rows.append(row)
    heads = (
        "line", "AUC - sync's", "staleness", "cosine, dense", "error, dense", "cosine, rows", "error, rows",
        "median norm, dense", "distance, dense", "distance, rows", "steps",
    )  # fmt: skip
    notes = (
        "cosine: the cosine of a batch's gradient and the gradient of the same batch at the parameters to which it is "
        "applied (the fresh gradient); error: the norm of the difference of the two gradients divided by the norm of "
        "the fresh one; both are means over every 61st gradient.",
        "distance: the Wasserstein distance between the norms of the gradients that the mode applied and of those that "
        "sync applied, in units of sync's mean norm.",
        "+-: half of a 95 % interval over seeds. async-N: async with N workers, each with a local batch of 128.",
    )
    return report_tables.markdown(heads, rows, *notes)


def plot(found: Mapping[str, Lines], path: Path) -> None:
    """Draw AUC difference over cosine, one point a line and one panel a learning rate, and the norms' distributions."""
    figure = figures.new_figure(3.4 * (len(found) + 1), 3.6)
    panels = list(figure.subplots(1, len(found) + 1))
    for axes, (rate, lines) in zip(panels, found.items(), strict=False):
        base = {cell.seed: cell.result["auc"] for cell in lines["sync"]}
        for line, cells in lines.items():
            lost = [cell.result["auc"] - base[cell.seed] for cell in cells]
            axes.plot(statistics.fmean(compared(cells, "dense", "cosine")), statistics.fmean(lost), "o", label=line)
        axes.set_title(f"learning rate {rate}", fontsize=10)
        axes.set_xlabel("cosine of stale and fresh gradient")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("AUC - sync's")
    panels[0].legend(fontsize=6)
    rate, lines = list(found.items())[-1]
    for line, cells in lines.items():
        values = sorted(value for cell in cells for value in cell.result["norms"]["dense"]["quantiles"])
        panels[-1].plot(values, [(place + 1) / len(values) for place in range(len(values))], label=line)
    panels[-1].set_xscale("log")
    panels[-1].set_title(f"norms of dense gradients, {rate}", fontsize=10)
    panels[-1].set_ylabel("share of the steps")
    panels[-1].grid(alpha=0.3)
    figures.save(figure, path)


def main() -> None:
    """Write results.md and the figure."""
    found = by_rate(STUDY.found(PART))
    path = STUDY.assets / "mechanism.png"
    plot(found, path)
    text = [STUDY.origin(PART)]
    for rate, lines in found.items():
        text += [f"## Learning rate {rate}\n", table(lines)]
    text.append(f"![AUC, cosines and norms by mode](../../docs/assets/{path.name})\n")
    STUDY.write(*text)
