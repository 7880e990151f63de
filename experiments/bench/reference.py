"""The yardstick: independent single-process trainings side by side, same model and kernels, no communication.

    python experiments/bench/reference.py --processes 2 --seconds 6 data=synthetic ...

Prints the samples per second of all processes together. An upper bound on purpose: rows are read from and
written to the table in place, the dense step takes every gradient where autograd left it.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from crew import rates


def one(path: str, overrides: list[str], rank: int, processes: int, seconds: float, barrier: Any, out: Any) -> None:
    """Train alone until the time is up; put samples per second."""
    import numpy as np
    from alone import WARM_UP, Trainee

    from gbactl.store.dense import DenseBlock, DenseSpec

    me = Trainee(path, overrides, rank, processes)
    rows, flat, kernels = me.table(), me.flat, me.kernels
    if flat.buffers:
        raise SystemExit("The reference has no batch norm.")
    blocks = [DenseBlock(flat._numpy[low:high], DenseSpec(high - low), me.dense_optimizer) for low, high in flat._spans]
    places = np.empty(len(me.emb), np.int32)
    sums = np.empty_like(me.emb)

    def step(i: int) -> None:
        data = me.feed(i)
        unique = me.unique(data)
        np.take(unique.index, unique.inverse, out=places, mode="clip")
        kernels.gather(rows.table, places, me.emb)
        of_rows, total = me.gradient(data, i), sums[: len(unique.index)]
        kernels.segment_sum(of_rows, unique.inverse, total)
        rows.apply([(unique.index, total, 1.0)], 1.0, 1.0)
        for block, gradient in zip(blocks, flat._gradients, strict=True):
            block.apply(gradient.numpy().reshape(-1), 1.0, 1.0)

    for i in range(WARM_UP):
        step(i)
    barrier.wait()
    began, i = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        step(i)
        i += 1
    out.put(i * me.batch / (time.perf_counter() - began))


def measure(path: str, overrides: list[str], processes: int, seconds: float) -> float:
    """Samples per second of `processes` independent trainings together."""
    given = [(path, overrides, rank, processes, seconds) for rank in range(processes)]
    return sum(rates(one, given, seconds))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    from alone import prepared

    path = prepared(args.overrides)
    print(f"{measure(path, args.overrides, args.processes, args.seconds):.0f}")


if __name__ == "__main__":
    sys.exit(main())
