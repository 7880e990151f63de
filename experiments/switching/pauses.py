"""Study 3: training pause of a switch, compared with stopping and restarting by hand.

    .venv/bin/python experiments/switching/pauses.py      # the restarts; kept in runs/studies/switching/

By hand: a checkpoint, as fast as the disk takes it (samples trained meanwhile are lost); Ctrl-C, until all processes
have ended; a new run in the other mode that resumes from it, to its first step. Takes 15 to 40 s a cell; nothing else
may run.
"""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study  # noqa: E402
import study_results  # noqa: E402  (scripts of the parent folder, not a package)

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder  # noqa: E402
from gbactl.coordinator import event_log  # noqa: E402
from gbactl.errors import EventLogError  # noqa: E402

SWEEP = HERE / "sweep.yaml"
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


def wait(process: subprocess.Popen[bytes], until: Callable[[], bool], name: str) -> None:
    """Wait until a condition holds. Raises SystemExit when the process ends before, or after LIMIT_SECONDS."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not until():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{name}\ncame to no step; look into runs/studies/switching.")
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


def restart(cell: study.Cell, folder: Path) -> dict[str, float]:
    """Measure the seconds of every step of a restart by hand, sync -> gba."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    old, new = folder / "before", folder / "after"
    saving = ("checkpoint=full", f"checkpoint.interval_steps={STEPS}", "checkpoint.mb_per_second=0")
    before = start(old, *cell.overrides, "switch.prepare=all", *saving)
    after: subprocess.Popen[bytes] | None = None
    try:
        wait(before, lambda: begun(old), cell.name)
        marks = [time.monotonic()]
        wait(before, lambda: bool(CheckpointFolder(old / CHECKPOINTS).names()), cell.name)
        marks.append(time.monotonic())
        stop(before)
        marks.append(time.monotonic())
        after = start(new, f"resume={old}", "mode=gba", "checkpoint=none")
        wait(after, lambda: orders(new / "events.log") >= 1, cell.name)
        marks.append(time.monotonic())
    finally:
        for process in (before, after):
            if process is not None:
                stop(process)
        shutil.rmtree(old / CHECKPOINTS, ignore_errors=True)
    return dict(zip(PARTS, (end - begin for begin, end in itertools.pairwise(marks)), strict=True))


def kept(cell: study.Cell) -> Path:
    """Path of a cell's measurement."""
    return study.folder_of(cell, study.code_version()) / "restart.json"


def measured() -> dict[tuple[str, str], dict[str, float]]:
    """Seconds of the restarts by (rows, workers). Raises SystemExit where one was not measured."""
    found = {}
    for cell in study_results.part(SWEEP, "restarts").cells:
        if not kept(cell).exists():
            raise SystemExit(f"{cell.name}\nwas not measured; type: make switching")
        found[key_of(study_results.options(cell.overrides))] = json.loads(kept(cell).read_text())
    return found


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


def table(cells: Sequence[study_results.Done], restarts: dict[tuple[str, str], dict[str, float]]) -> str:
    """Markdown table, one line for each table size and number of workers."""
    lines = [
        f"| {' | '.join(HEADS)} |",
        "| --- |" + " ---: |" * (len(HEADS) - 1),
    ]  # fmt: skip
    for cell in cells:
        (each, slower), by_hand = pauses(cell.result), restarts[key_of(cell.options)]
        bound, median, largest = max(LEAST_MS, LEAST_STEPS * slower), statistics.median(each), max(each)
        parts = [by_hand[name] for name in PARTS]
        ratio = 1000.0 * sum(parts) / median
        met = f"**{largest:.0f}**" if largest <= bound else f"{largest:.0f}"
        cut = f"**{ratio:.0f}**" if ratio >= TARGET else f"{ratio:.0f}"
        seconds = " | ".join(f"{part:.2f}" for part in [*parts, sum(parts)])
        rows, workers = key_of(cell.options)
        lines.append(f"| {rows} | {workers} | {median:.0f} | {met} | {bound:.0f} | {seconds} | {cut} |")
    notes = [
        "- pause: last gradient before to first gradient after, eight switches between sync and gba a line.",
        f"- bound: {LEAST_MS:.0f} ms or {LEAST_STEPS} steps of the slower mode; bold: kept; at least {TARGET}.",
        "- restart: a checkpoint, as fast as the disk takes it (what is trained meanwhile is lost); Ctrl-C to all "
        "processes gone; `resume=` in the other mode to its first step.",
    ]  # fmt: skip
    return "\n".join([*lines, "", *notes]) + "\n"


def main() -> None:
    """Measure the restarts that were not measured yet."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it, children too
    cells = study_results.part(SWEEP, "restarts").cells
    for number, cell in enumerate(cells, 1):
        path = kept(cell)
        if not path.exists():
            found = restart(cell, path.parent)
            path.write_text(json.dumps(found) + "\n")
        print(
            f"restarts {number}/{len(cells)}  {' '.join(key_of(study_results.options(cell.overrides)))}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
