"""Soak test: trainings in every mode whose processes are killed and stopped and whose messages are lost, in sequence.

    .venv/bin/python experiments/soak/soak.py [--minutes 30] [--seed 0] [--out runs/soak]

Checked after each training: it ended well, every sample has one fate, every fault was injected, no process, shared
memory, socket or unfinished file is left, the files of its last checkpoint have the model of its result, and, where the
run can be replayed, so has its replay. A training whose launcher is killed continues with resume=. Prints a line a
training; stops with exit code 1 at the first failed check, with the command that repeats the training. Uses two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder, read_manifest

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import leftovers  # noqa: E402
import run_checks  # noqa: E402  (scripts in the same folder, not a package)
from fault_plans import RINGS, ROWS, Training, draw, planned  # noqa: E402
from run_checks import Wrong  # noqa: E402

LIMIT_SECONDS, LOOK_SECONDS = 180.0, 0.01


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a gbactl command."""
    return subprocess.Popen(
        [sys.executable, "-m", "gbactl", *arguments], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def end(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait for the end of a command. Raises Wrong if it takes too long, and then kills all its processes."""
    try:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Wrong(f"{' '.join(process.args[2:5])} did not end within {LIMIT_SECONDS:.0f} s") from None
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def installed() -> tuple[str, ...]:
    """All-reduce implementations installed on this machine."""
    return tuple(ring for ring in RINGS if ring != "horovod" or importlib.util.find_spec(ring))


def kill(launcher: subprocess.Popen[str], run_dir: Path, after: float) -> None:
    """Kill a launcher `after` seconds from its first checkpoint, unless its training has ended by then."""
    folder = CheckpointFolder(run_dir / CHECKPOINTS)
    while not folder.names():
        if launcher.poll() is not None:
            return
        time.sleep(LOOK_SECONDS)
    time.sleep(after)
    if not read_manifest(folder.path / folder.names()[-1]).position["ended"]:
        launcher.kill()


def trained(training: Training, run_dir: Path, before: set[str]) -> bool:
    """Train, resume where the launcher was killed, and return whether it was. Raises Wrong unless it ends well."""
    launcher = start("train", *training.overrides, f"run_dir={run_dir}", "tracking.enabled=false")
    if training.again:
        threading.Thread(target=kill, args=(launcher, run_dir, training.after), daemon=True).start()
    done = end(launcher)
    went_on = bool(training.again) and done.returncode == -signal.SIGKILL
    if went_on:
        _nothing(leftovers.wait(leftovers.running, before), "this runs without its launcher")
        done = end(start("train", f"resume={run_dir}", planned(training.again)))
    if done.returncode:
        which = "gbactl train resume=" if went_on else "gbactl train"
        raise Wrong(f"{which} ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    return went_on


def _nothing(left: set[str], what: str) -> None:
    if left:
        raise Wrong(f"{what}: {', '.join(sorted(left))}")


def told(training: Training, result: dict[str, Any], went_on: bool, again: bool, seconds: float) -> str:
    """Line of output about a training."""
    lost = [f"{each['process']} {each['failure']}" for each in result.get("recovery", [])]
    if went_on:
        lost = [f"launcher kill, on from step {result['checkpoint']['resumed_at']}", *lost]
    how = "replayed to the bit" if again else "as its checkpoint"
    ring, variant = result["collective"] or "-", result["checkpoint"]["name"]
    plan = f"[{'; '.join(training.strikes)}] {', '.join(lost) or 'nobody lost'}"
    return f"{training.number:3} {training.mode:13} {variant:8} {ring:7} {seconds:4.0f} s  {how}  {plan}"


def one(seed: int, number: int, out: Path) -> str:
    """Run a training and its checks. Raises Wrong."""
    training, began = draw(seed, number, installed()), time.monotonic()
    run_dir = out / f"{seed}-{number}"
    before = leftovers.found(run_dir)
    went_on = trained(training, run_dir, before)
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    run_checks.accounts(result, ROWS)
    begun = result["checkpoint"]["resumed_at"] if went_on else -1
    plan = training.again if went_on else training.plan
    run_checks.struck(run_dir, [strike.must for strike in plan if strike.must and strike.step > begun])
    _nothing(leftovers.wait(lambda: leftovers.found(run_dir), before), "left behind")
    run_checks.model(run_dir, result)
    server_lost = any(each["process"].startswith("S") for each in result.get("recovery", []))
    expected = training.replayed and not server_lost and not went_on
    again = run_checks.replayed(end(start("replay", str(run_dir))), expected)
    return told(training, result, went_on, again, time.monotonic() - began)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first training")
    parser.add_argument("--out", type=Path, default=Path("runs/soak") / time.strftime("%Y%m%d-%H%M%S"))
    given = parser.parse_args()
    until, number = time.monotonic() + 60.0 * given.minutes, given.first
    while time.monotonic() < until:
        try:
            print(one(given.seed, number, given.out), flush=True)
        except Wrong as wrong:
            again = f"--seed {given.seed} --first {number} --minutes 0.01"
            print(f"{number:3} {draw(given.seed, number).mode}: {wrong}\nAgain: {__file__} {again}", flush=True)
            return 1
        number += 1
    print(f"{number - given.first} trainings, all well.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
