"""Rendering of a report: columns of cells, the sentences around them, and the output formats that are text.

Formats: a table for a terminal, Markdown, LaTeX (booktabs), CSV, JSON. In the table nothing is cut off; columns that do
not fit beside each other go into a table below. The HTML page is in html_report.py.
"""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
import json as json_module
import re
import shutil
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gbactl.report.columns import MISSING, SLOWDOWN, STANDARD, Cell, Column, cell, difference_cell, ratio_cell
from gbactl.report.compare import MARKS, SHORT_SECONDS, Group, Report
from gbactl.report.equivalence_tests import BETTER, SAME, UNDECIDED
from gbactl.report.failures_and_slowdowns import FAILURE_COLUMNS, FailureLine, SlowdownLine
from gbactl.report.paired_statistics import Difference, Stat, name_of, stat
from gbactl.report.run_curves import CensoredMedian, TimeLine
from gbactl.tracking.metrics_and_tags import FAILURE_KINDS

if TYPE_CHECKING:
    from rich.table import Table

MOST_NAMED = 3  # excluded runs that are named for each reason
MOST_VERDICTS = 3  # verdicts in the answer
P_VALUES = ("p", "p_holm", "p_same")
MEANINGS = {
    "eps": f"EPS{MARKS['eps']}: over less than {SHORT_SECONDS:g} s of training.",
    "ne": f"NE{MARKS['ne']}: a run's log loss is above that of always predicting the base rate (NE above 1).",
}


@dataclass(frozen=True)
class GridColumn:
    """Column of a rendered table: a title and one cell a row; `key`: the column identifies the row."""

    title: str
    cells: tuple[Cell, ...]
    key: bool = False


def grid(report: Report) -> list[GridColumn]:
    """Make the main table: group keys, n, compared metric, difference to the baseline, other columns."""
    groups = report.groups
    made = [*_keys(report, groups), _runs(groups)]
    for place, column in enumerate(report.columns):
        mark = MARKS.get(column.metrics[0], "")
        cells = tuple(cell(column, group.stats, mark if mark in group.marks else "") for group in groups)
        made.append(GridColumn(column.title, cells))
        if place == 0 and report.baseline is not None:
            cells = tuple(difference_cell(column, group.difference) for group in groups)
            made.append(GridColumn(f"vs {report.baseline}", cells))
        if column.metrics == ("eps",) and any(group.rate for group in groups):
            made.append(GridColumn(f"EPS / {report.baseline}", tuple(ratio_cell(group.rate) for group in groups)))
    return made


def _keys(report: Report, lines: Sequence[Group | SlowdownLine | FailureLine | TimeLine]) -> list[GridColumn]:
    """Make a column for each parameter by which the report groups runs, with each row's value of it."""
    return [GridColumn(name, tuple(Cell(each.key[i]) for each in lines), key=True) for i, name in enumerate(report.by)]


def _runs(lines: Sequence[Group | SlowdownLine | FailureLine]) -> GridColumn:
    """Make the column of the rows' numbers of runs."""
    return GridColumn("n", tuple(Cell(str(each.n)) for each in lines))


def _lines_grid(
    report: Report,
    lines: Sequence[SlowdownLine | FailureLine],
    title: str,
    names: Iterable[str],
    columns: Sequence[Column],
) -> list[GridColumn]:
    """Make the table of slow-downs or failures: group keys, process names, n, and statistics in `columns`."""
    made = [*_keys(report, lines), GridColumn(title, tuple(map(Cell, names)), key=True), _runs(lines)]
    return [*made, *(GridColumn(c.title, tuple(cell(c, each.stats) for each in lines)) for c in columns)]


