"""Tables of the hosts study."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from links import Link  # a script in the same folder, not a package
from report_tables import markdown  # a script of the parent folder

CLASSES = ("dense", "rows", "ids", "control")
RELAYED = ("cpu_seconds", "late", "frames", "dropped")
PROMISE = 15  # largest error of a prediction, in percent


@dataclass(frozen=True)
class Row:
    """Mode on a link: its trainings, and the EPS that the virtual cluster predicted.

    `line`: the link as the doctor measured it. `less`: the EPS predicted for workers that are slower by the relay's CPU
    use.
    """

    link: Link
    line: dict[str, Any]
    mode: str
    trained: tuple[dict[str, Any], ...]
    foreseen: float
    wire: str = "fp32"
    less: float | None = None

    @property
    def eps(self) -> float:
        """Median EPS of the trainings."""
        return statistics.median(each["eps"] for each in self.trained)

    @property
    def spread(self) -> str:
        """Range of the trainings' EPS: least - most."""
        found = [each["eps"] for each in self.trained]
        return f"{min(found):,.0f} - {max(found):,.0f}"

    @property
    def error(self) -> float:
        """Error of the prediction, in percent of the measured EPS."""
        return 100 * (self.foreseen / self.eps - 1)

    @property
    def best_error(self) -> float:
        """Error of the prediction that includes the relay's CPU use, if there is one."""
        return self.error if self.less is None else 100 * (self.less / self.eps - 1)

    @property
    def _total(self) -> dict[str, float]:
        return {name: sum(each.get(name, 0) for each in self.trained) for name in (*RELAYED, "seconds")}

    @property
    def taken(self) -> float:
        """Relay's share of a core."""
        return self._total["cpu_seconds"] / self._total["seconds"]

    @property
    def relay(self) -> str:
        """Relay's share of a core, mean delay of frames beyond the one asked for, and number of frames dropped."""
        total = self._total
        if not total["frames"]:
            return "-"
        return f"{100 * self.taken:.0f} %, {1e6 * total['late'] / total['frames']:.0f} us, {total['dropped']:.0f}"


def told(line: dict[str, Any]) -> str:
    """Format a link as the doctor measured it."""
    return f"{line['bandwidth_gbit']:.3g} Gbit/s, {line['latency_us']:,.0f} us"


def ceiling(own: dict[str, Any], relayed: dict[str, Any]) -> str:
    """List of the best that the machine and the relay can do."""
    more = relayed["latency_us"] - own["latency_us"]
    return "\n".join([
        f"- The link between the two namespaces without a limit has {told(own)} one way.",
        f"- With a relay that delays nothing, this link has {told(relayed)}, of which {more:,.0f} us are the relay's.",
        "- No link with a delay is faster than the relay, whatever `tc` allows. A frame waits for the requested delay",
        "  minus the relay's own latency.",
        f"- The relay dropped {relayed['dropped']:.0f} of {relayed['frames']:,.0f} frames.",
    ])  # fmt: skip


def measured(rows: Sequence[Row]) -> str:
    """Table of EPS on every link, and the prediction's error."""
    heads = (
        "link", "delay, ms", "as measured", "mode", "EPS (least - most)", "predicted", "error",
        "without the relay's share", "relay: of a core, late, dropped",
    )  # fmt: skip
    cells = ([
        row.link.rate, f"{row.link.delay:g}", told(row.line), f"`{row.mode}`", f"{row.eps:,.0f} ({row.spread})",
        f"{row.foreseen:,.0f}", f"{row.error:+.0f} %", _less(row), row.relay,
    ] for row in rows)  # fmt: skip
    return markdown(heads, cells, names=(0, 2, 3, 8))


def _less(row: Row) -> str:
    return "-" if row.less is None else f"{row.less:,.0f}, {row.best_error:+.0f} %"


def kept_promise(rows: Sequence[Row]) -> str:
    """Sentence on the number of predictions within the promised error, without and with the relay's CPU use."""
    near = sum(abs(row.error) <= PROMISE for row in rows)
    better = sum(abs(row.best_error) <= PROMISE for row in rows)
    worst = max(rows, key=lambda row: abs(row.best_error))
    where = f"`{worst.mode}` at {worst.link.rate}, {worst.link.delay:g} ms"
    return (
        f"{near} of {len(rows)} predictions are within {PROMISE} %, and {better} if the cost model contains the CPU "
        f"that the relay takes; the largest error is then {worst.best_error:+.0f} % ({where})."
    )


def paying(rows: Sequence[Row]) -> str:
    """Table of the fastest mode on every link, measured and predicted, in EPS of sync."""
    heads = ("link", "delay, ms", "fastest mode", "times sync", "foreseen: fastest", "times sync")
    cells = (
        [link.rate, f"{link.delay:g}", *_fastest({row.mode: (row.eps, row.foreseen) for row in those})]
        for link, those in groupby(rows, key=lambda row: row.link)
    )
    return markdown(heads, cells, names=(0, 2, 4))


def _fastest(modes: dict[str, tuple[float, float]]) -> list[str]:
    cells = []
    for which in (0, 1):
        best = max(modes, key=lambda mode: modes[mode][which])
        ratio = f"{modes[best][which] / modes['sync'][which]:.2f}" if "sync" in modes else "-"
        cells += [f"`{best}`", ratio]
    return cells


def weights(rows: Sequence[Row]) -> str:
    """Table of kilobytes sent a step, by class."""
    heads = ("mode", "`transport.wire_dtype`", *(f"{name}, kB" for name in (*CLASSES, "all")), "EPS")
    cells = []
    for row in rows:
        sent = row.trained[0]["bytes_per_step"]
        kilobytes = [f"{each / 1e3:,.1f}" for each in (*(sent[name] for name in CLASSES), sum(sent.values()))]
        cells.append([f"`{row.mode}`", row.wire, *kilobytes, f"{row.eps:,.0f}"])
    return markdown(heads, cells, names=(0, 1))
