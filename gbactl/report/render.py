"""Rendering of a report in one of the formats: a table for a terminal, Markdown, LaTeX (booktabs), HTML, CSV, JSON.

In the table nothing is cut off; columns that do not fit beside each other go into a table below.
"""

from __future__ import annotations

import csv as csv_module
import dataclasses
import html as html_module
import io
import json as json_module
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gbactl.report.columns import Cell
from gbactl.report.compare import Group, Report
from gbactl.report.grid import GridColumn, grids, sentences
from gbactl.report.stats import Stat
from gbactl.tracking.summary import FAILURE_KINDS

if TYPE_CHECKING:
    from rich.table import Table

FORMATS = ("table", "md", "csv", "tex", "html", "json")
_GAP = 2
_KEY_WIDTH = 24  # of a cell that identifies the line; longer text wraps
_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_STYLE = (
    "body{font-family:sans-serif}table{border-collapse:collapse}"
    "th,td{padding:.3em .8em;text-align:right;border-bottom:1px solid #ccc}"
)


def render(report: Report, form: str, width: int = 80, colour: bool = False) -> str:
    """Render the report as text in one format; `width` and `colour` are for the table alone."""
    if form == "table":
        return text(report, width, colour)
    renderers = {"md": markdown, "csv": csv, "tex": tex, "html": html, "json": json}
    return renderers[form](report)


def beside(report: Report, form: str) -> list[str]:
    """Sentences that have no place in the format and belong on stderr."""
    return sentences(report) if form == "csv" else []


def text(report: Report, width: int = 80, colour: bool = False) -> str:
    """Render the report as a table of at most `width` characters a line (a key or title that is wider stays whole)."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=1000, force_terminal=colour, no_color=not colour, highlight=False)
    for columns in grids(report):
        for block in _blocks(columns, width):
            console.print(_table(block))
            console.print()
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    if not colour:  # a pipe may take ASCII only
        lines = [line.replace("\u2500", "-") for line in lines]
    for sentence in sentences(report):
        lines += textwrap.wrap(sentence, width, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines).strip("\n") + "\n"


def _title(column: GridColumn) -> str:
    lines = [line for cell in column.cells for line in _stacked(cell, column.key)]
    widest = max(len(line) for line in (*lines, *column.title.split()))
    return "\n".join(textwrap.wrap(column.title, widest))


def _stacked(cell: Cell, key: bool) -> list[str]:
    """Lines of a cell: a key's differences one below the other, or a value above its spread."""
    if key:
        return [line for part in cell.value.split(", ") for line in textwrap.wrap(part, _KEY_WIDTH) or [""]]
    return [cell.value, cell.spread] if cell.spread else [cell.value]


def _width(column: GridColumn) -> int:
    lines = [*_title(column).splitlines(), *(line for cell in column.cells for line in _stacked(cell, column.key))]
    return max(len(line) for line in lines) + _GAP


def _blocks(columns: list[GridColumn], width: int) -> list[list[GridColumn]]:
    """Split columns into blocks that fit side by side; every block begins with the keys."""
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
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(_title(column), justify="left" if column.key else "right", no_wrap=True, overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*("\n".join(_stacked(cell, column.key)) for cell, column in zip(row, columns, strict=True)))
    return table


def _rows(columns: list[GridColumn]) -> list[list[str]]:
    body = zip(*(column.cells for column in columns), strict=True)
    return [[column.title for column in columns], *([cell.line for cell in row] for row in body)]


def markdown(report: Report) -> str:
    """Render as Markdown: pipe tables and a list of sentences."""
    blocks = [_pipes(columns) for columns in grids(report)]
    said = [f"- {sentence}" for sentence in sentences(report)]
    return "\n\n".join("\n".join(block) for block in [*blocks, *([said] if said else [])]) + "\n"


def _pipes(columns: list[GridColumn]) -> list[str]:
    head, *body = [[text.replace("|", r"\|") for text in row] for row in _rows(columns)]
    rule = ["---" if column.key else "---:" for column in columns]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def tex_escape(text: str) -> str:
    """Escape LaTeX's special characters."""
    return "".join(_TEX.get(character, character) for character in text)


