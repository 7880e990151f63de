"""Charts of the report as SVG: curves with bands, bars with intervals, histograms, strips of speeds. Pure.

Colours are classes, which charts.css sets for light and dark. Texts of hovers are in `title` elements, and in
`data-points` for the page's script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

WIDE, HIGH = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 26, 42
ROW, LABEL, LETTERS = 30, 150, 25  # height of a bar's row; width of its label, and letters of a line of it
SETTLED = 0.1  # share of the horizontal axis whose values do not set the vertical scale
Write = Callable[[float], str]
Scale = Callable[[float], float]


class Line(NamedTuple):
    """Curve of a group: its name, colour number, and (x, mean, low, high) of each point."""

    name: str
    colour: int
    points: Sequence[tuple[float, float, float, float]]
    dots: bool = False  # draw each point with its range, instead of a line with a band


class Mark(NamedTuple):
    """Mark on a curve's horizontal axis: a switch or failure at `begin`, or a slow-down up to `end`."""

    kind: str  # switch, failure or slow
    colour: int
    text: str
    begin: float
    end: float = math.nan


@dataclass(frozen=True)
class Bar:
    """Bar of a group: its parts (value, hover text), the range of its interval, and a text to the right of it.

    `open`: the value is a lower bound."""

    name: str
    colour: int
    parts: Sequence[tuple[float, str]]
    text: str
    interval: tuple[float, float] | None = None
    open: bool = False


