"""Part 5: distance of each mode's gradient norms from sync's; a table and norms.png. Costs a few seconds.

The norms are those of the steps after the switch, read from norms.jsonl, over the same samples in every mode.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cells import Done, done
from scipy.stats import wasserstein_distance

SYNC_DAYS = 2
KINDS = {"dense": "dense gradient", "rows": "a row's gradient"}
Norms = dict[str, list[float]]


def read(path: Path, first_step: int) -> Norms:
    """Read the norms of the steps from `first_step` on, leaving out values that are not finite."""
    found: Norms = {kind: [] for kind in KINDS}
    with path.open() as lines:
        for line in map(json.loads, lines):
            if line["step"] >= first_step:
                found["dense"].append(line["dense"])
                found["rows"] += line["rows"]
    return {kind: [value for value in values if math.isfinite(value)] for kind, values in found.items()}


def of_modes(cells: Iterable[Done]) -> dict[str, Norms]:
    """Norms by mode, all seeds of a mode together."""
    found: defaultdict[str, Norms] = defaultdict(lambda: {kind: [] for kind in KINDS})
    for cell in cells:
        before = sum(phase["steps"] for phase in cell.result["phases"][:SYNC_DAYS])
        for kind, values in read(cell.folder / "norms.jsonl", before).items():
            found[cell.options["takes_over"]][kind] += values
    return dict(found)


def distance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Wasserstein distance in units of the mean of `theirs`."""
    return float(wasserstein_distance(ours, theirs)) / statistics.fmean(theirs)


def table(modes: Mapping[str, Norms]) -> str:
    """Markdown table by mode: number of norms, median and distance to sync, of both kinds."""
    titles = [f"{what}: {name}" for name in KINDS.values() for what in ("n", "median", "distance to sync")]
    lines = [f"| mode | {' | '.join(titles)} |", f"| --- |{' ---: |' * len(titles)}"]
    for mode, norms in modes.items():
        shown = []
        for kind in KINDS:
            shown += [f"{len(norms[kind]):,}", f"{statistics.median(norms[kind]):.4g}"]
            shown.append(f"{distance(norms[kind], modes['sync'][kind]):.3f}")
        lines.append(f"| {mode} | {' | '.join(shown)} |")
    note = "- L2 norms of what was applied at a step; distance: Wasserstein, in units of sync's mean norm."
    return "\n".join([*lines, "", note]) + "\n"


def plot(modes: Mapping[str, Norms], path: Path) -> None:
    """Plot the distribution functions, one line a mode."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (kind, title) in zip(figure.subplots(1, len(KINDS)), KINDS.items(), strict=True):
        for mode, norms in modes.items():
            values = sorted(norms[kind])
            share = [(place + 1) / len(values) for place in range(len(values))]
            axes.plot(values, share, label=mode, ls="--" if mode == "sync" else "-")
        axes.set_xscale("log")
        axes.set_xlabel(f"L2 norm of {title}")
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of the steps")
    figure.axes[0].legend()
    figure.savefig(path, dpi=120)


def fragment(part: str, path: Path) -> str:
    """Table of a part; its figure is written to `path`."""
    modes = of_modes(done(part))
    plot(modes, path)
    return f"{table(modes)}\n![distribution of the gradient norms]({path.name})\n"
