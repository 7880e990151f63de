"""HTML report in one file that needs no network: the answer, the table, charts, what was left out, how to run it again.

The page is a Jinja template (report.html.j2) around SVG charts, which can be written as files, too. Colours follow the
reader's theme, light or dark.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.errors import GbactlError
from gbactl.report import charts
from gbactl.report.charts import Bar, Chart, Line, Mark
from gbactl.report.columns import ratio_cell
from gbactl.report.compare import Group, Report
from gbactl.report.equivalence_tests import scale_of
from gbactl.report.paired_statistics import Difference, Key, Stat, interval_of
from gbactl.report.render import answer, grids, left_out, sentences
from gbactl.report.run_curves import Curves, TrainingPoint, shares
from gbactl.report.slow_workers import phase_shares, slow_sentence
from gbactl.tracking.mlflow_connection import Run

CELLS = 30  # points of a training curve, each the mean over its part of the axis
MOST_STALENESS = 60  # steps of the histogram
SLOW = 0.75  # share of the usual speed below which a worker's strip is shown
COLOURS = 16  # eight colours; the second eight are dashed
KINDS = {"same": "same", "better": "better", "higher": "better", "worse": "worse", "lower": "worse"}
Along = Callable[[TrainingPoint], float]


def page(
    report: Report, curves: Mapping[Key, Sequence[Curves]], runs: Sequence[Run] = (), title: str = "gbactl"
) -> str:
    """Render a report as a page; `curves`: of the runs of each group, `runs`: all runs that were read."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("gbactl.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    names, colours, drawn = _lines(report, curves)
    tables = grids(report)
    found: str = env.get_template("report.html.j2").render(
        title=title, answer=_signed(answer(report)), report=report,
        groups=[(names[key], colours[key]) for key in names],
        table=_table(report, tables.pop("Comparison"), colours), sentences=list(map(_signed, sentences(report))),
        tables=[{"title": title, **_plain(table)} for title, table in tables.items()],
        figures=_figures(report, drawn, names, colours), strips=_strips(drawn, names), phases=_phases(drawn, names),
        left_out=left_out(report),
        commands=again([run for run in runs if any(run.run_id in group.runs for group in report.groups)]),
    )  # fmt: skip
    return found.encode("ascii", "xmlcharrefreplace").decode()  # also for a pipe of another encoding


def _lines(
    report: Report, curves: Mapping[Key, Sequence[Curves]]
) -> tuple[dict[Key, str], dict[Key, int], dict[Key, Sequence[Curves]]]:
    """Give the report's lines their names, colour numbers and curves."""
    names = {group.key: _name(group.key) for group in report.groups}
    return names, {k: n % COLOURS for n, k in enumerate(names)}, {key: curves.get(key, ()) for key in names}


def write_figures(report: Report, curves: Mapping[Key, Sequence[Curves]], folder: Path) -> list[Path]:
    """Write the page's charts as SVG files named after their titles, as auc-over-samples.svg.

    Raises GbactlError if the folder cannot be written."""
    names, colours, drawn = _lines(report, curves)
    style = files("gbactl.report").joinpath("charts.css").read_text(encoding="utf-8")
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in _figures(report, drawn, names, colours):
            written.append(folder / f"{re.sub('[^a-z0-9]+', '-', chart.title.lower()).strip('-')}.svg")
            written[-1].write_text(chart.file(style, [(names[key], colours[key]) for key in names]), encoding="utf-8")
    except OSError as error:
        why = f"The plots cannot be written to {folder} ({error.strerror})"
        raise GbactlError(f"{why}; type --plots with another folder.") from error
    return written


def _signed(text: str) -> str:
    return text.replace("+-", "±")


def _name(key: Key) -> str:
    return ", ".join(filter(None, key))


# -- the table ----------------------------------------------------------------------------------------------


def _table(report: Report, columns: Sequence[Any], colours: Mapping[Key, int]) -> dict[str, Any]:
    """Lay the main table out: headings, and rows of cells with their sort value, hover, and interval as a picture."""
    pictures = {
        f"vs {report.baseline}": _intervals([g.difference for g in report.groups], 0.0, _margin(report)),
        f"EPS / {report.baseline}": _intervals([g.rate for g in report.groups], 1.0, None),
    }
    rows = []
    for place, group in enumerate(report.groups):
        cells = [
            {"value": column.cells[place].value, "spread": _signed(column.cells[place].spread),
             "key": column.key, "picture": pictures.get(column.title, {}).get(place, "")}
            for column in columns
        ]  # fmt: skip
        rows.append({"cells": cells, "colour": colours[group.key], "verdict": _verdict(group)})
    return {"headings": [(column.title, column.key) for column in columns], "rows": rows}