@dataclass(frozen=True)
class Chart:
    """Drawing under a title: `shapes` of SVG within width and height, in SVG's units. `kind`: class of the figure."""

    title: str
    width: float
    height: float
    shapes: str
    kind: str = ""

    def figure(self) -> str:
        """Write the chart as a figure of an HTML page, which has the style sheet and the legend."""
        size = f'viewBox="0 0 {self.width} {self.height}"'
        drawing = f'<svg {size} role="img" aria-label="{escape(self.title)}">{self.shapes}</svg>'
        return f'<figure class="{self.kind}"><figcaption>{escape(self.title)}</figcaption>{drawing}</figure>'

    def file(self, style: str, groups: Sequence[tuple[str, int]]) -> str:
        """Write the chart as a file of its own, with its style sheet and a legend of the groups (name, colour)."""
        legend = [_text(LEFT, 18, self.title, kind="name")]
        for place, (name, colour) in enumerate(groups if self.kind == "curves" else ()):
            y = 38 + 16 * place
            legend.append(f'<g class="c{colour}"><path class="line" d="M{LEFT} {y - 4}h16"/></g>')
            legend.append(_text(LEFT + 22, y, name, kind="name"))
        above = 16 * len(legend) // 2 + 8
        back = f'<rect class="back" y="{-above}" width="{self.width}" height="{self.height + above}"/>'
        head = f'<g transform="translate(0 {-above})">{"".join(legend)}</g>'
        size = f'viewBox="0 {-above} {self.width} {self.height + above}" width="{1.6 * self.width:.0f}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{style}</style>{back}{head}{self.shapes}</svg>'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Choose round numbers between two values, at most about `most` of them."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def short_number(value: float) -> str:
    """Write a number for an axis: 1.5k, 20M, 0.75."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.4g}"


def curves(
    title: str, lines: Sequence[Line], marks: Sequence[Mark], x_title: str, write_x: Write, write_y: Write
) -> Chart | None:
    """Draw curves over a common axis, with their bands and marks; None where there are no points."""
    points = [point for line in lines for point in line.points]
    if not points:
        return None
    end = max(point[0] for point in points) or 1.0
    settled = [point for point in points if point[0] >= SETTLED * end] or points
    low, high = min(point[2] for point in settled), max(point[3] for point in settled)
    pad = 0.06 * (high - low) or 0.01 * (abs(high) or 1.0)
    low, high = low - pad, high + pad

    def x(value: float) -> float:
        return LEFT + (WIDE - LEFT - RIGHT) * value / end

    def y(value: float) -> float:
        return TOP + (HIGH - TOP - BOTTOM) * (high - max(low - pad, min(high + pad, value))) / (high - low)

    base = HIGH - BOTTOM
    parts = [f'<rect class="plot" x="{LEFT}" y="{TOP}" width="{WIDE - LEFT - RIGHT}" height="{base - TOP}"/>']
    for value in ticks(low, high, 8):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDE - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>')
        parts.append(_text(LEFT - 6, y(value) + 4, f"{value:.4g}", "end"))
    for value in ticks(0.0, end):
        parts.append(_text(x(value), base + 16, short_number(value), "middle"))
    parts.append(_text((LEFT + WIDE - RIGHT) / 2, HIGH - 6, x_title, "middle", "axis"))
    parts += [_marked(mark, x, base) for mark in marks if mark.begin <= end]
    drawn = [_drawn(line, x, y, write_x, write_y) for line in lines if line.points]
    clip = f'<svg x="{LEFT}" y="{TOP - 4}" width="{WIDE - LEFT - RIGHT + 6}" height="{base - TOP + 8}" '
    clip += f'viewBox="{LEFT} {TOP - 4} {WIDE - LEFT - RIGHT + 6} {base - TOP + 8}">{"".join(drawn)}</svg>'
    return Chart(title, WIDE, HIGH, "".join([*parts, clip]), "curves")


def _drawn(line: Line, x: Scale, y: Scale, write_x: Write, write_y: Write) -> str:
    places = [(x(at), y(mean), y(low), y(high)) for at, mean, low, high in line.points]
    told = [
        [round(place[0], 1), round(place[1], 1), write_x(point[0]), _ranged(point, write_y)]
        for place, point in zip(places, line.points, strict=True)
    ]
    data = f'data-name="{escape(line.name)}" data-points="{escape(json.dumps(told))}"'
    if line.dots:
        dots = "".join(
            f'<line class="range" x1="{px:.1f}" x2="{px:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="4"/>' for px, py, bottom, top in places
        )  # fmt: skip
        return f'<g class="series dots c{line.colour}" {data}>{dots}</g>'
    path = " L".join(f"{px:.1f} {py:.1f}" for px, py, _, _ in places)
    band = [f"{px:.1f} {top:.1f}" for px, _, _, top in places]
    band += [f"{px:.1f} {bottom:.1f}" for px, _, bottom, _ in reversed(places)]
    flat = all(low == high for _, _, low, high in line.points)
    shade = "" if flat else f'<path class="band" d="M{" L".join(band)} Z"/>'
    return f'<g class="series c{line.colour}" {data}>{shade}<path class="line" d="M{path}"/></g>'


def _ranged(point: tuple[float, float, float, float], write: Write) -> str:
    _, mean, low, high = point
    return write(mean) if low == high else f"{write(mean)} ({write(low)} to {write(high)})"


def _marked(mark: Mark, x: Scale, base: float) -> str:
    at = x(mark.begin)
    title = f"<title>{escape(mark.text)}</title>"
    if mark.kind == "slow":
        width = max(2.0, x(mark.end) - at)
        place = f'x="{at:.1f}" y="{base - 5 * (mark.colour + 1)}" width="{width:.1f}" height="4"'
        return f'<rect class="series slow c{mark.colour}" {place}>{title}</rect>'
    if mark.kind == "failure":
        shape = f"M{at:.1f} {TOP + 1} l-5 -9 h10 Z"
        return f'<path class="series failure c{mark.colour}" d="{shape}">{title}</path>'
    line = f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{base}"/>'
    text = _text(at + 4, TOP + 11 + 13 * mark.colour, mark.text)  # one below the other where several switch at once
    return f'<g class="series switch c{mark.colour}">{line}{text}{title}</g>'


def bars(title: str, rows: Sequence[Bar], x_title: str, shades: bool = False) -> Chart | None:
    """Draw horizontal bars with intervals; with `shades`, later parts of a bar are lighter. None without rows."""
    if not rows:
        return None
    most = max(max(sum(value for value, _ in row.parts), (row.interval or (0, 0))[1]) for row in rows) or 1.0
    room = WIDE - LABEL - 140  # behind it stand the texts
    scale, high = room / most, TOP + ROW * len(rows) + BOTTOM
    parts = []
    for value in ticks(0.0, most, 5):
        at = LABEL + scale * value
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{high - BOTTOM}"/>')
        parts.append(_text(at, high - BOTTOM + 16, short_number(value), "middle"))
    parts.append(_text(LABEL + room / 2, high - 6, x_title, "middle", "axis"))
    for place, row in enumerate(rows):
        top, at = TOP + ROW * place + 6, float(LABEL)
        found = [_row_label(row.name, top + 13)]
        for number, (value, told) in enumerate(row.parts):
            faint = f' fill-opacity="{max(0.15, 1 - 0.22 * number):.2f}"' if shades else ""
            shape = f'x="{at:.1f}" y="{top}" width="{scale * value:.1f}" height="{ROW - 12}"'
            found.append(f'<rect class="bar{" open" * row.open}"{faint} {shape}><title>{escape(told)}</title></rect>')
            at += scale * value
        if row.interval is not None and row.interval[0] < row.interval[1]:
            low, upper = (LABEL + scale * max(0.0, value) for value in row.interval)
            middle = top + (ROW - 12) / 2
            whisker = f"M{low:.1f} {middle - 5} v10 M{low:.1f} {middle} H{upper:.1f} M{upper:.1f} {middle - 5} v10"
            found.append(f'<path class="whisker" d="{whisker}"/>')
            at = max(at, upper)
        found.append(_text(at + 7, top + 13, row.text))
        parts.append(f'<g class="series c{row.colour}" data-name="{escape(row.name)}">{"".join(found)}</g>')
    return Chart(title, WIDE, high, "".join(parts))


def histograms(title: str, groups: Mapping[str, tuple[int, Mapping[int, float]]], x_title: str) -> Chart | None:
    """Draw a histogram (percentages by whole number) in a row of its own for each group."""
    groups = {name: each for name, each in groups.items() if each[1]}
    if not groups:
        return None
    last = max(max(each) for _, each in groups.values())
    width, row = (WIDE - LABEL - RIGHT) / (last + 1), 46
    high = TOP + row * len(groups) + BOTTOM
    parts = []
    for place, (name, (colour, found)) in enumerate(groups.items()):
        base, most = TOP + row * (place + 1) - 4, max(found.values())
        shapes = [
            _row_label(name, base - 14),
            f'<line class="grid" x1="{LABEL}" x2="{WIDE - RIGHT}" y1="{base}" y2="{base}"/>',
        ]
        for step, percent in found.items():
            tall = max(0.7, (row - 12) * percent / most)
            shape = f'x="{LABEL + width * step:.1f}" y="{base - tall:.1f}" height="{tall:.1f}" '
            shape += f'width="{max(1.0, width - 1):.1f}"'
            shapes.append(f'<rect class="bar" {shape}><title>{step}: {percent:.2g} %</title></rect>')
        parts.append(f'<g class="series c{colour}" data-name="{escape(name)}">{"".join(shapes)}</g>')
    for value in ticks(0.0, last, 8):
        if value == int(value):
            parts.append(_text(LABEL + width * (value + 0.5), high - BOTTOM + 14, f"{value:.0f}", "middle"))
    parts.append(_text((LABEL + WIDE - RIGHT) / 2, high - 6, x_title, "middle", "axis"))
    return Chart(title, WIDE, high, "".join(parts))


def strips(
    title: str, rows: Mapping[str, Sequence[tuple[float, float, float]]], marks: Iterable[tuple[str, float, str]],
    end: float, x_title: str,
) -> Chart:  # fmt: skip
    """Draw a strip for each process: cells (begin, end, speed as a share of the usual one), the darker the slower.

    `marks`: (process, time, text) of failures."""
    width, row, left = 2 * WIDE, 16, 60
    high = TOP + row * len(rows) + BOTTOM
    scale = (width - left - RIGHT) / (end or 1.0)
    places = {name: TOP + row * number for number, name in enumerate(rows)}
    parts = []
    for name, cells in rows.items():
        parts.append(_text(left - 6, places[name] + 12, name, "end"))
        for begin, stop, share in cells:
            shape = f'x="{left + scale * begin:.1f}" y="{places[name] + 1}" width="{scale * (stop - begin) + 0.3:.1f}"'
            told = f"<title>{escape(name)}, {begin:.3g} to {stop:.3g} s: {100 * share:.0f} % of the usual speed</title>"
            dark = min(1.0, max(0.0, 1.15 * (1.0 - share)))
            parts.append(f'<rect class="usual" {shape} height="{row - 2}"/>')
            if dark > 0.05:
                parts.append(
                    f'<rect class="slowness" fill-opacity="{dark:.2f}" {shape} height="{row - 2}">{told}</rect>'
                )
    for name, at, text in marks:
        if name in places:
            x, y = left + scale * at, places[name] + row / 2
            cross = f"M{x - 5:.1f} {y - 5} l10 10 m0 -10 l-10 10"
            parts.append(f'<path class="cross" d="{cross}"><title>{escape(text)}</title></path>')
    for value in ticks(0.0, end, 10):
        parts.append(_text(left + scale * value, high - BOTTOM + 16, short_number(value), "middle"))
    parts.append(_text((left + width - RIGHT) / 2, high - 6, x_title, "middle", "axis"))
    return Chart(title, width, high, "".join(parts), "wide")


def heat_map(title: str, rows: Mapping[str, Mapping[str, float]]) -> Chart:
    """Draw a row for each process and a column for each phase, the darker the larger its share of the time."""
    width, row, left = 2 * WIDE, 16, 60
    phases = list(dict.fromkeys(phase for shares in rows.values() for phase in shares))
    wide = (width - left - RIGHT) / max(1, len(phases))
    parts = [_text(left + wide * (n + 0.5), TOP - 4, phase, "middle") for n, phase in enumerate(phases)]
    for number, (name, shares) in enumerate(rows.items()):
        y = TOP + row * number
        parts.append(_text(left - 6, y + 12, name, "end"))
        for column, phase in enumerate(phases):
            if (share := shares.get(phase)) is None:
                continue
            shape = f'x="{left + wide * column + 1:.1f}" y="{y + 1}" width="{wide - 2:.1f}" height="{row - 2}"'
            told = f"<title>{escape(name)}, {escape(phase)}: {100 * share:.0f} % of its time</title>"
            parts.append(f'<rect class="usual" {shape}/>')
            parts.append(f'<rect class="slowness" fill-opacity="{share:.2f}" {shape}>{told}</rect>')
    return Chart(title, width, TOP + row * len(rows) + 8, "".join(parts), "wide")


def interval(low: float, mean: float, high: float, most: float, neutral: float, margin: float | None) -> str:
    """Draw an interval for a cell of the table, on the scale neutral +- `most`, with the margin as a grey band."""
    width, height = 90, 16

    def x(value: float) -> float:
        return width / 2 + (width / 2 - 2) * max(-1.0, min(1.0, (value - neutral) / (most or 1.0)))

    band = ""
    if margin is not None:
        left, right = x(neutral - margin), x(neutral + margin)
        band = f'<rect class="margin" x="{left:.1f}" y="0" width="{max(1.0, right - left):.1f}" height="{height}"/>'
    middle = f'<line class="zero" x1="{width / 2}" x2="{width / 2}" y1="0" y2="{height}"/>'
    line = f'<line class="whisker" x1="{x(low):.1f}" x2="{x(high):.1f}" y1="8" y2="8"/>'
    dot = f'<circle class="dot" cx="{x(mean):.1f}" cy="8" r="3.2"/>'
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg class="interval" {size}>{band}{middle}{line}{dot}</svg>'


def _row_label(name: str, y: float) -> str:
    """Write a row's name into the width of its label, in two lines where it is long; the whole name is its hover."""
    first, _, rest = name.partition(", ") if len(name) > LETTERS else (name, "", "")
    lines = [text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}\u2026" for text in (first, rest) if text]
    shift = -6 * (len(lines) - 1)
    spans = "".join(
        f'<tspan x="{LABEL - 8}" y="{y + shift + 12 * number:.1f}">{escape(text)}</tspan>'
        for number, text in enumerate(lines)
    )
    return f'<text class="name" text-anchor="end">{spans}<title>{escape(name)}</title></text>'


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
