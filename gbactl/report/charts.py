"""Charts of the report as Vega-Lite specifications, each with its rows of data. Pure, but for `svg`, which draws one.

Colours are the variables of charts.css, which has them for light and dark. A group has one colour in all charts. The
parameter `off` of a chart lists the groups that are hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

Row = dict[str, Any]
Spec = dict[str, Any]

WIDE, HIGH = 560, 300
COLOURS = 8  # lines of further groups have the same colours and are dashed
SETTLED = 0.1  # share of the horizontal axis whose values do not set the vertical scale
SHORT = {"labelExpr": "format(datum.value, abs(datum.value) < 1000 ? '.4~g' : '.3~s')"}  # 0.75, 1.5k, 20M
NAME = {"labelExpr": "split(datum.label, ', ')", "labelLimit": 160, "labelColor": "var(--text)"}  # a line for each part
LINE = 13  # height of a line of a label
DOT = {"type": "point", "filled": True, "opacity": 1, "clip": True}
RED = {"type": "rect", "color": "var(--bad)", "stroke": "var(--back)", "strokeWidth": 1}
CONFIG = {
    "font": "system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif",
    "background": None,
    "view": {"fill": "var(--plot)", "stroke": None},
    "axis": {
        "domain": False, "ticks": False, "gridColor": "var(--line)", "labelColor": "var(--faint)", "labelFontSize": 11,
        "labelPadding": 6, "labelSeparation": 12, "titleColor": "var(--faint)", "titleFontSize": 11,
        "titleFontWeight": "normal",
    },
    "axisDiscrete": {"grid": False},
    "header": {"labelFontSize": 11, "title": None},
    "legend": {
        "direction": "vertical", "labelColor": "var(--text)", "labelFontSize": 11, "labelLimit": WIDE, "orient": "top",
        "symbolOpacity": 1, "symbolStrokeWidth": 2, "symbolType": "stroke", "title": None,
    },
    "range": {"category": [f"var(--c{number})" for number in range(COLOURS)]},
    "text": {"fill": "var(--faint)", "fontSize": 11},
    "title": {"anchor": "start", "color": "var(--text)", "fontSize": 14},
}  # fmt: skip


def svg(spec: Spec) -> str:
    """Draw a chart as an SVG file that stands alone, with its title, legend and colours."""
    from vl_convert import vegalite_to_svg

    seen = {**spec, "title": spec["description"], "background": "var(--back)"}
    if "layer" in spec:  # without the points that only the pointer finds
        seen["layer"] = [layer for layer in spec["layer"] if "params" not in layer]
    style = files("gbactl.report").joinpath("charts.css").read_text(encoding="utf-8")
    drawn: str = vegalite_to_svg(seen, config=CONFIG)
    return drawn.replace(">", f"><style>{style}</style>", 1)


def curves(title: str, groups: Sequence[str], rows: Iterable[Row], x_title: str) -> Spec | None:
    """Return the Vega-Lite specification of curves over a common axis, with bands and marks; None without points.

    Rows have kind, group and x. Of kind line (a point of a line with a band) and dot (a point with a whisker): mean,
    low and high. Of kind switch, failure and slow (from x to end): text and number, the group's place."""
    rows = _plotted(rows)
    points = [row for row in rows if "mean" in row]
    if not points:
        return None
    end = max(row["x"] for row in points) or 1.0
    settled = [row for row in points if row["x"] >= SETTLED * end] or points
    low, high = min(row["low"] for row in settled), max(row["high"] for row in settled)
    pad = 0.06 * (high - low) or 0.01 * (abs(high) or 1.0)
    labels = max((row["number"] + 1 for row in rows if row["kind"] == "switch"), default=0)
    top = high + pad + 0.05 * labels * (high - low)  # their labels are above the curves
    x = {"scale": {"domain": [0, 1.01 * end], "nice": False}, "title": x_title, "axis": {**SHORT, "grid": False}}
    mean = {**_quantitative("mean"), "title": None, "scale": {"domain": [low - pad, top], "nice": False}}
    tooltip = {"tooltip": [
        {"field": "group", "title": "line"}, {"field": "x", "title": x_title, "format": ",.4~r"},
        *({"field": each, "format": ".5~f"} for each in ("mean", "low", "high")),
    ]}  # fmt: skip
    near = {"name": "near", "select": {"type": "point", "on": "pointerover", "clear": "pointerout"}}
    shown = {"opacity": {"condition": {"param": "near", "empty": False, "value": 0.3}, "value": 0}}
    whole = {"y": {**mean, "field": "low"}, "y2": {"field": "high"}}
    dash = [[1, 0] if number < COLOURS else [6, 4] for number in range(len(groups))]
    dashes = {"strokeDash": {"field": "group", "scale": {"domain": groups, "range": dash}}}
    text = {"tooltip": {"field": "text"}}
    layers = [
        _layer("line", {"type": "area", "opacity": 0.16, "clip": True}, whole),
        _layer("line", {"type": "line", "strokeWidth": 1.8, "clip": True}, {"y": mean, **dashes}),
        {**_layer("line", {**DOT, "size": 300}, {"y": mean, **tooltip, **shown}), "params": [near]},
        _layer("dot", {"type": "rule", "strokeWidth": 1.5, "clip": True}, whole),
        _layer("dot", {**DOT, "size": 60, "stroke": "var(--back)"}, {"y": mean, **tooltip}),
        _layer("switch", {"type": "rule", "strokeDash": [4, 3]}, text),
        _layer(
            "switch", {"type": "text", "align": "left", "dx": 4, "dy": {"expr": "11 + 13 * datum.number"}},
            {"y": {"value": 0}, "text": {"field": "text"}},
        ),
        _layer("failure", {**DOT, "shape": "triangle-down", "size": 70, "clip": False}, {"y": {"value": -4}, **text}),
        _layer(
            "slow", {"type": "rule", "strokeWidth": 4, "opacity": 0.75},
            {"x2": {"field": "end"}, "y": {"value": {"expr": "height - 3 - 5 * datum.number"}}, **text},
        ),
    ]  # fmt: skip
    return {**_hideable_chart(title, rows), "height": HIGH, "layer": layers,
            "encoding": {"x": {**_quantitative("x"), **x}, "color": _colour(groups)}}  # fmt: skip