def _margin(report: Report) -> float | None:
    """Return the margin on the scale of the difference's cell; None where the margin is a share of the baseline."""
    return None if scale_of(report.columns[0], report.margin).relative else report.margin


def _intervals(found: Sequence[Difference | None], neutral: float, margin: float | None) -> dict[int, str]:
    there = {place: each for place, each in enumerate(found) if each is not None}
    ends = [abs(each.mean + sign * (each.half or 0.0) - neutral) for each in there.values() for sign in (-1, 1)]
    most = 1.05 * max([*ends, 2.0 * (margin or 0.0)], default=1.0)
    return {
        place: charts.interval(
            each.mean - (each.half or 0.0), each.mean, each.mean + (each.half or 0.0), most, neutral, margin
        )
        for place, each in there.items()
    }


def _verdict(group: Group) -> tuple[str, str, str]:
    """Return a verdict as (class, short text, whole text); empty texts where there is none."""
    if group.verdict is None:
        return "", "", ""
    words = group.verdict.words
    kind = KINDS.get(words.split()[0], "unknown")
    return kind, "cannot tell" if kind == "unknown" else words.split()[0], words


def _plain(columns: Sequence[Any]) -> dict[str, Any]:
    rows = zip(*(column.cells for column in columns), strict=True)
    text = [
        [(cell.line.replace("+-", "±"), column.key) for cell, column in zip(row, columns, strict=True)] for row in rows
    ]
    return {"headings": [(column.title, column.key) for column in columns], "rows": text}


# -- the charts ---------------------------------------------------------------------------------------------


def _figures(
    report: Report, drawn: Mapping[Key, Sequence[Curves]], names: Mapping[Key, str], colours: Mapping[Key, int]
) -> list[Chart]:
    over = (
        ("samples", "samples", lambda point: point.samples),
        ("seconds", "seconds of training", lambda p: p.seconds),
    )
    made = list[Chart | None]()
    for field, x_title, along in over:
        lines = [_line(names[key], colours[key], runs, along, "auc") for key, runs in drawn.items()]
        lines += [_dots(names[key], colours[key], runs, field) for key, runs in drawn.items()]
        marks = [mark for key, runs in drawn.items() for mark in _marks(colours[key], runs, field)]
        write_x = _writer(x_title)
        made.append(charts.curves(f"AUC over {field}", lines, marks, x_title, write_x, lambda auc: f"{auc:.4f}"))
    losses = [_line(names[key], colours[key], runs, lambda point: point.samples, "loss") for key, runs in drawn.items()]
    made.append(
        charts.curves("Training loss over samples", losses, [], "samples", _writer("samples"), lambda v: f"{v:.4f}")
    )
    histograms = {names[key]: (colours[key], _cut(shares(runs))) for key, runs in drawn.items()}
    if len(report.groups) > 1:
        made.append(charts.bars("Samples per second (EPS)", _eps(report, names, colours), "samples per second"))
        times = _times(report, names, colours)
        made.append(charts.bars(f"Seconds of training to {report.time_to}", times, "seconds of training"))
    made.append(charts.histograms("Staleness of the gradients", histograms, "global steps from pull to application"))
    kinds = list(dict.fromkeys(kind for runs in drawn.values() for run in runs for kind in run.bytes_per_sample))
    axis = f"bytes per sample; from dark to light: {', '.join(kinds)}"
    made.append(charts.bars("Bytes sent per sample", _bytes(drawn, names, colours, kinds), axis, shades=True))
    return [chart for chart in made if chart]


def _samples(point: TrainingPoint) -> float:
    return point.samples


def _seconds(point: TrainingPoint) -> float:
    return point.seconds


