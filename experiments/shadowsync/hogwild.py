"""Hogwild with threads or processes: samples per second of H of them stepping one flat vector without locks.

    .venv/bin/python experiments/shadowsync/hogwild.py [--most 4] [--seconds 3] [--rounds 5] [--batch 128,512] [--out -]

Writes hogwild.md in this folder (--out FOLDER: there; -: nowhere), which write_shadowsync.py includes in results.md.
Measured is everything a trainer does except communication: forward, backward, local Adam step on shared memory;
synthetic rows. Threads may lose by Python's global lock, and that loss is the question. Rounds alternate; medians are
reported. Costs 5 minutes on an otherwise idle machine: --rounds x --seconds for each of 12 settings (H = 1, 2, 4), and
processes' starts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np

START_SECONDS = 60.0
RESULT = Path(__file__).with_suffix(".md")
WIDTH, FIELDS, NUMERIC, HIDDEN = 17, 26, 13, [400, 400, 400]


class Replica:
    """Dense vector f32[size] `value` with Adam's moments in shared memory, so that processes share all of it."""

    def __init__(self, memory: SharedMemory, size: int) -> None:
        from gbactl.kernels import load
        from gbactl.store.optimizer_settings import OptimizerSpec

        arrays = [np.ndarray((size,), np.float32, memory.buf, offset=4 * size * place) for place in range(3)]
        self.value, *moments = arrays
        self._step = load().bind_dense(OptimizerSpec("adam").rule(), self.value, moments)

    def apply(self, gradient: Any) -> None:
        """Take a step without bias correction: only its cost matters."""
        self._step([(gradient, 1.0)], 1.0, 1e-6, 1.0, 0.0)


def computer() -> Any:
    """Make a gradient computer with a trainer's model."""
    from gbactl.config import ModelConfig
    from gbactl.models import build
    from gbactl.models.gradient_computer import GradientComputer

    return GradientComputer(build(ModelConfig(dim=WIDTH - 1, hidden=HIDDEN), NUMERIC, FIELDS, 0))


def compute(replica: Replica, batch: int, go: Callable[[], None], goes_on: Callable[[], bool]) -> int:
    """Step until told to stop; return the number of samples."""
    import torch

    from gbactl.kernels.native import flush

    torch.set_num_threads(1)
    flush()
    mine, rng = computer(), np.random.default_rng(0)
    numeric = rng.normal(size=(batch, NUMERIC)).astype(np.float32)
    rows = rng.normal(0, 0.01, (batch, FIELDS, WIDTH)).astype(np.float32)
    labels = rng.integers(0, 2, batch).astype(np.float32)
    gradient = np.empty(mine.flat.size, np.float32)
    go()
    done = 0
    while goes_on():
        mine.flat.use(replica.value)
        mine.gradient(numeric, labels, rows, done)
        mine.flat.gradient_into(gradient)
        replica.apply(gradient)
        done += batch
    return done


def timed(workers: Sequence[Any], barrier: Any, over: Any, total: Callable[[], int], seconds: float) -> float:
    """Measure samples per second of workers from a common barrier until `over` is set; `total` waits for all."""
    for worker in workers:
        worker.start()
    barrier.wait(START_SECONDS)
    began = time.perf_counter()
    time.sleep(seconds)
    over.set()
    return total() / (time.perf_counter() - began)


def with_threads(count: int, batch: int, seconds: float, memory: SharedMemory, size: int) -> float:
    """Measure samples per second of threads of one process."""
    replica, barrier, over = Replica(memory, size), threading.Barrier(count + 1), threading.Event()
    done: list[int] = []

    def run() -> None:
        done.append(compute(replica, batch, barrier.wait, lambda: not over.is_set()))

    def total() -> int:
        for thread in threads:
            thread.join()
        return sum(done)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(count)]
    return timed(threads, barrier, over, total, seconds)


def _process(name: str, size: int, batch: int, barrier: Any, over: Any, results: Any) -> None:
    memory = SharedMemory(name)
    results.put(compute(Replica(memory, size), batch, barrier.wait, lambda: not over.is_set()))
    results.close()
    results.join_thread()
    os._exit(0)  # skip cleanup: views of the memory and torch's threads still exist


def with_processes(count: int, batch: int, seconds: float, memory: SharedMemory, size: int) -> float:
    """Measure samples per second of processes over shared memory."""
    context = multiprocessing.get_context("spawn")
    barrier, over, results = context.Barrier(count + 1), context.Event(), context.Queue()
    arguments = (memory.name, size, batch, barrier, over, results)
    workers = [context.Process(target=_process, args=arguments, daemon=True) for _ in range(count)]
    found = timed(workers, barrier, over, lambda: sum(results.get(timeout=START_SECONDS) for _ in workers), seconds)
    for worker in workers:
        worker.join(START_SECONDS)
    return found


KINDS = {"threads": with_threads, "processes": with_processes}


def measure(most: int, batches: list[int], seconds: float, rounds: int) -> str:
    """Markdown table: one line an H, samples per second, and threads over processes."""
    size = computer().flat.size
    memory = SharedMemory(create=True, size=4 * 3 * size)
    lines = ["| batch | H | threads | processes | threads / processes |", "| ---: | ---: | ---: | ---: | ---: |"]
    try:
        for batch in batches:
            for count in [2**power for power in range(most.bit_length())]:
                found: dict[str, list[float]] = {kind: [] for kind in KINDS}
                for _ in range(rounds):
                    for kind, run in KINDS.items():
                        found[kind].append(run(count, batch, seconds, memory, size))
                threads, processes = (statistics.median(found[kind]) for kind in KINDS)
                lines.append(f"| {batch} | {count} | {threads:,.0f} | {processes:,.0f} | {threads / processes:.3f} |")
    finally:
        memory.unlink()
    return "\n".join(lines)


def written(table: str, seconds: float, rounds: int) -> str:
    """Text of the file: the table, and the method of measurement."""
    cores = len(os.sched_getaffinity(0))
    how = (
        f"Samples per second of H threads or H processes on one replica, on {cores} cores: medians of {rounds} rounds "
        f"of {seconds:g} s."
    )
    return f"{how} Written by `experiments/shadowsync/hogwild.py`.\n\n{table}\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=4, help="largest H; 1, 2, 4, ... up to it")
    parser.add_argument("--batch", default="128,512", help="local batches")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default=str(RESULT), help="where the table is written; -: nowhere")
    given = parser.parse_args()
    table = measure(given.most, [int(b) for b in given.batch.split(",")], given.seconds, given.rounds)
    print(table)
    if given.out != "-":
        Path(given.out).write_text(written(table, given.seconds, given.rounds))


if __name__ == "__main__":
    main()