def bars(title: str, groups: Sequence[str], rows: Iterable[Row], x_title: str | list[str]) -> Spec | None:
    """Specify horizontal bars with intervals and a label to the right of each; None without rows.

    Rows have group, begin, end, opacity and text, for the hover. The first row of a bar also has label, its place
    `far`, and, where the bar has an interval, low and high."""
    rows = _plotted(rows)
    if not rows:
        return None
    lines = _label_lines(rows)
    axis = {**NAME, "labelOffset": -LINE * (lines - 1) / 2}  # Vega centres the first line
    y = {"field": "group", "type": "nominal", "sort": groups, "title": None, "axis": axis}
    x = {**_quantitative("begin"), "title": x_title, "axis": {**SHORT, "tickCount": 5}, "scale": {"nice": False}}
    opacity = {"field": "opacity", "type": "quantitative", "scale": None}
    layers = [
        {"mark": {"type": "bar", "height": 18},
         "encoding": {"x": x, "x2": {"field": "end"}, "tooltip": {"field": "text"}, "fillOpacity": opacity,
                      "color": {**_colour(groups), "legend": None}}},
        {"transform": [{"filter": "isValid(datum.low)"}],
         "mark": {"type": "errorbar", "ticks": {"size": 10}, "color": "var(--text)"},
         "encoding": {"x": {**_quantitative("low"), "title": x_title}, "x2": {"field": "high"}}},
        {"transform": [{"filter": "isValid(datum.label)"}], "mark": {"type": "text", "align": "left", "dx": 7},
         "encoding": {"x": _quantitative("far"), "text": {"field": "label"}}},
    ]  # fmt: skip
    room = {"padding": {"left": 16, "top": 5, "bottom": 5, "right": 120}}  # for the labels, and for a wider font
    step = max(30, LINE * lines + 8)
    return {**_hideable_chart(title, rows), **room, "height": {"step": step}, "encoding": {"y": y}, "layer": layers}


def histograms(title: str, groups: Sequence[str], rows: Iterable[Row], x_title: str) -> Spec | None:
    """Specify a histogram for each group, one below the other; rows have group, step (a whole number) and percent."""
    rows = _plotted(rows)
    if not rows:
        return None
    steps = list(range(max(row["step"] for row in rows) + 1))
    x = {"field": "step", "type": "ordinal", "scale": {"domain": steps}, "title": x_title}
    tooltip = [{"field": "group", "title": "line"}, {"field": "step"}, {"field": "percent", "format": ".2~r"}]
    encoding = {
        "x": {**x, "axis": {"labelAngle": 0, "labelOverlap": True}}, "y": {**_quantitative("percent"), "axis": None},
        "color": {**_colour(groups), "legend": None}, "tooltip": tooltip,
    }  # fmt: skip
    lines = _label_lines(rows)
    anchor = "end" if lines > 2 else "middle"  # Vega places the first line there; the end is the top
    head = {**NAME, "labelAnchor": anchor, "labelAngle": 0, "labelAlign": "left", "labelOrient": "left"}
    letters = max(len(part) for row in rows for part in row["group"].split(", "))
    return {
        **_hideable_chart(title, rows), "autosize": "pad", "resolve": {"scale": {"y": "independent"}}, "spacing": 6,
        "facet": {"row": {"field": "group", "sort": groups, "header": head}},
        "spec": {"width": WIDE - 30 - min(160, 6 * letters), "height": max(36, LINE * lines), "mark": "bar",
                 "encoding": encoding},
    }  # fmt: skip