def _writer(unit: str) -> Callable[[float], str]:
    return lambda value: f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def binned(points: Sequence[tuple[float, float | None, float]], edges: Sequence[float]) -> list[float]:
    """Average a curve within cells: point i is the mean from x[i - 1] to x[i]; nan where a cell has no value.

    points: (x, value or None, weight), ascending; edges: the cells' n + 1 ends. Returns n values."""
    known = [(x, value, weight) for x, value, weight in points if value is not None and math.isfinite(value)]
    at = [0.0, *(x for x, _, _ in known)]
    sums = np.cumsum([0.0, *(value * weight for _, value, weight in known)])
    weights = np.cumsum([0.0, *(weight for _, _, weight in known)])
    sums, weights = np.diff(np.interp(edges, at, sums)), np.diff(np.interp(edges, at, weights))
    with np.errstate(invalid="ignore", divide="ignore"):
        return list(np.where(weights > 0, sums / weights, np.nan))


def _weighted(training: Sequence[TrainingPoint], along: Along, what: str) -> list[tuple[float, float | None, float]]:
    """List a curve's points (x, value, samples since the point before)."""
    before = [0.0, *(point.samples for point in training)]
    return [(along(p), getattr(p, what), p.samples - low) for p, low in zip(training, before, strict=False)]


def _line(name: str, colour: int, runs: Sequence[Curves], along: Along, what: str) -> Line:
    """Make a group's mean training curve over its seeds, with their range, up to the end of the shortest run."""
    there = [run.training for run in runs if any(getattr(point, what) is not None for point in run.training)]
    if not there:
        return Line(name, colour, ())
    end, cells = min(along(each[-1]) for each in there), min(CELLS, max(map(len, there)))
    edges = [end * number / cells for number in range(cells + 1)]
    each_run = np.array([binned(_weighted(each, along, what), edges) for each in there])
    kept = np.isfinite(each_run).all(axis=0)
    means, lows, highs = each_run.mean(axis=0), each_run.min(axis=0), each_run.max(axis=0)
    found = zip(edges[1:], means, lows, highs, kept, strict=True)
    return Line(name, colour, [(x, float(m), float(lo), float(hi)) for x, m, lo, hi, ok in found if ok])


def _dots(name: str, colour: int, runs: Sequence[Curves], field: str) -> Line:
    """Make the evaluations of a group: means over its seeds, with their range."""
    most = min((len(run.auc) for run in runs), default=0)
    points = []
    for place in range(most):
        aucs = [run.auc[place] for run in runs]
        at = float(np.mean([getattr(run, field)[place] for run in runs]))
        points.append((at, float(np.mean(aucs)), min(aucs), max(aucs)))
    return Line(f"{name}, evaluated", colour, points, dots=True)


def _marks(colour: int, runs: Sequence[Curves], field: str) -> list[Mark]:
    """Make the marks of a group's first run: switches, failures, slow-downs."""
    if not runs:
        return []
    run = runs[0]
    seconds, samples = [0.0, *(p.seconds for p in run.training)], [0.0, *(p.samples for p in run.training)]

    def at(second: float) -> float:
        return second if field == "seconds" else float(np.interp(second, seconds, samples))

    made = [Mark("switch", colour, f"to {each.mode}", getattr(each, field)[0]) for each in run.modes[1:]]
    for each in run.incidents:
        if each.factor is None:
            text = f"{each.process} {each.what} at {each.begin:.3g} s (seed {run.seed})"
            made.append(Mark("failure", colour, text, at(each.begin)))
        else:
            text = f"{each.process} up to {each.factor:.3g}x slower, {each.begin:.3g} to {each.end:.3g} s"
            text += f" (seed {run.seed})"
            made.append(Mark("slow", colour, text, at(each.begin), at(each.end)))
    return made


def _cut(found: Mapping[int, float]) -> dict[int, float]:
    """Add the shares of the largest staleness values together, where there are many."""
    kept = {step: share for step, share in found.items() if step < MOST_STALENESS}
    rest = sum(share for step, share in found.items() if step >= MOST_STALENESS)
    return {**kept, MOST_STALENESS: rest} if rest else kept


def _eps(report: Report, names: Mapping[Key, str], colours: Mapping[Key, int]) -> list[Bar]:
    made = []
    for group in report.groups:
        stat = group.stats.get("eps")
        if stat is None:
            continue
        ratio = f", {ratio_cell(group.rate).value}x {report.baseline}" if group.rate else ""
        made.append(Bar(
            names[group.key], colours[group.key], [(stat.mean, _with_interval(stat))], f"{stat.mean:,.0f}{ratio}",
            _interval(stat),
        ))  # fmt: skip
    return made


