"""HTML report in one file that needs no network: the answer, the table, charts, what was left out, how to run it again.

The page is a Jinja template (report.html.j2) with the charts' Vega-Lite specifications, and with Vega itself (vega.js),
which draws them in the reader's browser. Colours follow the reader's theme, light or dark.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.errors import GbactlError
from gbactl.report import charts
from gbactl.report.charts import Row, Spec
from gbactl.report.columns import ratio_cell
from gbactl.report.compare import Group, Report
from gbactl.report.equivalence_tests import UNDECIDED, scale_of
from gbactl.report.failures_and_slowdowns import activity_shares, slow_sentence
from gbactl.report.paired_statistics import Difference, Key, interval_of, name_of
from gbactl.report.run_curves import Curves, TrainingPoint, shares
from gbactl.report.text_formats import answer, grids, left_out, sentences
from gbactl.tracking.mlflow_store import Run

CELLS = 30  # points of a training curve, each the mean over its part of the axis
MOST_STALENESS = 60  # steps of the histogram
MOST_GAP = 2  # cells of a worker's strip that its next point stands for, as a batch may have taken so long
SLOW = 0.75  # share of the usual speed below which a worker's strip is shown


def page(
    report: Report, curves: Mapping[Key, Sequence[Curves]], runs: Sequence[Run] = (), title: str = "gbactl"
) -> str:
    """Render a report as a page; `curves`: of the runs of each group, `runs`: all runs that were read."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    env = Environment(
        loader=PackageLoader("gbactl.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    drawn = _drawn(report, curves)
    tables = grids(report)
    found: str = env.get_template("report.html.j2").render(
        title=title, answer=answer(report), report=report, groups=list(drawn), colours=charts.COLOURS,
        table=_table(report, tables.pop("Comparison")), sentences=sentences(report),
        tables=[{"title": title, **_plain(table)} for title, table in tables.items()],
        charts=[_figures(report, drawn), _strips(drawn), _phases(drawn)],
        config={**charts.CONFIG, "legend": {"disable": True}},  # the page has one for all charts
        vega=files("gbactl.report").joinpath("vega.js").read_text(encoding="ascii"),
        left_out=left_out(report),
        commands=rerun_commands([run for run in runs if any(run.run_id in group.runs for group in report.groups)]),
    )  # fmt: skip
    return found.encode("ascii", "xmlcharrefreplace").decode()  # also for a pipe of another encoding


def _drawn(report: Report, curves: Mapping[Key, Sequence[Curves]]) -> dict[str, Sequence[Curves]]:
    """Return the curves of the report's rows, by the rows' names and in their order."""
    return {name_of(group.key): curves.get(group.key, ()) for group in report.groups}


def write_figures(report: Report, curves: Mapping[Key, Sequence[Curves]], folder: Path) -> list[Path]:
    """Write the page's charts as SVG files named after their titles, as auc-over-samples.svg.

    Raises GbactlError if the folder cannot be written."""
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for chart in _figures(report, _drawn(report, curves)):
            name = re.sub("[^a-z0-9]+", "-", chart["description"].lower()).strip("-")
            written.append(folder / f"{name}.svg")
            written[-1].write_text(charts.svg(chart), encoding="utf-8")
    except OSError as error:
        why = f"The plots cannot be written to {folder} ({error.strerror})"
        raise GbactlError(f"{why}; type --plots with another folder.") from error
    return written


# -- the table ----------------------------------------------------------------------------------------------


def _table(report: Report, columns: Sequence[Any]) -> dict[str, Any]:
    """Lay the main table out: headings, and rows of cells with their sort value, hover, and interval to be drawn."""
    intervals = {
        f"vs {report.baseline}": _intervals([g.difference for g in report.groups], 0.0, _margin(report)),
        f"EPS / {report.baseline}": _intervals([g.rate for g in report.groups], 1.0, None),
    }
    rows = []
    for place, group in enumerate(report.groups):
        cells = [
            {"value": column.cells[place].value, "spread": column.cells[place].spread,
             "key": column.key, "interval": intervals.get(column.title, {}).get(place)}
            for column in columns
        ]  # fmt: skip
        rows.append({"cells": cells, "verdict": _verdict(group)})
    return {"headings": [(column.title, column.key) for column in columns], "rows": rows}


def _margin(report: Report) -> float | None:
    """Return the margin on the scale of the difference's cell; None if the margin is a share of the baseline."""
    return None if scale_of(report.columns[0], report.margin).relative else report.margin


def _intervals(found: Sequence[Difference | None], neutral: float, margin: float | None) -> dict[int, dict[str, float]]:
    """Place intervals and the margin on a common scale, from -1 to 1 around the neutral value."""
    present = {place: each for place, each in enumerate(found) if each is not None}
    ends = [abs(each.mean + sign * (each.half or 0.0) - neutral) for each in present.values() for sign in (-1, 1)]
    most = 1.05 * max([*ends, 2.0 * (margin or 0.0)], default=1.0) or 1.0
    return {
        place: {
            "mean": (each.mean - neutral) / most,
            "half": (each.half or 0.0) / most,
            "margin": (margin or 0.0) / most,
        }
        for place, each in present.items()
    }


def _verdict(group: Group) -> tuple[str, str, str]:
    """Return a verdict as (kind, short text, whole text); empty texts if there is none."""
    if (found := group.verdict) is None:
        return "", "", ""
    return found.kind, "cannot tell" if found.kind == UNDECIDED else found.kind, found.words


def _plain(columns: Sequence[Any]) -> dict[str, Any]:
    rows = zip(*(column.cells for column in columns), strict=True)
    text = [[(cell.line, column.key) for cell, column in zip(row, columns, strict=True)] for row in rows]
    return {"headings": [(column.title, column.key) for column in columns], "rows": text}


# -- the charts ---------------------------------------------------------------------------------------------


def _figures(report: Report, drawn: Mapping[str, Sequence[Curves]]) -> list[Spec]:
    groups, made = list(drawn), list[Spec | None]()
    for field, x_title in (("samples", "samples"), ("seconds", "seconds of training")):
        rows = [
            row for number, (name, runs) in enumerate(drawn.items())
            for row in (*_line(name, runs, field, "auc"), *_dots(name, runs, field), *_marks(name, number, runs, field))
        ]  # fmt: skip
        made.append(charts.curves(f"AUC over {field}", groups, rows, x_title))
    losses = [row for name, runs in drawn.items() for row in _line(name, runs, "samples", "loss")]
    made.append(charts.curves("Training loss over samples", groups, losses, "samples"))
    if len(groups) > 1:
        made.append(charts.bars("Samples per second (EPS)", groups, _eps(report), "samples per second"))
        title = f"Seconds of training to {report.time_to}"
        made.append(charts.bars(title, groups, _times(report), "seconds of training"))
    steps = [
        {"group": name, "step": step, "percent": percent}
        for name, runs in drawn.items() for step, percent in _cut(shares(runs)).items()
    ]  # fmt: skip
    made.append(charts.histograms("Staleness of the gradients", groups, steps, "global steps from pull to application"))
    kinds = list(dict.fromkeys(kind for runs in drawn.values() for run in runs for kind in run.bytes_per_sample))
    axis = ["bytes per sample, from dark to light:", ", ".join(kinds)]
    made.append(charts.bars("Bytes sent per sample", groups, _bytes(drawn, kinds), axis))
    return [chart for chart in made if chart]


def binned(points: Sequence[tuple[float, float | None, float]], edges: Sequence[float]) -> list[float]:
    """Compute a curve's weighted mean in each cell, from edges[i] to edges[i + 1]; nan after the last value.

    A value counts from the value before it, or from 0, up to its own x. points: (x, value or None, weight), ascending;
    edges: the cells' n + 1 ends. Returns n values."""
    known = [(x, value, weight) for x, value, weight in points if value is not None and math.isfinite(value)]
    at = [0.0, *(x for x, _, _ in known)]
    sums = np.cumsum([0.0, *(value * weight for _, value, weight in known)])
    weights = np.cumsum([0.0, *(weight for _, _, weight in known)])
    sums, weights = np.diff(np.interp(edges, at, sums)), np.diff(np.interp(edges, at, weights))
    with np.errstate(invalid="ignore", divide="ignore"):
        return list(np.where(weights > 0, sums / weights, np.nan))


def _weighted(training: Sequence[TrainingPoint], field: str, what: str) -> list[tuple[float, float | None, float]]:
    """List a curve's points (x, value, samples since the point before)."""
    before = [0.0, *(point.samples for point in training)]
    return [(getattr(p, field), getattr(p, what), p.samples - low) for p, low in zip(training, before, strict=False)]


def _line(name: str, runs: Sequence[Curves], field: str, what: str) -> list[Row]:
    """Make a group's mean training curve over its seeds, with their range, up to the end of the shortest run."""
    curves = [run.training for run in runs if any(getattr(point, what) is not None for point in run.training)]
    if not curves:
        return []
    end, cells = min(getattr(each[-1], field) for each in curves), min(CELLS, max(map(len, curves)))
    edges = [end * number / cells for number in range(cells + 1)]
    each_run = np.array([binned(_weighted(each, field, what), edges) for each in curves])
    means, lows, highs = each_run.mean(axis=0), each_run.min(axis=0), each_run.max(axis=0)
    return [
        {"kind": "line", "group": name, "x": x, "mean": float(mean), "low": float(low), "high": float(high)}
        for x, mean, low, high in zip(edges[1:], means, lows, highs, strict=True)
    ]


def _dots(name: str, runs: Sequence[Curves], field: str) -> list[Row]:
    """Make the evaluations of a group: means over its seeds, with their range."""
    made = []
    for place in range(min((len(run.auc) for run in runs), default=0)):
        aucs = [run.auc[place] for run in runs]
        at = float(np.mean([getattr(run, field)[place] for run in runs]))
        mean = float(np.mean(aucs))
        made.append({"kind": "dot", "group": name, "x": at, "mean": mean, "low": min(aucs), "high": max(aucs)})
    return made


def _marks(name: str, number: int, runs: Sequence[Curves], field: str) -> list[Row]:
    """Make the marks of a group's first run: switches, failures, slow-downs and other faults."""
    if not runs:
        return []
    run, group = runs[0], {"group": name, "number": number}
    seconds, samples = [0.0, *(p.seconds for p in run.training)], [0.0, *(p.samples for p in run.training)]

    def at(second: float) -> float:
        return second if field == "seconds" else float(np.interp(second, seconds, samples))

    made: list[Row] = [
        {**group, "kind": "switch", "x": getattr(each, field), "text": f"to {each.mode}"} for each in run.switches
    ]
    for each in run.incidents:
        if each.factor is None:
            text = f"{each.process} {each.what} at {each.begin:.3g} s (seed {run.seed})"
            made.append({**group, "kind": "failure", "x": at(each.begin), "text": text})
        else:
            what = f"up to {each.factor:.3g}x slower" if each.factor > 1 else each.what
            text = f"{each.process} {what}, {each.begin:.3g} to {each.end:.3g} s"
            ends = {"x": at(each.begin), "end": at(each.end)}
            made.append({**group, "kind": "slow", **ends, "text": f"{text} (seed {run.seed})"})
    return made


def _cut(found: Mapping[int, float]) -> dict[int, float]:
    """Add the shares of the largest staleness values together if there are many values."""
    kept = {step: share for step, share in found.items() if step < MOST_STALENESS}
    rest = sum(share for step, share in found.items() if step >= MOST_STALENESS)
    return {**kept, MOST_STALENESS: rest} if rest else kept


def _bar(name: str, value: float, label: str, text: str, interval: tuple[float, float] | None = None) -> Row:
    made: Row = {"group": name, "begin": 0.0, "end": value, "opacity": 1.0, "text": f"{name}: {text}"}
    made |= {"label": label, "far": value}
    if interval is not None and interval[0] < interval[1]:
        made |= {"low": max(0.0, interval[0]), "high": interval[1], "far": max(value, interval[1])}
    return made


def _eps(report: Report) -> list[Row]:
    made = []
    for group in report.groups:
        if (stat := group.stats.get("eps")) is None:
            continue
        ratio = f", {ratio_cell(group.rate).value}x {report.baseline}" if group.rate else ""
        said, half = f"{stat.mean:,.0f}", interval_of(stat)
        text = said if half is None else f"{said} ± {half:,.0f} (95 % interval over {stat.n} seeds)"
        interval = None if half is None else (stat.mean - half, stat.mean + half)
        made.append(_bar(name_of(group.key), stat.mean, said + ratio, text, interval))
    return made


def _times(report: Report) -> list[Row]:
    made = []
    for each in report.times:
        text = f"{each.reached} of {each.n} runs reached it; median, and range over the runs"
        label = f"{'> ' if each.seconds.bound else ''}{each.seconds.value:,.3g} s"
        bar = _bar(name_of(each.key), each.seconds.value, label, text, each.seconds.range)
        made.append({**bar, "opacity": 0.35} if each.seconds.bound else bar)
    return made


def _bytes(drawn: Mapping[str, Sequence[Curves]], kinds: Sequence[str]) -> list[Row]:
    """Make one stacked bar for each group, with a part for each kind of bytes; the first part is the darkest."""
    made = []
    for name, runs in drawn.items():
        known = [run.bytes_per_sample for run in runs if run.bytes_per_sample]
        means = [float(np.mean([each.get(kind, 0.0) for each in known])) for kind in kinds if known]
        for number, (kind, begin, mean) in enumerate(zip(kinds, np.cumsum([0.0, *means]), means, strict=False)):
            part = _bar(name, sum(means), f"{sum(means):,.0f}", f"{kind}: {mean:,.0f} bytes per sample")
            part |= {"begin": float(begin), "end": float(begin) + mean, "opacity": max(0.15, 1 - 0.22 * number)}
            made.append(part if not number else {**part, "label": None})
    return made


def _phases(drawn: Mapping[str, Sequence[Curves]]) -> list[Spec]:
    """Draw, for one run of each group, the share of time that its processes spent in each activity."""
    made = []
    for name, runs in drawn.items():
        if runs and (shares := activity_shares(runs[0].time)):
            since = runs[0].time.get("since_second")
            begin = f"since second {since:.0f} of the run" if since else ""
            slow = slow_sentence(runs[0].time)
            part = f"times {begin}" if begin and begin not in slow else ""
            said = filter(None, (f"{name}, seed {runs[0].seed}", part, slow))
            made.append(charts.heat_map(": ".join(said), shares))
    return made


def _strips(drawn: Mapping[str, Sequence[Curves]]) -> list[Spec]:
    """Draw, for one run of each group, each worker's speed over time, if a worker was slow or failed."""
    made = []
    for name, runs in drawn.items():
        run = runs[0] if runs else None
        if run is None or not any(point.speeds for point in run.training):
            continue
        end = run.training[-1].seconds
        workers = sorted({name for point in run.training for name in point.speeds}, key=lambda name: int(name[1:]))
        cells = _cells(run, workers, end)
        rows: list[Row] = [
            {"process": worker, "begin": begin, "until": until, **({"speed": speed} if math.isfinite(speed) else {})}
            for worker, begin, until, speed in cells
        ]
        failed: list[Row] = [
            {"process": each.process, "begin": each.begin, "text": f"{each.process} {each.what}"}
            for each in run.incidents if not each.factor
        ]  # fmt: skip
        if failed or any(speed < SLOW for *_, speed in cells):
            known = [row for row in failed if row["process"] in workers]
            title = f"{name}, seed {run.seed}"
            made.append(charts.strips(title, workers, [*rows, *known], end, "seconds of training"))
    return made


def _cells(run: Curves, workers: Sequence[str], end: float) -> list[tuple[str, float, float, float]]:
    """Compute each worker's speed in cells of a run's time: worker, begin, end, share of the median worker's.

    The share is nan where the worker has finished no batch."""
    edges = [end * number / CELLS for number in range(CELLS + 1)]
    found = {w: binned([(p.seconds, p.speeds.get(w), 1.0) for p in run.training], edges) for w in workers}
    usual = float(np.nanmedian([np.nanmedian(each) for each in found.values()])) or 1.0
    made = []
    for worker, each in found.items():
        gaps = _gaps(run.training, worker, MOST_GAP * end / CELLS)
        for low, high, value in zip(edges, edges[1:], each, strict=False):
            idle = any(begin <= low and high <= until for begin, until in gaps)
            made.append((worker, low, high, math.nan if idle else float(value) / usual))
    return made


def _gaps(training: Sequence[TrainingPoint], worker: str, most: float) -> list[tuple[float, float]]:
    """List the times, longer than `most`, in which others finished batches and a worker none before its next one.

    In a shorter time the worker may have computed one batch."""
    gaps, last = list[tuple[float, float]](), 0.0
    for before, point in zip((0.0, *(point.seconds for point in training)), training, strict=False):
        if worker in point.speeds:
            if before - last > most:
                gaps.append((last, before))
            last = point.seconds
    return gaps


# -- running it again ---------------------------------------------------------------------------------------


def rerun_commands(runs: Sequence[Run]) -> list[str]:
    """List the commands that run the runs again, as a sweep if they differ in their seed alone."""
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
