"""Profile of each role of `async`, with 4 workers and 1 server, and of one process alone.

    .venv/bin/python experiments/performance/profile_run.py [--seconds 10] [--out FOLDER]

py-spy samples, 200 times a second, every thread of W0, S0 and C that runs or could run. (A runnable thread whose core
is taken by another stays where it was: a `write` that woke another thread looks longer than it takes.) A kernel's or
torch's time counts for the function that called it. torch's profiler records the operators of the plain loop
(plain_loop.py). CPU time a sample is counted from /proc during the same run. Writes profile.md. Two minutes; the
machine should be idle.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_report import command_line, machine
from process_group import end_on_sigterm, one_thread_each
from ratio_sides import Bench, SideError, steady
from server_cpu import Sampler, usage

HERE = Path(__file__).resolve().parent
BATCH, WORKERS, ROWS = 512, 4, 1_500_000
NODES = {"W0": "a worker", "S0": "the server", "C": "the coordinator"}
TOP = 14
PER_SECOND = 200
PATIENCE = 60.0
STEPS = 200


@dataclass(frozen=True)
class Stack:
    """Sampled call stack of one thread, outermost frame first, and its number of samples."""

    thread: str
    frames: tuple[str, ...]
    count: int


def stacks(raw: str) -> list[Stack]:
    """Parse py-spy's raw format: frames separated by ';', the thread first, the count last."""
    found = []
    for line in raw.splitlines():
        frames, _, count = line.rpartition(" ")
        thread, *rest = [frame for frame in frames.split(";") if not frame.startswith("process ")]
        found.append(Stack(thread.partition("): ")[2].strip('"') or thread, tuple(rest), int(count)))
    return found


def own(found: Sequence[Stack]) -> Counter[tuple[str, str]]:
    """Count samples by (thread, innermost Python function)."""
    counts: Counter[tuple[str, str]] = Counter()
    for stack in found:
        counts[stack.thread, stack.frames[-1] if stack.frames else "?"] += stack.count
    return counts