def grids(report: Report) -> dict[str, list[GridColumn]]:
    """Make all tables of a report by title: the comparison and, if there are any, rounds, slow-downs, failures, times.

    Slow-downs: injected and observed factor and error of each faulty process. Failures: how often a process failed in a
    run, how soon it was replaced, and what that cost."""
    made = {"Comparison": grid(report)}
    if report.rounds:
        made["Days and epochs"] = _rounds_grid(report)
    if report.slowdowns:
        slowed = _lines_grid(report, report.slowdowns, "slowed", (each.workers for each in report.slowdowns), SLOWDOWN)
        errors = (MISSING if each.error is None else f"{each.error:+.1f}" for each in report.slowdowns)
        made["Slow-downs"] = [*slowed, GridColumn("error %", tuple(map(Cell, errors)))]
    if report.failures:
        failed = (f"{each.process} {each.failure}" for each in report.failures)
        made["Failures"] = _lines_grid(report, report.failures, "failed", failed, FAILURE_COLUMNS)
    if report.times:
        made[f"Time to {report.time_to}"] = _times_grid(report)
    return made


def _rounds_grid(report: Report) -> list[GridColumn]:
    """Make the table of a single run's days or epochs."""
    columns = [column for column in STANDARD if any(set(column.metrics) & set(found) for _, found in report.rounds)]
    made = [GridColumn("round", tuple(Cell(label) for label, _ in report.rounds), key=True)]
    for column in columns:
        cells = (cell(column, {name: stat([value]) for name, value in found.items()}) for _, found in report.rounds)
        made.append(GridColumn(column.title, tuple(cells)))
    return made


def _times_grid(report: Report) -> list[GridColumn]:
    """Make the time-to-AUC table: group keys, how many runs reached the AUC, median seconds and samples."""
    times = report.times
    made = _keys(report, times)
    made.append(GridColumn("reached", tuple(Cell(f"{each.reached} of {each.n}") for each in times)))
    for what, digits in (("seconds", 1), ("samples", 0)):
        cells = tuple(Cell(_censored(getattr(each, what), digits)) for each in times)
        made.append(GridColumn(f"{what} to {report.time_to}", cells))
    return made


def _censored(found: CensoredMedian, digits: int) -> str:
    short = 0 < found.value < 1 and digits  # of a virtual cluster, or of few samples
    return f"{'>' if found.bound else ''}{found.value:{'.2g' if short else f',.{digits}f'}}"


def _but_for(report: Report) -> str:
    """Format the clause of a sentence that names the keys in which paired runs may differ; "" if there are none."""
    if not report.varied:
        return ""
    return f", but for {', '.join(report.varied)}"


def answer(report: Report) -> str:
    """Write in one sentence what the comparison found; for runs without a baseline, the highest values."""
    judged = [(group, group.verdict) for group in report.groups if group.verdict]
    kept = [each for each in judged if each[1].kind in (SAME, BETTER)]
    title = report.columns[0].title
    paced = [(group.rate.mean, (group, verdict)) for group, verdict in kept if group.rate]
    if len(judged) > 1 and paced and report.columns[0].metrics != ("eps",):
        _, (fastest, verdict) = max(paced, key=lambda each: each[0])
        return (
            f"Against {report.baseline}: the fastest with the same {title} or a better one is {name_of(fastest.key)}, "
            f"{verdict.words}{_pace(report, fastest)}."
        )
    if len(judged) == 1:
        [(group, verdict)] = judged
        return f"Against {report.baseline}: {name_of(group.key)}: {verdict.words}{_pace(report, group)}."
    if judged:
        decided = [
            f"{name_of(group.key)} {verdict.words}{_pace(report, group).replace(';', ',')}"
            for group, verdict in judged if verdict.kind != UNDECIDED
        ]  # fmt: skip
        more = [f"{len(decided) - MOST_VERDICTS} more rows are decided"] if len(decided) > MOST_VERDICTS else []
        missing = "more seeds are" if report.margin is not None else "--margin or more seeds are"
        unsure = f"{len(judged) - len(decided)} of {len(judged)} rows are undecided, {missing} needed"
        rest = [unsure] if len(decided) < len(judged) else []
        return f"Against {report.baseline}: {'; '.join([*decided[:MOST_VERDICTS], *more, *rest])}."
    best: list[tuple[Column, Group]] = []
    for column in {column.metrics[0]: column for column in (report.columns[0], *STANDARD)}.values():
        with_values = [group for group in report.groups if group.stats.get(column.metrics[0])]
        if with_values and column.metrics in (report.columns[0].metrics, ("eps",)):
            best.append((column, max(with_values, key=lambda group: _mean(group, column.metrics[0]))))
    if not best:
        return "No run has figures that can be compared."
    texts = [f"{column.title} {column.write(_mean(group, column.metrics[0]))}" for column, group in best]
    if len(report.groups) == 1:
        return f"{name_of(report.groups[0].key)}: {', '.join(texts)}."
    each = (f"{what} ({name_of(group.key)})" for what, (_, group) in zip(texts, best, strict=True))
    return f"Highest: {'; '.join(each)}."


