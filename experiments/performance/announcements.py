"""Announcements a second that the coordinator can process: a cell of the scale study, with few nodes and many batches.

    python experiments/performance/announcements.py [--mode gba] [--workers 4] [--servers 1] [--batches 100000]

../scale/coordinator_sockets.py emulates every node but the coordinator. The emulated nodes share the machine with it,
so its own CPU seconds are given, too.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from bench_lines import Line

EXPERIMENTS = Path(__file__).resolve().parents[1]
sys.path += [str(EXPERIMENTS), str(EXPERIMENTS / "scale")]

import coordinator_sockets  # noqa: E402  (a script of another study, not a package)


def measure(mode: str, workers: int, servers: int, batches: int) -> tuple[float, float]:
    """Measure announcements a second, and microseconds of the coordinator's CPU for each."""
    cluster = (f"mode={mode}", f"cluster.workers={workers}", f"cluster.servers={servers}")
    with tempfile.TemporaryDirectory(prefix="gbactl-announcements-") as folder:
        found = coordinator_sockets.run((*cluster, f"+tracking.tags.batches='{batches}'"), Path(folder))
    return found["rate"], found["us"]


def line(rounds: int, batches: int) -> Line:
    """Line for the table: asynchronous training, where every announcement is an order."""
    found = [measure("async", 4, 1, batches) for _ in range(rounds)]
    note = f"async, 4 workers, 1 server; {np.median([cpu for _, cpu in found]):.0f} us of its CPU each"
    rates = [rate for rate, _ in found]
    return Line("announcements", "announcements a second at the coordinator", rates, 10_000, note=note)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="async")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=100_000)
    given = parser.parse_args()
    rate, cpu = measure(given.mode, given.workers, given.servers, given.batches)
    print(f"{rate:,.0f} announcements a second; {cpu:.1f} us of the coordinator's CPU each")


if __name__ == "__main__":
    main()
