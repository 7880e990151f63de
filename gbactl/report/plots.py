"""Four figures of a comparison, as PNG files: needs matplotlib (1 s to import), no display."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.errors import GbactlError
from gbactl.report.curves import Curves, Stretch, shares
from gbactl.report.stats import stat

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SIZE = (6.4, 4.0)


def plot(runs: Sequence[Curves], folder: Path, advice: str = "type --plots with another folder") -> list[Path]:
    """Write auc_over_samples, auc_over_time, eps and staleness; those without data are left out.

    Raises GbactlError if the folder cannot be written, with `advice` at its end.
    """
    groups = {
        name: [run for run in runs if run.group == name] for name in dict.fromkeys(r.group for r in runs)
    }
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

    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    draw(axes, groups)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    return path


def _lines(axes: Axes, groups: dict[str, list[Curves]], along: Callable[[Curves], Sequence[float]]) -> None:
    for place, (name, runs) in enumerate(groups.items()):
        label: str | None = name
        for run in runs:
            axes.plot(along(run), run.auc, color=f"C{place % 10}", alpha=0.7, marker="o", ms=3, label=label)
            label = None
    axes.set_ylabel("AUC on the evaluated data")
    axes.legend()


def _shaded(axes: Axes, groups: dict[str, list[Curves]], along: Callable[[Stretch], tuple[float, float]]) -> None:
    """The modes of a run that switched, behind the lines; of one group and seed alone, or nobody could read it."""
    switched = [runs for runs in groups.values() if any(run.switched for run in runs)]
    if len(switched) != 1:
        return
    modes = next(run.modes for run in switched[0] if run.switched)
    colours = {mode: f"C{place % 10}" for place, mode in enumerate(dict.fromkeys(each.mode for each in modes), 5)}
    for stretch in modes:
        low, high = along(stretch)
        axes.axvspan(low, high, color=colours[stretch.mode], alpha=0.12, lw=0)
        axes.annotate(
            stretch.mode, ((low + high) / 2, 1.0), xycoords=("data", "axes fraction"), ha="center", va="bottom", size=8
        )


def _auc_over_samples(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    _shaded(axes, groups, lambda stretch: stretch.samples)
    _lines(axes, groups, lambda run: run.samples)
    axes.set_xlabel("samples")


def _auc_over_time(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    _shaded(axes, groups, lambda stretch: stretch.seconds)
    _lines(axes, groups, lambda run: run.seconds)
    axes.set_xlabel("seconds of training")


def _eps(axes: Axes, groups: dict[str, list[Curves]]) -> None:
    stats = {name: stat([run.eps for run in runs if run.eps is not None]) for name, runs in groups.items()}
    found = {name: each for name, each in stats.items() if each is not None}
    axes.bar(
        list(found),
        [each.mean for each in found.values()],
        yerr=[each.sd or 0.0 for each in found.values()],
        color=[f"C{place % 10}" for place, name in enumerate(groups) if name in found],
        capsize=4,
    )
    axes.set_ylabel("samples per second, all workers")


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
    axes.legend()