def _mean(group: Group, metric: str) -> float:
    found = group.stats[metric]
    assert found is not None
    return found.mean


def sentences(report: Report) -> list[str]:
    """Write the sentences below the table: how to read it, warnings, and which runs were left out and why."""
    said = []
    if any(len(group.seeds) > 1 for group in report.groups):
        said.append("±: standard deviation over the seeds of a row.")
    if any(group.difference for group in report.groups):
        said.append(
            f"vs {report.baseline}: {report.columns[0].title} minus {report.baseline}'s; ± is half of a 95 % t "
            f"interval over pairs of the same seed and otherwise the same configuration{_but_for(report)}."
        )
    if any(group.rate for group in report.groups):
        said.append(f"EPS / {report.baseline}: EPS over {report.baseline}'s, with the same interval.")
    said += _verdicts(report)
    if report.slowdowns:
        said.append(
            "slowed: how many times slower faults made a process, as injected and as the run shows it (seconds per "
            "sample, a server's per message, over those of processes without a fault)."
        )
    if report.failures:
        said.append(
            "failed: kind of a process's failure; seconds from the failure (if it was not injected, from the process's "
            "last message) until it was noticed, until a successor was ready, until the successor did useful work."
        )
    if report.times:
        said.append(
            f"to {report.time_to}: until a run's first evaluation with at least this AUC, in seconds of training (of a "
            "simulated cluster: virtual ones), median over the runs. A run that never reached it counts as longer "
            "than all that did; > is a lower bound."
        )
    marks = {mark for group in report.groups for mark in group.marks}
    said += [meaning for metric, meaning in MEANINGS.items() if MARKS[metric] in marks]
    return [*said, *report.notes, *left_out(report)]


def _verdicts(report: Report) -> list[str]:
    """Write a sentence with the verdict on each row, and a sentence that names the tests."""
    judged = [(group, group.verdict) for group in report.groups if group.verdict]
    tested = sum(verdict.p is not None for _, verdict in judged)
    said = [f"{name_of(g.key)}: {verdict.words}{_pace(report, g)}." for g, verdict in judged if verdict.p is not None]
    untested = [name_of(group.key) for group, verdict in judged if verdict.p is None]
    if untested:
        said.append(f"Cannot tell, one seed: {'; '.join(untested)}.")
    if tested:
        same = "" if report.margin is None else "same: TOST at 5 %; "
        corrected = f" with Holm's correction over {tested} rows" if tested > 1 else ""
        said.append(f"{same}a difference: paired t test at 5 %{corrected}.")
    return said


def _pace(report: Report, group: Group) -> str:
    """Format the part of a sentence about a row's throughput; "" if it is unknown or is the compared metric."""
    if group.rate is None or report.columns[0].metrics == ("eps",):
        return ""
    return f"; EPS {ratio_cell(group.rate).line} times {report.baseline}'s"


def left_out(report: Report) -> list[str]:
    """Write one sentence for each reason for which runs were left out."""
    reasons: dict[str, list[str]] = defaultdict(list)
    for each in report.left_out:
        reason = "repeated by a newer run" if each.reason.startswith("repeated by") else each.reason
        reasons[reason].append(each.run)
    return [f"Left out, {reason}: {_first_names(runs)}." for reason, runs in sorted(reasons.items())]


