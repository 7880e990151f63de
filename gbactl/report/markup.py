"""The table as Markdown, LaTeX (booktabs), HTML, CSV and JSON. Text in, text out."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import html as html_module
import io
import json as json_module

from gbactl.report.compare import Group, Report
from gbactl.report.grid import grid, sentences

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


def _rows(report: Report) -> list[list[str]]:
    columns = grid(report)
    body = zip(*(column.cells for column in columns), strict=True)
    return [[column.title for column in columns], *([cell.line for cell in row] for row in body)]


def markdown(report: Report) -> str:
    """A pipe table and a list of sentences."""
    head, *body = [[text.replace("|", r"\|") for text in row] for row in _rows(report)]
    rule = ["---"] * len(report.by) + ["---:"] * (len(head) - len(report.by))
    lines = [f"| {' | '.join(row)} |" for row in (head, rule, *body)]
    said = [f"- {sentence}" for sentence in sentences(report)]
    return "\n".join([*lines, *([""] if said else []), *said]) + "\n"


def tex_escape(text: str) -> str:
    """Text in which LaTeX finds no commands."""
    return "".join(_TEX.get(character, character) for character in text)


def tex(report: Report) -> str:
    """A booktabs tabular; the sentences as comments."""
    head, *body = _rows(report)
    shape = "l" * len(report.by) + "r" * (len(head) - len(report.by))
    body_lines = [_tex_line(row) for row in body]
    said = [f"% {sentence}" for sentence in sentences(report)]
    lines = [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", _tex_line(head), r"\midrule"]
    return "\n".join([*lines, *body_lines, r"\bottomrule", r"\end{tabular}", *said]) + "\n"


def _tex_line(row: list[str]) -> str:
    return " & ".join(tex_escape(text).replace("+-", r"$\pm$") for text in row) + r" \\"


def html(report: Report) -> str:
    """A page of its own."""
    head, *body = [[html_module.escape(text) for text in row] for row in _rows(report)]
    lines = [_html_line(row, "td") for row in body]
    said = [f"<li>{html_module.escape(sentence)}</li>" for sentence in sentences(report)]
    page = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"><title>gbactl report</title>',
        f"<style>{_STYLE}</style></head>",
        "<body><table>",
        f"<thead>{_html_line(head, 'th')}</thead>",
        "<tbody>",
        *lines,
        "</tbody></table>",
    ]
    return "\n".join([*page, *(["<ul>", *said, "</ul>"] if said else []), "</body></html>"]) + "\n"


def _html_line(row: list[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in row)}</tr>"


def csv(report: Report) -> str:
    """One line a group, numbers in full: <metric>_mean and _sd, difference, half-width and its pairs."""
    metrics = [metric for column in report.columns for metric in column.metrics]
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    names = [f"{metric}_{part}" for metric in metrics for part in ("mean", "sd")]
    writer.writerow([*report.by, "n", "auc_difference", "auc_difference_half", "pairs", *names])
    for group in report.groups:
        writer.writerow([*group.key, group.n, *_difference(group), *_numbers(group, metrics)])
    return out.getvalue()


def _difference(group: Group) -> list[object]:
    found = group.difference
    return ["", "", 0] if found is None else [found.mean, "" if found.half is None else found.half, found.n]


def _numbers(group: Group, metrics: list[str]) -> list[object]:
    numbers: list[object] = []
    for metric in metrics:
        stat = group.stats.get(metric)
        numbers += ["", ""] if stat is None else [stat.mean, "" if stat.sd is None else stat.sd]
    return numbers


def json(report: Report) -> str:
    """Everything, as it is."""
    return json_module.dumps(dataclasses.asdict(report), indent=2) + "\n"
