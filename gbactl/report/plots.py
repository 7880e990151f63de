"""Figures of a comparison from the runs' curves: AUC after each phase, speed, staleness, as PNG files.

Needs matplotlib (1 s to import), no display.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gbactl.errors import GbactlError
from gbactl.report.paired_statistics import stat
from gbactl.report.run_curves import Curves, ModeSegment, shares

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDE, _HIGH, _LINE = 6.4, 4.0, 0.2  # inches of a figure, and of a line of the legend below it
_LONG = 20  # characters of a name that does not fit within the axes


def plot(runs: Sequence[Curves], folder: Path, advice: str = "type --plots with another folder") -> list[Path]:
    """Write the figures auc_over_samples, auc_over_time, eps and staleness; those without data are left out.

    Raises GbactlError, with `advice` at its end, if the folder cannot be written.
    """
    groups = {name: [run for run in runs if run.group == name] for name in dict.fromkeys(r.group for r in runs)}
    curved, counted = any(run.auc for run in runs), any(run.staleness for run in runs)
    figures: list[tuple[str, bool, Callable[[Axes, dict[str, list[Curves]]], None]]] = [
        ("auc_over_samples.png", curved, _auc_over_samples),
        ("auc_over_time.png", curved, _auc_over_time),
        ("eps.png", any(run.eps is not None for run in runs), _eps),
        ("staleness.png", counted, _staleness),
    ]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_saved(folder / name, draw, groups) for name, there, draw in figures if there]
    except OSError as error:
        raise GbactlError(f"The plots cannot be written to {folder} ({error.strerror}); {advice}.") from error


def _saved(path: Path, draw: Callable[[Any, dict[str, list[Curves]]], None], groups: Any) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDE, _HIGH + (_LINE * len(groups) if _is_long(groups) else 0)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw(axes, groups)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    return path


def _is_long(groups: dict[str, list[Curves]]) -> bool:
    return any(len(name) > _LONG for name in groups)


def _legend(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    """Draw the legend within the axes, or below them if names are long."""
    figure = axes.get_figure(root=True)
    if figure is not None and _is_long(groups):
        figure.legend(loc="outside lower left", fontsize=8)
    else:
        axes.legend()


def _lines(axes: Axes, groups: dict[str, list[Curves]], along: Callable[[Curves], Sequence[float]]) -> None:
    for place, (name, runs) in enumerate(groups.items()):
        label: str | None = name
        for run in runs:
            axes.plot(along(run), run.auc, color=f"C{place % 10}", alpha=0.7, marker="o", ms=3, label=label)
            label = None
    axes.set_ylabel("AUC on the evaluated data")
    _legend(axes, groups)


def _switches(
    axes: Axes,
    groups: dict[str, list[Curves]],
    along: Callable[[Curves], Sequence[float]],
    begins: Callable[[ModeSegment], float],
) -> None:
    """Draw a run's mode switches on its curve; each mode is labelled once in a group, above other labels there."""
    labels = Counter[float]()
    for place, runs in enumerate(groups.values()):
        named = set[tuple[int, str]]()
        for run in runs:
            for number, stretch in enumerate(run.modes[1:] if run.auc else ()):
                at, colour = begins(stretch), f"C{place % 10}"
                height = float(np.interp(at, along(run), run.auc))
                if at < along(run)[0]:  # the curve has no point before the switch
                    axes.plot([at, along(run)[0]], [height, height], color=colour, ls=":", alpha=0.7)
                axes.plot([at], [height], marker="D", ms=6, mfc="white", mec=colour, ls="none", zorder=3)
                if (number, stretch.mode) not in named:
                    labels[at] += 1
                    up = (0, 9 * labels[at] - 3)
                    above = axes.annotate(stretch.mode, (at, height), up, textcoords="offset points", ha="center")
                    above.set(color=colour, size=8)
                    named.add((number, stretch.mode))


def _auc_over_samples(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    _lines(axes, groups, lambda run: run.samples)
    _switches(axes, groups, lambda run: run.samples, lambda stretch: stretch.samples[0])
    axes.set_xlabel("samples")


def _auc_over_time(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    _lines(axes, groups, lambda run: run.seconds)
    _switches(axes, groups, lambda run: run.seconds, lambda stretch: stretch.seconds[0])
    axes.set_xlabel("seconds of training")


def _eps(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    stats = {name: stat([run.eps for run in runs if run.eps is not None]) for name, runs in groups.items()}
    found = {name: each for name, each in stats.items() if each is not None}
    axes.barh(
        [name.replace(", ", "\n") for name in found],
        [each.mean for each in found.values()],
        xerr=[each.sd or 0.0 for each in found.values()],
        color=[f"C{place % 10}" for place, name in enumerate(groups) if name in found],
        capsize=4,
    )
    axes.invert_yaxis()
    axes.tick_params(axis="y", labelsize=6 if _is_long(groups) else None)
    axes.set_xlabel("samples per second, all workers")


def _staleness(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    from matplotlib.ticker import MaxNLocator

    width = 0.8 / len(groups)
    for place, (name, runs) in enumerate(groups.items()):
        percent = shares(runs)
        at = [step + (place - (len(groups) - 1) / 2) * width for step in percent]
        axes.bar(at, list(percent.values()), width, color=f"C{place % 10}", label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("staleness when applied, in global steps")
    axes.set_ylabel("% of the gradients")
    _legend(axes, groups)