def _first_names(runs: list[str]) -> str:
    rest = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    return ", ".join(runs[:MOST_NAMED]) + rest


FORMATS = ("table", "md", "csv", "tex", "json")
_GAP = 2
_KEY_WIDTH = 24  # width of a key's cell; longer text wraps
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
    "<": r"\textless{}",  # in OT1, the default encoding, these three are other signs
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
_MINUS = re.compile(r"(?<![\w.,])-(?=\.?\d)")  # a sign, not a hyphen


def render(report: Report, form: str, width: int = 80, colour: bool = False) -> str:
    """Render the report in one of FORMATS; `width` and `colour` apply to "table" only."""
    if form == "table":
        return text(report, width, colour)
    renderers = {"md": markdown, "csv": csv, "tex": tex, "json": json}
    return renderers[form](report)


def on_terminal() -> tuple[int, bool]:
    """Return the width of text on standard output, and whether that is a terminal; a pipe takes 80 columns."""
    terminal = sys.stdout.isatty()
    return max(80, shutil.get_terminal_size().columns) if terminal else 80, terminal


def for_stdout(text: str) -> str:
    """Replace each ± by +- where the encoding of standard output has none."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return text.replace("  ±", " +-").replace("±", "+-")  # a column of a table has a gap before it
    return text


def stderr_sentences(report: Report, form: str) -> list[str]:
    """Return the report's sentences that a format cannot include, to be printed on stderr."""
    return sentences(report) if form == "csv" else []


def text(report: Report, width: int = 80, colour: bool = False) -> str:
    """Render the report as a plain-text table with lines of at most `width` characters.

    A key, title or word that is wider stays whole, as one may have to copy it."""
    from rich.console import Console

    out = io.StringIO()
    # in a notebook, Rich displays what it prints, unless force_jupyter is False
    console = Console(
        file=out, width=1000, force_terminal=colour, force_jupyter=False, no_color=not colour, highlight=False,
        markup=False, emoji=False,
    )  # fmt: skip
    for columns in grids(report).values():
        for block in _blocks(columns, width):
            console.print(_table(block))
            console.print()
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    if not colour:  # a pipe may take ASCII only
        lines = [line.replace("\u2500", "-") for line in lines]
    for sentence in sentences(report):
        lines += textwrap.wrap(sentence, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).strip("\n") + "\n"


def _title(column: GridColumn) -> str:
    lines = [line for cell in column.cells for line in _stacked(cell, column.key)]
    widest = max(len(line) for line in (*lines, *column.title.split()))
    return "\n".join(textwrap.wrap(column.title, widest))


def _stacked(cell: Cell, key: bool) -> list[str]:
    """Split a cell into lines: the differences in a key one per line, or a value above its spread."""
    if key:
        return [line for part in cell.value.split(", ") for line in textwrap.wrap(part, _KEY_WIDTH) or [""]]
    return [cell.value, cell.spread] if cell.spread else [cell.value]


def _width(column: GridColumn) -> int:
    lines = [*_title(column).splitlines(), *(line for cell in column.cells for line in _stacked(cell, column.key))]
    return max(len(line) for line in lines) + _GAP


def _blocks(columns: list[GridColumn], width: int) -> list[list[GridColumn]]:
    """Split a table's columns into blocks that are at most `width` wide; every block begins with the key columns."""
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
    """Render the report as Markdown: the answer, pipe tables and a list of sentences."""
    first, *more = grids(report).items()
    blocks = [[f"**{answer(report)}**"], _pipes(first[1])]
    blocks += [[f"{title}:", "", *_pipes(columns)] for title, columns in more]
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
    """Render the report as LaTeX: one booktabs tabular for each table, and answer and sentences as comments."""
    blocks = ["\n".join((f"% {title}", *_tabular(columns))) for title, columns in grids(report).items()]
    said = [f"% {sentence}" for sentence in (answer(report), *sentences(report))]
    return "\n".join(["\n\n".join(blocks), *said]) + "\n"


