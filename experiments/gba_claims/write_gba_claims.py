"""Write results.md: EPS of gba over sync by straggler plan and cluster, and the effect of each option of gba.

Costs a few seconds; reads cells.jsonl. Part of `make gba-claims`.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import figures
import report_tables
from study_results import Done, Results

STUDY = Results(Path(__file__).resolve().with_name("sweep.yaml"))
TARGET, SAME = 2.4, 0.0005
PLANS = {"window": "burst", "periodic": "periodic"}
Ratios = dict[tuple[str, str], float]  # of a plan and a cluster


def plan_of(options: Mapping[str, str]) -> str:
    """Name of a cell's fault plan."""
    if "faults" in options:
        return options["faults"]
    return next(name for kind, name in PLANS.items() if f"kind: {kind}" in options["faults.plans"])


def cluster_of(options: Mapping[str, str]) -> str:
    """Name of the cluster a cell ran on."""
    return f"virtual, {options['cluster.workers']}"


def ratios(cells: Iterable[Done]) -> Ratios:
    """EPS of gba over sync of the same seed, as means over the seeds."""
    eps = {(plan_of(c.options), cluster_of(c.options), c.seed, c.options["mode"]): c.result["eps"] for c in cells}
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for (plan, cluster, seed, mode), value in eps.items():
        if mode == "gba":
            found[plan, cluster].append(value / eps[plan, cluster, seed, "sync"])
    return {place: statistics.fmean(values) for place, values in found.items()}


def axes_of(found: Ratios) -> tuple[list[str], list[str]]:
    """Plans and clusters, in order."""
    return list(dict.fromkeys(plan for plan, _ in found)), list(dict.fromkeys(cluster for _, cluster in found))


def speeds(found: Ratios) -> str:
    """Table of the ratios, one line a plan and one column a cluster; bold where the target is reached."""
    plans, clusters = axes_of(found)
    rows = [[plan, *(_written(found.get((plan, cluster))) for cluster in clusters)] for plan in plans]
    note = f"EPS of gba / EPS of sync; bold: at least {TARGET}; -: not run."
    return report_tables.markdown(("plan", *clusters), rows, note)


def _written(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"**{ratio:.2f}**" if ratio >= TARGET else f"{ratio:.2f}"


def plot(found: Ratios, path: Path) -> None:
    """Plot the ratios as a heat map; yellow where switching changes nothing."""
    from matplotlib.colors import TwoSlopeNorm

    figure = figures.new_figure(6.4, 4.0)
    colours = {"cmap": "RdYlGn", "norm": TwoSlopeNorm(1.0, 0.0, 2 * TARGET)}
    image = figures.heat(figure.subplots(), found, axes_of(found), lambda value: f"{value:.1f}", **colours)
    figure.colorbar(image, label="EPS of gba / EPS of sync")
    figures.save(figure, path)


def options(cells: Sequence[Done]) -> str:
    """Table of gba with one option changed, against gba as it comes."""
    aucs = report_tables.by_line(cells, "ablation", lambda result: result["phases"][-1]["auc"])
    eps = report_tables.by_line(cells, "ablation", lambda result: result["phases"][-1]["eps"])
    stale = report_tables.by_line(cells, "ablation", lambda result: result["phases"][-1]["staleness_mean"])
    decayed = report_tables.by_line(cells, "ablation", lambda result: result["phases"][-1]["decayed"])
    rows = []
    for line, values in aucs.items():
        found = report_tables.against(aucs, line, "default")
        difference = "-" if found is None or line == "default" else report_tables.written(found, 5, "+", SAME)
        ratio = statistics.fmean(eps[line][seed] / eps["default"][seed] for seed in values)
        rest = (statistics.fmean(each[line].values()) for each in (stale, decayed))
        rows.append([line, difference, f"{ratio:.2f}", *(f"{number:,.1f}" for number in rest)])
    heads = ("option", "AUC - default's", "EPS / default's", "staleness, mean", "samples decayed")
    notes = (
        f"+-: half of a 95 % interval over seeds; bold: it lies inside +-{SAME}.",
        "EPS, staleness and decayed samples are those of the day in gba.",
    )
    return report_tables.markdown(heads, rows, *notes)


def main() -> None:
    """Write results.md and the figure."""
    found = ratios(STUDY.found("speed"))
    path = STUDY.assets / "gba-speedups.png"
    plot(found, path)
    STUDY.write(
        "## 1. Speed under strained resources\n", STUDY.origin("speed"),
        speeds(found), f"![EPS of gba over sync](../../docs/assets/{path.name})\n",
        "## 2. Options of gba\n", STUDY.origin("ablation"),
        options(STUDY.found("ablation")),
    )  # fmt: skip