def _interval(stat: Stat) -> tuple[float, float] | None:
    half = interval_of(stat)
    return None if half is None else (stat.mean - half, stat.mean + half)


def _with_interval(stat: Stat) -> str:
    half = interval_of(stat)
    return (
        f"{stat.mean:,.0f}" if half is None else f"{stat.mean:,.0f} ± {half:,.0f} (95 % interval over {stat.n} seeds)"
    )


def _times(report: Report, names: Mapping[Key, str], colours: Mapping[Key, int]) -> list[Bar]:
    made = []
    for each in report.times:
        reached = f"{each.reached} of {each.n} runs reached it; median, and range over the runs"
        text = f"{'> ' if each.seconds.bound else ''}{each.seconds.value:,.3g} s"
        parts = [(each.seconds.value, reached)]
        made.append(Bar(names[each.key], colours[each.key], parts, text, each.seconds.range, each.seconds.bound))
    return made


def _bytes(
    drawn: Mapping[Key, Sequence[Curves]], names: Mapping[Key, str], colours: Mapping[Key, int], kinds: Sequence[str]
) -> list[Bar]:
    made = []
    for key, runs in drawn.items():
        told = [run.bytes_per_sample for run in runs if run.bytes_per_sample]
        if not told:
            continue
        means = [(kind, float(np.mean([each.get(kind, 0.0) for each in told]))) for kind in kinds]
        parts = [(mean, f"{kind}: {mean:,.0f} bytes per sample") for kind, mean in means]
        made.append(Bar(names[key], colours[key], parts, f"{sum(mean for _, mean in means):,.0f}"))
    return made


def _phases(drawn: Mapping[Key, Sequence[Curves]], names: Mapping[Key, str]) -> list[Chart]:
    """Draw, for one run of each group, the share of time that its processes spent in each phase."""
    made = []
    for key, runs in drawn.items():
        if runs and (shares := phase_shares(runs[0].time)):
            said = filter(None, (f"{names[key]}, seed {runs[0].seed}", slow_sentence(runs[0].time)))
            made.append(charts.heat_map(": ".join(said), shares))
    return made


def _strips(drawn: Mapping[Key, Sequence[Curves]], names: Mapping[Key, str]) -> list[Chart]:
    """Draw, for one run of each group, each worker's speed over time, if a worker was slow or failed."""
    made = []
    for key, runs in drawn.items():
        run = runs[0] if runs else None
        if run is None or not run.training or not any(point.speeds for point in run.training):
            continue
        end = run.training[-1].seconds
        cells = _speeds(run, end)
        slow = any(share < SLOW for each in cells.values() for _, _, share in each)
        failed = [
            (each.process, each.begin, f"{each.process} {each.what}") for each in run.incidents if not each.factor
        ]
        if slow or failed:
            title = f"{names[key]}, seed {run.seed}"
            made.append(charts.strips(title, cells, failed, end, "seconds of training"))
    return made


def _speeds(run: Curves, end: float) -> dict[str, list[tuple[float, float, float]]]:
    """Compute each worker's speed in cells of a run's time, as a share of the median worker's over the run."""
    workers = sorted({name for point in run.training for name in point.speeds}, key=lambda name: int(name[1:]))
    edges = [end * number / CELLS for number in range(CELLS + 1)]
    found = {w: binned([(p.seconds, p.speeds.get(w), 1.0) for p in run.training], edges) for w in workers}
    usual = float(np.nanmedian([np.nanmedian(each) for each in found.values()])) or 1.0
    return {
        worker: [(lo, hi, v / usual) for lo, hi, v in zip(edges, edges[1:], each, strict=False) if math.isfinite(v)]
        for worker, each in found.items()
    }


# -- running it again ---------------------------------------------------------------------------------------


def again(runs: Sequence[Run]) -> list[str]:
    """List the commands that run the runs again, as a sweep where they differ in their seed alone."""
    found: dict[tuple[str, ...], list[str]] = {}
    for run in runs:
        words = tuple(shlex.split(run.command))
        rest = tuple(word for word in words if not word.startswith("seed="))
        if rest:
            found.setdefault(rest, []).append(run.seed)
    made = []
    for words, seeds in found.items():
        several = ["-m"] if len(set(seeds)) > 1 else []
        seed = [f"seed={','.join(sorted(set(seeds), key=lambda each: (len(each), each)))}"]
        made.append(shlex.join([*words[:2], *several, *words[2:], *seed]))
    return made