def _tabular(columns: list[GridColumn]) -> list[str]:
    head, *body = _rows(columns)
    shape = "".join("l" if column.key else "r" for column in columns)
    begin = [rf"\begin{{tabular}}{{{shape}}}", r"\toprule", _tex_line(head), r"\midrule"]
    return [*begin, *(_tex_line(row) for row in body), r"\bottomrule", r"\end{tabular}"]


def _tex_line(row: list[str]) -> str:
    cells = (_MINUS.sub("$-$", tex_escape(text).replace("±", r"$\pm$")) for text in row)
    return " & ".join(cells) + r" \\"


def csv(report: Report) -> str:
    """Render the report as CSV, one row a group, with unrounded numbers.

    Numbers are means, deviations, difference, half-width and number of pairs; marks, p values and verdict follow."""
    metrics = [metric for column in report.columns for metric in column.metrics]
    out = io.StringIO()
    writer = csv_module.writer(out, lineterminator="\n")
    names = [f"{metric}_{part}" for metric in metrics for part in ("mean", "sd")]
    differences = (f"{report.on}_difference", f"{report.on}_difference_half", "pairs")
    writer.writerow(
        [*report.by, "n", *differences, *names, "marks", *P_VALUES, "verdict", "eps_ratio", "eps_ratio_half"]
    )
    for group in report.groups:
        first, last = (group.n, *_interval(group.difference)), (*_verdict(group), *_interval(group.rate)[:2])
        writer.writerow([*group.key, *first, *_numbers(group.stats, metrics), group.marks, *last])
    for lines, write in ((report.slowdowns, _slowdowns), (report.failures, _failures), (report.times, _times)):
        if lines:
            out.write("\n")
            write(report, writer)
    return out.getvalue()


def _times(report: Report, writer: Any) -> None:
    """Write the time-to-AUC table to the CSV output; the `bound` columns are 1 where a median is a lower bound."""
    writer.writerow([*report.by, "auc", "n", "reached", "seconds", "seconds_bound", "samples", "samples_bound"])
    for each in report.times:
        medians = [part for found in (each.seconds, each.samples) for part in (found.value, int(found.bound))]
        writer.writerow([*each.key, each.auc, each.n, each.reached, *medians])


def _slowdowns(report: Report, writer: Any) -> None:
    """Write the slow-down table of the report to the CSV output."""
    names = ("injected_mean", "injected_sd", "observed_mean", "observed_sd", "error_percent")
    writer.writerow([*report.by, "slowed", "n", *names])
    for each in report.slowdowns:
        numbers = _numbers(each.stats, ["injected", "observed"])
        writer.writerow([*each.key, each.workers, each.n, *numbers, "" if each.error is None else each.error])


def _failures(report: Report, writer: Any) -> None:
    """Write the failure table to the CSV output."""
    kinds = (f"{kind}_{part}" for kind in FAILURE_KINDS for part in ("mean", "sd"))
    writer.writerow([*report.by, "process", "failure", "n", *kinds])
    for each in report.failures:
        writer.writerow([*each.key, each.process, each.failure, each.n, *_numbers(each.stats, list(FAILURE_KINDS))])


def _interval(found: Difference | None) -> list[object]:
    """Return the mean difference, half the width of its interval, and the number of pairs."""
    return ["", "", 0] if found is None else [found.mean, "" if found.half is None else found.half, found.n]


def _verdict(group: Group) -> list[object]:
    found = group.verdict
    p_values = [None if found is None else getattr(found, name) for name in P_VALUES]
    return [*("" if p is None else p for p in p_values), "" if found is None else found.words]


def _numbers(stats: Mapping[str, Stat | None], metrics: list[str]) -> list[object]:
    numbers: list[object] = []
    for metric in metrics:
        stat = stats.get(metric)
        numbers += ["", ""] if stat is None else [stat.mean, "" if stat.sd is None else stat.sd]
    return numbers


def json(report: Report) -> str:
    """Render the report as JSON with all its fields."""
    return json_module.dumps(dataclasses.asdict(report), indent=2) + "\n"
