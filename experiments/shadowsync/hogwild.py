"""Threads or processes on one replica: samples per second of H of them stepping one flat vector without locks.

    .venv/bin/python experiments/shadowsync/hogwild.py [--most 4] [--seconds 3] [--rounds 5] [--batch 128,512]

Everything a trainer does but for the wire: forward, backward, local Adam step on shared memory; synthetic rows.
Python's lock is what threads may lose by, and what this measures. Rounds alternate; medians are told. Costs a minute on
an otherwise idle machine: --rounds times --seconds for each of 2 x --most settings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

WIDTH, FIELDS, NUMERIC, HIDDEN = 17, 26, 13, [400, 400, 400]


class Replica:
    """A vector with Adam's moments in shared memory, so that processes share all of it; f32[size] `value`."""

    def __init__(self, memory: SharedMemory, size: int) -> None:
        from gbactl.kernels import load
        from gbactl.store.optim import OptimizerSpec

        arrays = [np.ndarray((size,), np.float32, memory.buf, offset=4 * size * place) for place in range(3)]
        self.value, *moments = arrays
        self._step = load().bind_dense(OptimizerSpec("adam").rule(), self.value, moments)

    def apply(self, gradient: Any) -> None:
        """A step without bias correction: what it costs is what matters."""
        self._step([(gradient, 1.0)], 1.0, 1e-6, 1.0, 0.0)


def computer() -> Any:
    """A model as a trainer's."""
    from gbactl.config import ModelConfig
    from gbactl.models import build
    from gbactl.models.compute import GradientComputer

    return GradientComputer(build(ModelConfig(dim=WIDTH - 1, hidden=HIDDEN), NUMERIC, FIELDS, 0))


def compute(replica: Replica, batch: int, go: Callable[[], None], goes_on: Callable[[], bool]) -> int:
    """Step until told to stop; returns the samples."""
    import torch

    from gbactl.kernels.denormals import flush

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


def with_threads(count: int, batch: int, seconds: float, memory: SharedMemory, size: int) -> float:
    """Samples per second of threads of one process."""
    replica, barrier, over = Replica(memory, size), threading.Barrier(count + 1), threading.Event()
    done: list[int] = []

    def run() -> None:
        done.append(compute(replica, batch, barrier.wait, lambda: not over.is_set()))

    workers = [threading.Thread(target=run) for _ in range(count)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    over.set()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - began)


def _process(name: str, size: int, batch: int, barrier: Any, over: Any, results: Any) -> None:
    memory = SharedMemory(name)
    results.put(compute(Replica(memory, size), batch, barrier.wait, lambda: not over.is_set()))
    results.close()
    results.join_thread()
    os._exit(0)  # views of the memory are still there, and torch's threads


def with_processes(count: int, batch: int, seconds: float, memory: SharedMemory, size: int) -> float:
    """The same of processes over shared memory."""
    context = multiprocessing.get_context("spawn")
    barrier, over, results = context.Barrier(count + 1), context.Event(), context.Queue()
    arguments = (memory.name, size, batch, barrier, over, results)
    workers = [context.Process(target=_process, args=arguments) for _ in range(count)]
    for worker in workers:
        worker.start()
    barrier.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    over.set()
    done = sum(results.get(timeout=60) for _ in workers)
    passed = time.perf_counter() - began
    for worker in workers:
        worker.join(10)
    return done / passed


KINDS = {"threads": with_threads, "processes": with_processes}


def measure(most: int, batches: list[int], seconds: float, rounds: int) -> str:
    """Markdown: H a line, samples per second, and threads over processes."""
    size = computer().flat.size
    memory = SharedMemory(create=True, size=4 * 3 * size)
    lines = ["| batch | H | threads | processes | threads / processes |", "| ---: | ---: | ---: | ---: | ---: |"]
    try:
        for batch in batches:
            for count in range(1, most + 1):
                found: dict[str, list[float]] = {kind: [] for kind in KINDS}
                for _ in range(rounds):
                    for kind, run in KINDS.items():
                        found[kind].append(run(count, batch, seconds, memory, size))
                threads, processes = (statistics.median(found[kind]) for kind in KINDS)
                lines.append(f"| {batch} | {count} | {threads:,.0f} | {processes:,.0f} | {threads / processes:.3f} |")
    finally:
        memory.unlink()
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=4, help="largest H")
    parser.add_argument("--batch", default="128,512", help="local batches")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(measure(given.most, [int(b) for b in given.batch.split(",")], given.seconds, given.rounds))


if __name__ == "__main__":
    main()
