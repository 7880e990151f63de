"""Figures of studies: heat maps. For studies' scripts; matplotlib is imported when a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Values = Mapping[tuple[str, str], float]  # by row and column; a missing one stays empty
Places = tuple[Sequence[str], Sequence[str]]  # names of the rows and of the columns, in order


def new_figure(width: float, height: float) -> Any:
    """Make a figure of so many inches that needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def heat(axes: Any, values: Values, places: Places, text: Callable[[float], str], **colours: Any) -> Any:
    """Draw a heat map with its numbers in the cells; return the image, for a colour bar. `colours`: norm and cmap."""
    (rows, columns), nan = places, float("nan")
    grid = [[values.get((row, column), nan) for column in columns] for row in rows]
    image = axes.imshow(grid, aspect="auto", **colours)
    for y, row in enumerate(grid):
        for x, value in enumerate(row):
            axes.text(x, y, "" if value != value else text(value), ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    return image
