"""Announcements a second that the coordinator can process: a cell of the scale study, with few nodes and many batches.

../scale/coordinator_sockets.py emulates every node but the coordinator. The emulated nodes share the machine with it,
so its own CPU seconds are given, too.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench_lines import Line

EXPERIMENTS = Path(__file__).resolve().parents[1]
sys.path += [str(EXPERIMENTS), str(EXPERIMENTS / "scale")]

import coordinator_sockets  # noqa: E402  (a script of another study, not a package)


def measure(batches: int) -> dict[str, Any]:
    """Measure asynchronous training, where every announcement is an order."""
    overrides = ("mode=async", "cluster.workers=4", "cluster.servers=1", f"+tracking.tags.batches='{batches}'")
    with tempfile.TemporaryDirectory(prefix="gbactl-announcements-") as folder:
        return coordinator_sockets.run(overrides, Path(folder))


def line(rounds: int, batches: int) -> Line:
    """Line for the table: announcements a second, and microseconds of the coordinator's CPU for each."""
    found = [measure(batches) for _ in range(rounds)]
    cpu = statistics.median(each["us"] for each in found)
    note = f"async, 4 workers, 1 server; {cpu:.0f} us of its CPU each"
    rates = [each["rate"] for each in found]
    return Line("announcements", "announcements a second at the coordinator", rates, 10_000, note=note)
