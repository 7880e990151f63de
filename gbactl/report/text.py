"""The table for a terminal: nothing is cut off; what does not fit beside goes into a table below."""

from __future__ import annotations

import io
import textwrap

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from gbactl.report.columns import Cell
from gbactl.report.compare import Report
from gbactl.report.grid import GridColumn, grids, sentences

_GAP = 2
_KEY_WIDTH = 24  # of a cell that says which line this is; what is longer goes on below


def text(report: Report, width: int = 80, colour: bool = False) -> str:
    """The report in lines of at most `width` characters (a key or title that is wider stays whole)."""
    out = io.StringIO()
    console = Console(file=out, width=1000, force_terminal=colour, no_color=not colour, highlight=False)
    for columns in grids(report):
        for block in _blocks(columns, width):
            console.print(_table(block))
            console.print()
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    if not colour:  # a pipe may not take more than ASCII
        lines = [line.replace("\u2500", "-") for line in lines]
    for sentence in sentences(report):
        lines += textwrap.wrap(sentence, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines).strip("\n") + "\n"


def _title(column: GridColumn) -> str:
    lines = [line for cell in column.cells for line in _stacked(cell, column.key)]
    widest = max(len(line) for line in (*lines, *column.title.split()))
    return "\n".join(textwrap.wrap(column.title, widest))


def _stacked(cell: Cell, key: bool) -> list[str]:
    """A cell's lines: what differs one below the other, or a value above its spread."""
    if key:
        return [line for part in cell.value.split(", ") for line in textwrap.wrap(part, _KEY_WIDTH) or [""]]
    return [cell.value, cell.spread] if cell.spread else [cell.value]


def _width(column: GridColumn) -> int:
    lines = [*_title(column).splitlines(), *(line for cell in column.cells for line in _stacked(cell, column.key))]
    return max(len(line) for line in lines) + _GAP


def _blocks(columns: list[GridColumn], width: int) -> list[list[GridColumn]]:
    """Columns side by side as far as they fit; every block begins with the keys."""
    keys = [column for column in columns if column.key]
    start = sum(_width(column) for column in keys)
    blocks, used = [list(keys)], start
    for column in columns[len(keys) :]:
        if used + _width(column) - _GAP > width and len(blocks[-1]) > len(keys):
            blocks.append(list(keys))
            used = start
        blocks[-1].append(column)
        used += _width(column)
    return blocks


def _table(columns: list[GridColumn]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(
            _title(column), justify="left" if column.key else "right", no_wrap=True, overflow="fold"
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*("\n".join(_stacked(cell, column.key)) for cell, column in zip(row, columns, strict=True)))
    return table
