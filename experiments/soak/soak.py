"""Trainings in every mode whose processes are killed and stopped and whose messages are lost, one after the other.

    .venv/bin/python experiments/soak/soak.py [--minutes 30] [--seed 0] [--out runs/soak]

After each: it ended well, every sample has one fate, every strike was done, no process, shared memory, socket or
unfinished file is left, and the model equals its replay, or, where the run cannot be replayed, has its checksum. Prints
a line a training; exit code 1 as soon as one of them is not so, with the command that does it again. Costs two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

import leftovers  # noqa: E402  (scripts beside this one, not a package)
from trouble import ROWS, Training, draw  # noqa: E402

LIMIT_SECONDS = 180.0
CANNOT = "cannot be replayed"


class Wrong(Exception):
    """Something that has to hold does not."""


def gbactl(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises Wrong if it takes too long; what it started is killed then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gbactl", *arguments], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise Wrong(f"gbactl {arguments[0]} did not end within {LIMIT_SECONDS:.0f} s") from None
    except BaseException:
        process.send_signal(signal.SIGINT)
        process.communicate()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def trained(training: Training, run_dir: Path) -> dict[str, Any]:
    """Train; result.json. Raises Wrong unless it ends well and its accounts add up."""
    done = gbactl("train", *training.overrides, f"run_dir={run_dir}", "tracking.enabled=false")
    if done.returncode:
        raise Wrong(f"gbactl train ended with {done.returncode}: {done.stderr.strip().splitlines()[-1:]}")
    result: dict[str, Any] = json.loads((run_dir / "result.json").read_text())
    counted = result["samples"]
    if not counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == ROWS:
        raise Wrong(f"the samples do not add up: {counted}")
    plan = run_dir / "faults.json"
    struck = json.loads(plan.read_text()).get("injected", []) if plan.exists() else []
    if len(struck) < training.must:
        raise Wrong(f"of the plan only this was done: {struck}")
    return result


def replayed(run_dir: Path, result: dict[str, Any]) -> str:
    """How the model was checked. Raises Wrong if it is another one than the event log says."""
    done = gbactl("replay", str(run_dir))
    if done.returncode == 0:
        return "replayed to the bit"
    if CANNOT not in done.stderr:
        raise Wrong(f"gbactl replay: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    if not result["checksums"].get("model"):
        raise Wrong(f"the run has no checksum of its model: {result['checksums']}")
    return "has its checksums"


def told(training: Training, result: dict[str, Any], checked: str, seconds: float) -> str:
    """A line."""
    struck = ", ".join(f"{each['process']} {each['failure']}" for each in result.get("recovery", [])) or "nobody lost"
    plan = "; ".join(training.strikes)
    return f"{training.number:3} {training.mode:13} {seconds:4.0f} s  {checked}  [{plan}] {struck}"


def one(seed: int, number: int, out: Path) -> str:
    """A training and its checks. Raises Wrong."""
    training, began = draw(seed, number), time.monotonic()
    run_dir = out / f"{seed}-{number}"
    before = leftovers.found(run_dir)
    result = trained(training, run_dir)
    left = leftovers.wait(run_dir, before)
    if left:
        raise Wrong(f"left behind: {', '.join(sorted(left))}")
    return told(training, result, replayed(run_dir, result), time.monotonic() - began)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first training")
    parser.add_argument("--out", type=Path, default=Path("runs/soak") / time.strftime("%Y%m%d-%H%M%S"))
    given = parser.parse_args()
    end, number = time.monotonic() + 60.0 * given.minutes, given.first
    while time.monotonic() < end:
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
