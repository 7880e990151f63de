"""Event log's share of a run's time: its records are written again, timed, and compared with the run itself.

The rewriting makes the same calls (grants and announcements buffered, every order handed to the system), so its
seconds are the coordinator's; they are compared with the seconds of training.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench_lines import Line
from ratio_sides import Bench


def replay(records: list[Any], target: Path) -> float:
    """Write these records to a new log and return the seconds it took."""
    from gbactl.coordinator.event_log import EventLog

    log = EventLog(target, {})
    began = time.perf_counter()
    for record in records:
        log.write(record)
    log.flush()
    seconds = time.perf_counter() - began
    log.close()
    return seconds


def measure(bench: Bench, rounds: int) -> Line:
    """Measure the log of an asynchronous run, with one order a gradient: the most there is to write."""
    from gbactl.coordinator.event_log import END, read

    result = bench.train("async", 4, 512)
    path = Path(result["run_dir"]) / "events.log"
    records = [r for r in read(path) if getattr(r, "kind", None) != END]
    training = sum(phase["seconds"] for phase in result["phases"])
    seconds = [replay(records, bench.scratch / "replayed.log") for _ in range(max(3, rounds))]
    gradients = sum(result["gradients"].values())
    each = 1e6 * sorted(seconds)[len(seconds) // 2] / gradients
    note = f"{path.stat().st_size / gradients:.0f} bytes and {each:.0f} us a gradient, {gradients} gradients"
    shares = [100 * s / training for s in seconds]
    what = "event log, share of the time of async 4+1"
    return Line("eventlog", what, shares, 2.0, at_least=False, percent=True, note=note)
