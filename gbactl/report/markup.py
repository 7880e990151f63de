"""The table as Markdown, LaTeX (booktabs), HTML, CSV and JSON. Text in, text out."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import html as html_module
import io
import json as json_module
from collections.abc import Mapping
from typing import Any

from gbactl.report.compare import Group, Report
from gbactl.report.grid import GridColumn, grids, sentences
from gbactl.report.stats import Stat
from gbactl.tracking.summary import FAILURE_KINDS

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


def _rows(columns: list[GridColumn]) -> list[list[str]]:
    body = zip(*(column.cells for column in columns), strict=True)
    return [[column.title for column in columns], *([cell.line for cell in row] for row in body)]


def markdown(report: Report) -> str:
    """Pipe tables and a list of sentences."""
    blocks = [_pipes(columns) for columns in grids(report)]
    said = [f"- {sentence}" for sentence in sentences(report)]
    return "\n\n".join("\n".join(block) for block in [*blocks, *([said] if said else [])]) + "\n"


def _pipes(columns: list[GridColumn]) -> list[str]:
    head, *body = [[text.replace("|", r"\|") for text in row] for row in _rows(columns)]
    rule = ["---" if column.key else "---:" for column in columns]
    return [f"| {' | '.join(row)} |" for row in (head, rule, *body)]


def tex_escape(text: str) -> str:
    """Text in which LaTeX finds no commands."""
    return "".join(_TEX.get(character, character) for character in text)


def tex(report: Report) -> str:
    """A booktabs tabular a table, a blank line between; the sentences as comments."""
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
    """A page of its own."""
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
    """One line a group, numbers in full: <metric>_mean and _sd, difference, half-width and its pairs, marks."""
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
    """The second table, after an empty line."""
    names = ("injected_mean", "injected_sd", "observed_mean", "observed_sd", "error_percent")
    writer.writerow([*report.by, "slowed", "n", *names])
    for each in report.slowdowns:
        numbers = _numbers({"injected": each.injected, "observed": each.observed}, ["injected", "observed"])
        writer.writerow([*each.key, each.workers, each.n, *numbers, "" if each.error is None else each.error])


def _failures(report: Report, writer: Any) -> None:
    """The third table."""
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
    """Everything, as it is."""
    return json_module.dumps(dataclasses.asdict(report), indent=2) + "\n"
