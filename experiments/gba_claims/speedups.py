"""Part 3: EPS of gba over sync, by cluster and straggler plan; a table and speedups.png. Costs a second."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cells import Done, done

TARGET = 2.4
PLANS = {"window": "burst", "periodic": "periodic"}
Map = dict[str, dict[str, float]]


def plan_of(options: Mapping[str, str]) -> str:
    """Name of a cell's fault plan."""
    if "faults" in options:
        return options["faults"]
    return next(name for kind, name in PLANS.items() if f"kind: {kind}" in options["faults.plans"])


def cluster_of(options: Mapping[str, str]) -> str:
    """Name of the cluster a cell ran on."""
    if options["experiment"] == "modes":
        return "local, 4"
    return f"virtual, {options['cluster.workers']}"


def ratios(cells: Iterable[Done]) -> Map:
    """EPS of gba over sync of the same seed, as means over the seeds: {plan: {cluster: ratio}}."""
    eps: dict[tuple[str, str, str, str], float] = {}
    for cell in cells:
        key = (plan_of(cell.options), cluster_of(cell.options), cell.seed)
        eps[(*key, cell.options["mode"])] = cell.result["eps"]
    found: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for (plan, cluster, seed, mode), value in eps.items():
        if mode == "gba":
            found[plan][cluster].append(value / eps[plan, cluster, seed, "sync"])
    return {plan: {name: statistics.fmean(v) for name, v in row.items()} for plan, row in found.items()}


def clusters(found: Map) -> list[str]:
    """All clusters, in order."""
    return list(dict.fromkeys(name for row in found.values() for name in row))


def table(found: Map) -> str:
    """Markdown table, one line a plan and one column a cluster; bold where the target is reached."""
    names = clusters(found)
    lines = [f"| plan | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for plan, row in found.items():
        lines.append(f"| {plan} | {' | '.join(_written(row.get(name)) for name in names)} |")
    return "\n".join([*lines, "", f"- EPS of gba / EPS of sync; bold: at least {TARGET}; -: not run."]) + "\n"


def _written(ratio: float | None) -> str:
    if ratio is None:
        return "-"
    return f"**{ratio:.2f}**" if ratio >= TARGET else f"{ratio:.2f}"


def plot(found: Map, path: Path) -> None:
    """Plot the ratios as a heat map; yellow where switching changes nothing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import TwoSlopeNorm
    from matplotlib.figure import Figure

    names, plans = clusters(found), list(found)
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    values = [[found[plan].get(name, float("nan")) for name in names] for plan in plans]
    image = axes.imshow(values, aspect="auto", cmap="RdYlGn", norm=TwoSlopeNorm(1.0, 0.0, 2 * TARGET))
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            axes.text(x, y, "" if value != value else f"{value:.1f}", ha="center", va="center")
    axes.set_xticks(range(len(names)), names)
    axes.set_yticks(range(len(plans)), plans)
    figure.colorbar(image, label="EPS of gba / EPS of sync")
    figure.savefig(path, dpi=120)


def fragment(parts: Sequence[str], path: Path) -> str:
    """Table of some parts; their figure is written to `path`."""
    found = ratios(cell for name in parts for cell in done(name))
    plot(found, path)
    return f"{table(found)}\n![EPS of gba over sync]({path.name})\n"