def record(pids: Mapping[str, int], seconds: float, scratch: Path) -> dict[str, list[Stack]]:
    """Record stacks of each node with py-spy. Raises SideError where py-spy lacks permission."""
    looking = {
        node: subprocess.Popen(
            [
                str(Path(sys.executable).parent / "py-spy"), "record", "--pid", str(pids[node]), "--format", "raw",
                "--rate", str(PER_SECOND), "--duration", str(round(seconds)), "--threads", "--function",
                "--nonblocking", "--output", str(scratch / f"{node}.raw"),
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for node in NODES
    }  # fmt: skip
    for node, process in looking.items():
        _, told = process.communicate(timeout=seconds + PATIENCE)
        if process.returncode:
            raise SideError(f"py-spy could not look at {node}: {(told.strip() or 'no reason').splitlines()[-1]}")
    return {node: stacks((scratch / f"{node}.raw").read_text()) for node in NODES}


def watch(bench: Bench, seconds: float) -> tuple[dict[str, Any], Any, dict[str, list[Stack]]]:
    """Run `async` once; return result.json, CPU by role, and stacks by node."""
    from gbactl.calibration.short_local_runs import node_pids

    folder, done = bench.scratch / "watched", dict[str, Any]()
    run = threading.Thread(
        target=lambda: done.update(bench.train("async", WORKERS, BATCH, f"run_dir={folder}")), daemon=True
    )
    with Sampler(folder) as sampler:
        run.start()
        until = time.monotonic() + PATIENCE
        log = folder / "events.log"
        while not (log.exists() and log.stat().st_size > 4096):  # wait until training has begun
            if time.monotonic() > until or not run.is_alive():
                raise SideError("the run to be watched did not begin")
            time.sleep(0.05)
        seen = record(node_pids(folder), seconds, bench.scratch)
        run.join()
    if not done:
        raise SideError("the run to be watched failed")
    return done, usage(sampler.samples, log.read_bytes(), bench.scratch / "prefix.log"), seen


def operators(bench: Bench) -> str:
    """Profile the plain loop with torch: self CPU time by operator, as torch prints it."""
    import torch
    from plain_loop import WARM_UP, PlainLoop, Trainee, prepared
    from torch.profiler import ProfilerActivity, profile

    overrides = bench.overrides(1, BATCH)
    loop = PlainLoop(Trainee(prepared(overrides), overrides, 0, 1))
    for step in range(WARM_UP):
        loop.step(step)
    began = time.perf_counter()
    for step in range(STEPS):
        loop.step(step)
    plain = time.perf_counter() - began
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for step in range(STEPS):
            loop.step(step)
    rows = sorted(seen.key_averages(), key=lambda each: -each.self_cpu_time_total)
    torch_us = sum(each.self_cpu_time_total for each in rows)
    lines = [f"{STEPS} steps take {1e6 * plain / STEPS / BATCH:.1f} us per sample without the profiler.", ""]
    lines += ["| operator | us a sample | share of torch's | calls a step |", "| --- | ---: | ---: | ---: |"]
    for each in rows[:TOP]:
        us, calls = each.self_cpu_time_total / STEPS / BATCH, each.count / STEPS
        lines.append(f"| `{each.key}` | {us:.2f} | {each.self_cpu_time_total / torch_us:.1%} | {calls:g} |")
    assert torch.get_num_threads() == 1
    return "\n".join(lines)


def of_node(node: str, found: Sequence[Stack], us: float) -> str:
    """Table of the functions that use most time on a node; `us`: CPU time per sample of all processes of its role."""
    shown, total = own(found).most_common(TOP), sum(stack.count for stack in found)
    lines = [
        f"### {node}: {NODES[node]}",
        "",
        f"All processes of this role use {us:.2f} us of CPU per sample; {total} stack samples.",
        "",
    ]
    lines += ["| thread | function | share | us a sample |", "| --- | --- | ---: | ---: |"]
    for (thread, function), count in shown:
        lines.append(f"| {thread} | `{function}` | {count / total:.1%} | {us * count / total:.2f} |")
    rest = total - sum(count for _, count in shown)
    lines.append(f"| | the rest | {rest / total:.1%} | {us * rest / total:.2f} |")
    return "\n".join(lines)


def text(bench: Bench, seconds: float) -> str:
    """Text of profile.md."""
    result, used, seen = watch(bench, seconds)
    samples, here = used.gradients * BATCH, machine()
    us = {role: 1e6 * spent / samples for role, spent in used.used.items()}
    totals = ", ".join(f"{role} {each:.2f}" for role, each in sorted(us.items(), key=lambda each: -each[1]))
    head = [
        "# Where the time goes", "", f"Written by `{command_line(sys.argv)}`, whose docstring says what is counted.",
        "", f"Machine: {here['cpu']}, {here['cores']} cores. torch {here['versions'].get('torch', '?')}.", "",
        f"## `async`, {WORKERS} workers, 1 server, shared memory, batch {BATCH}", "",
        f"The run trained {steady(result)['rate']:,.0f} samples/s under the profiler. CPU per sample in us: {totals}; "
        f"other processes (mostly py-spy) {1e6 * used.others / samples:.2f}.", "",
    ]  # fmt: skip
    body = [of_node(node, seen[node], us[node[0]]) for node in NODES]
    alone = ["## One process, no communication", "", operators(bench)]
    return "\n".join([*head, "\n\n".join(body), "", *alone]) + "\n"


def main() -> int:
    """Profile and write profile.md; return 1 when that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    given = parser.parse_args()
    one_thread_each()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="gbactl-profile-") as scratch:
        try:
            found = text(Bench(Path(scratch), ROWS, given.seconds), given.seconds)
        except SideError as error:
            print(error, file=sys.stderr)
            return 1
    (given.out / "profile.md").write_text(found)
    print(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
