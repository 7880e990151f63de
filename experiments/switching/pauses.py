"""Training pause of a switch, compared with stopping and restarting by hand.

A restart by hand is a cell of the part `restarts`, which `run` measures (see study.py): a checkpoint, as fast as the
disk takes it (samples trained meanwhile are lost); Ctrl-C, until all processes have ended; a new run in the other mode
that resumes from it, to its first step. Takes 15 to 40 s a cell; nothing else may run.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from report_tables import markdown
from study_results import Done

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.coordinator import event_log
from gbactl.errors import ClusterError, EventLogError

STEPS, LOOK_SECONDS, LIMIT_SECONDS = 10, 0.005, 300.0
PARTS = ("save", "stop", "start")
HEADS = (
    "rows", "workers", "pause, ms: median", "largest", "bound", "restart, s: save", "stop", "start and load", "all",
    "restart / pause",
)  # fmt: skip
LEAST_MS, LEAST_STEPS, TARGET = 300.0, 3, 50


def orders(path: Path) -> int:
    """Count the steps in an event log that is still being written."""
    count = 0
    try:
        for record in event_log.read(path):
            count += isinstance(record, event_log.OrderRecord)
    except EventLogError:  # not there yet, or cut off in a record being written
        pass
    return count


def start(folder: Path, *overrides: str) -> subprocess.Popen[bytes]:
    """Start an untracked training."""
    return subprocess.Popen(
        [sys.executable, "-m", "gbactl", "train", *overrides, f"run_dir={folder}", "tracking.enabled=false",
         "cluster.stop_seconds=0"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def wait(process: subprocess.Popen[bytes], until: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises ClusterError when the process ends before, or after LIMIT_SECONDS."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not until():
        if process.poll() is not None or time.monotonic() > deadline:
            raise ClusterError("The training came to no step.")
        time.sleep(LOOK_SECONDS)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a training with SIGINT and wait until it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait(LIMIT_SECONDS)


def begun(run: Path) -> bool:
    """Whether a checkpoint of a run is being written, or exists."""
    folder = run / CHECKPOINTS
    return folder.is_dir() and any(folder.iterdir())


def run(overrides: Sequence[str], folder: Path) -> dict[str, float]:
    """Measure the seconds of every step of a restart by hand, sync -> gba."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it, children too
    old, new = folder / "before", folder / "after"
    saving = ("checkpoint=full", f"checkpoint.interval_steps={STEPS}", "checkpoint.mb_per_second=0")
    before = start(old, *overrides, "switch.prepare=all", *saving)
    after: subprocess.Popen[bytes] | None = None
    try:
        wait(before, lambda: begun(old))
        marks = [time.monotonic()]
        wait(before, lambda: bool(CheckpointFolder(old / CHECKPOINTS).names()))
        marks.append(time.monotonic())
        stop(before)
        marks.append(time.monotonic())
        after = start(new, f"resume={old}", "mode=gba", "checkpoint=none")
        wait(after, lambda: orders(new / "events.log") >= 1)
        marks.append(time.monotonic())
    finally:
        for process in (before, after):
            if process is not None:
                stop(process)
    return dict(zip(PARTS, (end - begin for begin, end in itertools.pairwise(marks)), strict=True))


def key_of(options: dict[str, str]) -> tuple[str, str]:
    """Key (rows, workers) of a cell."""
    return options["rows"], options["cluster.workers"]


def pauses(result: dict[str, Any]) -> tuple[list[float], float]:
    """Milliseconds of every pause, and of a step of the slower mode, by the coordinator's clock."""
    phases = result["phases"]
    steps: dict[str, list[float]] = {}
    for phase in phases:
        if phase["steps"] > 1:
            steps.setdefault(phase["mode"], []).append(1000.0 * phase["seconds"] / phase["steps"])
    slower = max(statistics.median(each) for each in steps.values())
    return [phase["pause_ms"] for phase in phases if phase["pause_ms"] is not None], slower


def table(cells: Sequence[Done], restarts: Sequence[Done]) -> str:
    """Markdown table, one line for each table size and number of workers."""
    measured = {key_of(restart.options): restart.result for restart in restarts}
    rows = []
    for cell in cells:
        (each, slower), by_hand = pauses(cell.result), measured[key_of(cell.options)]
        bound, median, largest = max(LEAST_MS, LEAST_STEPS * slower), statistics.median(each), max(each)
        parts = [by_hand[name] for name in PARTS]
        ratio = 1000.0 * sum(parts) / median
        met = f"**{largest:.0f}**" if largest <= bound else f"{largest:.0f}"
        cut = f"**{ratio:.0f}**" if ratio >= TARGET else f"{ratio:.0f}"
        seconds = (f"{part:.2f}" for part in [*parts, sum(parts)])
        rows.append([*key_of(cell.options), f"{median:.0f}", met, f"{bound:.0f}", *seconds, cut])
    notes = (
        "pause: the time from the last gradient before a switch to the first gradient after it; a line has eight "
        "switches between sync and gba.",
        f"bound: {LEAST_MS:.0f} ms or {LEAST_STEPS} steps of the slower mode, whichever is longer; bold: no pause is "
        f"longer than the bound, or a restart takes at least {TARGET} times a median pause.",
        "restart: the seconds for saving a checkpoint as fast as the disk takes it (what is trained meanwhile is "
        "lost), from Ctrl-C to the end of all processes, and from `resume=` in the other mode to its first step.",
    )
    return markdown(HEADS, rows, *notes)