def strips(title: str, processes: Sequence[str], rows: Iterable[Row], end: float, x_title: str) -> Spec:
    """Specify a strip over time for each process, the redder the slower, and grey where it has finished no batch.

    Rows have process and begin; those of cells until and, if known, speed, a share of the usual speed; those of
    failures text."""
    x = {**_quantitative("begin"), "title": x_title, "scale": {"domain": [0, end], "nice": False}}
    opacity = {**_quantitative("speed"), "scale": {"domain": [0.13, 1], "range": [1, 0], "clamp": True}, "legend": None}
    tooltip = [
        {"field": "process"}, {"field": "begin", "title": "from second", "format": ".3~r"},
        {"field": "until", "format": ".3~r"}, {"field": "speed", "title": "share of the usual speed", "format": ".0%"},
    ]  # fmt: skip
    layers = [
        {"transform": [{"filter": "isValid(datum.speed)"}], "mark": RED,
         "encoding": {"x2": {"field": "until"}, "opacity": opacity, "tooltip": tooltip}},
        {"transform": [{"filter": "isValid(datum.until) && !isValid(datum.speed)"}],
         "mark": {**RED, "color": "var(--line)"}, "encoding": {"x2": {"field": "until"}, "tooltip": tooltip[:3]}},
        {"transform": [{"filter": "isValid(datum.text)"}], "encoding": {"tooltip": {"field": "text"}},
         "mark": {**DOT, "shape": "cross", "angle": 45, "size": 70, "color": "var(--text)"}},
    ]  # fmt: skip
    encoding = {"x": {**x, "axis": {**SHORT, "grid": False}}, "y": _processes(processes)}
    return {**_chart(title, rows), "width": 2 * WIDE, "height": {"step": 16}, "encoding": encoding, "layer": layers}


def heat_map(title: str, shares: Mapping[str, Mapping[str, float]]) -> Spec:
    """Specify a row for each process and a column for each activity, the redder the larger its share of the time."""
    rows = [
        {"process": process, "activity": activity, "share": share}
        for process, each in shares.items()
        for activity, share in each.items()
    ]
    tooltip = [
        {"field": "process"},
        {"field": "activity"},
        {"field": "share", "format": ".0%", "title": "share of its time"},
    ]
    axis = {"orient": "top", "labelAngle": 0}
    opacity = {**_quantitative("share"), "scale": {"domain": [0, 1], "range": [0, 1]}, "legend": None}
    encoding = {
        "x": {"field": "activity", "type": "nominal", "sort": None, "title": None, "axis": axis},
        "y": _processes(list(shares)), "opacity": opacity, "tooltip": tooltip,
    }  # fmt: skip
    return {**_chart(title, rows), "width": 2 * WIDE, "height": {"step": 16}, "mark": RED, "encoding": encoding}


def _chart(title: str, rows: Iterable[Row]) -> Spec:
    fit = {"type": "fit-x", "contains": "padding"}
    return {"description": title, "width": WIDE, "autosize": fit, "data": {"values": _plotted(rows)}}


def _hideable_chart(title: str, rows: Sequence[Row]) -> Spec:
    hidden = {"params": [{"name": "off", "value": []}], "transform": [{"filter": "indexof(off, datum.group) < 0"}]}
    return {**_chart(title, rows), **hidden}


def _plotted(rows: Iterable[Row]) -> list[Row]:
    """Round numbers to six digits for a chart, and leave out rows with a number that is not finite."""
    rounded = [{key: float(f"{v:.6g}") if isinstance(v, float) else v for key, v in row.items()} for row in rows]
    return [row for row in rounded if all(math.isfinite(v) for v in row.values() if isinstance(v, float))]


def _label_lines(rows: Iterable[Row]) -> int:
    """Return the number of lines of the longest label of a group."""
    return max(str(row["group"]).count(", ") + 1 for row in rows)


def _layer(kind: str, mark: Row, encoding: Row) -> Spec:
    return {"transform": [{"filter": f"datum.kind == '{kind}'"}], "mark": mark, "encoding": encoding}


def _quantitative(field: str) -> Spec:
    return {"field": field, "type": "quantitative"}


def _colour(groups: Sequence[str]) -> Spec:
    return {"field": "group", "type": "nominal", "scale": {"domain": groups}}


def _processes(names: Sequence[str]) -> Spec:
    return {"field": "process", "type": "nominal", "sort": names, "title": None, "scale": {"domain": names}}