def tex(report: Report) -> str:
    """Render as LaTeX: one booktabs tabular for each table, separated by a blank line; the sentences as comments."""
    blocks = ["\n".join(_tabular(columns)) for columns in grids(report)]
    said = [f"% {sentence}" for sentence in sentences(report)]
    return "\n".join(["\n\n".join(blocks), *said]) + "\n"


def _tabular(columns: list[GridColumn]) -> list[str]:
    head, *body = _rows(columns)
    shape = "".join("l" if column.key else "r" for column in columns)
    begin = [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", _tex_line(head), r"\midrule"]
    return [*begin, *(_tex_line(row) for row in body), r"\bottomrule", r"\end{tabular}"]


def _tex_line(row: list[str]) -> str:
    return " & ".join(tex_escape(text).replace("+-", r"$\pm$") for text in row) + r" \\"


def html(report: Report) -> str:
    """Render as a complete HTML page."""
    tables = [line for columns in grids(report) for line in _html_table(columns)]
    said = [f"<li>{html_module.escape(sentence)}</li>" for sentence in sentences(report)]
    page = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>gbactl report</title>',
        f"<style>{_STYLE}</style></head>",
        "<body>",
        *tables,
    ]
    return "\n".join([*page, *(["<ul>", *said, "</ul>"] if said else []), "</body></html>"]) + "\n"


def _html_table(columns: list[GridColumn]) -> list[str]:
    head, *body = [[html_module.escape(text) for text in row] for row in _rows(columns)]
    begin = ["<table>", f"<thead>{_html_line(head, 'th')}</thead>", "<tbody>"]
    return [*begin, *(_html_line(row, "td") for row in body), "</tbody></table>"]


def _html_line(row: list[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in row)}</tr>"


def csv(report: Report) -> str:
    """Render as CSV, one line a group, numbers in full: means, deviations, difference, half-width, pairs, marks."""
    metrics = [metric for column in report.columns for metric in column.metrics]
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    names = [f"{metric}_{part}" for metric in metrics for part in ("mean", "sd")]
    differences = (f"{report.on}_difference", f"{report.on}_difference_half", "pairs")
    writer.writerow([*report.by, "n", *differences, *names, "marks"])
    for group in report.groups:
        writer.writerow([*group.key, group.n, *_difference(group), *_numbers(group.stats, metrics), group.marks])
    if report.slowdowns:
        out.write("\n")
        _slowdowns(report, writer)
    if report.failures:
        out.write("\n")
        _failures(report, writer)
    return out.getvalue()


def _slowdowns(report: Report, writer: Any) -> None:
    """Write the slow-down table as the second one, after an empty line."""
    names = ("injected_mean", "injected_sd", "observed_mean", "observed_sd", "error_percent")
    writer.writerow([*report.by, "slowed", "n", *names])
    for each in report.slowdowns:
        numbers = _numbers({"injected": each.injected, "observed": each.observed}, ["injected", "observed"])
        writer.writerow([*each.key, each.workers, each.n, *numbers, "" if each.error is None else each.error])


def _failures(report: Report, writer: Any) -> None:
    """Write the failure table as the third one."""
    kinds = (f"{kind}_{part}" for kind in FAILURE_KINDS for part in ("mean", "sd"))
    writer.writerow([*report.by, "process", "failure", "n", *kinds])
    for each in report.failures:
        writer.writerow([*each.key, each.process, each.failure, each.n, *_numbers(each.stats, list(FAILURE_KINDS))])


def _difference(group: Group) -> list[object]:
    found = group.difference
    return ["", "", 0] if found is None else [found.mean, "" if found.half is None else found.half, found.n]


def _numbers(stats: Mapping[str, Stat | None], metrics: list[str]) -> list[object]:
    numbers: list[object] = []
    for metric in metrics:
        stat = stats.get(metric)
        numbers += ["", ""] if stat is None else [stat.mean, "" if stat.sd is None else stat.sd]
    return numbers


def json(report: Report) -> str:
    """Render as JSON, with every field of the report."""
    return json_module.dumps(dataclasses.asdict(report), indent=2) + "\n"
