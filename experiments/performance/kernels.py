"""Benchmark of the row kernels, compiled against torch, in M ids/s: `python experiments/performance/kernels.py`.

A request is 512 x 26 Zipf ids (13,312, about 54 % distinct) into a table far beyond the caches. No request
occurs twice, and rounds alternate between the two. `--quick` takes 10 to 20 s and 3 GB; one thread.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from bench_lines import Line
from process_group import apart

from gbactl.kernels import load
from gbactl.kernels.base import Kernels, Workspace, aligned_zeros
from gbactl.store.dense import DenseBlock, DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard_rows import RowBlock

BATCH, FIELDS, DENSE = 512, 26, 493_000
IDS = BATCH * FIELDS
LINES, WIDTH = ("pull (gather)", "aggregate + adagrad", "aggregate + adam"), 17  # cases of `make bench`
EXPONENT = 1.05
Case = Callable[[Any], object]


def zipf(rng: np.random.Generator, rows: int, count: int) -> Any:
    """Draw bounded Zipf ranks by the inverse of the continuous law, scattered over the table."""
    power = 1 - EXPONENT
    ranks = (((rows**power - 1) * rng.random(count) + 1) ** (1 / power)).astype(np.int64)
    return (ranks * 2_654_435_761 % rows).astype(np.int32)


def stepping(kernels: Kernels, table: Any, grad: Any, name: str) -> Case:
    """Make a case that aggregates a request of raw ids and steps its rows."""
    block, space = RowBlock(table, OptimizerSpec(name, 1e-4), kernels), Workspace()
    for state in (*block.moments.values(), block.counts):
        if state is not None:
            state.fill(0)  # otherwise first touches of fresh pages would be timed

    def run(index: Any) -> None:
        made = kernels.aggregate([(index, grad, 1.0)], space)
        block.apply([(made.index, made.total, 1.0)], 1.0, 1.0)

    return run


def row_cases(table: Any, grad: Any) -> dict[str, Callable[[Kernels], Case]]:
    """Cases of a server's work on a request of raw ids, by name."""
    out, space = np.empty_like(grad), Workspace()
    return {
        "pull (gather)": lambda kernels: lambda index: kernels.gather(table, index, out),
        "aggregate": lambda kernels: lambda index: kernels.aggregate([(index, grad, 1.0)], space),
        **{
            f"aggregate + {name}": functools.partial(stepping, table=table, grad=grad, name=name)
            for name in ("sgd", "adagrad", "rowwise_adagrad", "adam")
        },
    }


def deduping(kernels: Kernels, rows: int, shards: int) -> Case:
    """Make a case of a worker's deduplication."""
    offsets = np.arange(FIELDS) * (rows // FIELDS)
    return lambda index: kernels.dedupe(index.reshape(BATCH, FIELDS), offsets, shards)


def dense_step(kernels: Kernels, parts: int) -> Case:
    """Make a case of Adam over the whole dense vector."""
    block = DenseBlock(aligned_zeros((DENSE,)), DenseSpec(DENSE), OptimizerSpec("adam"), kernels=kernels)
    gradients = [(np.full(DENSE, 1.0 + part, np.float32), 1.0) for part in range(parts)]
    return lambda index: block.apply_parts(gradients, float(parts), float(parts))


def other_cases(rows: int, grad: Any) -> dict[str, Callable[[Kernels], Case]]:
    """Cases of a worker's deduplication and sums, and of the dense step, by name."""
    sums = np.empty_like(grad)
    return {
        **{f"dedupe, {n} shards": functools.partial(deduping, rows=rows, shards=n) for n in (1, 2, 4)},
        "segment_sum": lambda kernels: lambda index: kernels.segment_sum(grad, index % IDS, sums),
        **{f"dense Adam 493k, {n} parts": functools.partial(dense_step, parts=n) for n in (1, 4)},
    }


def measure(cases: list[Case], rng: np.random.Generator, rows: int, rounds: int) -> list[float]:
    """Median seconds of each case; the cases alternate, and each call has its own request."""
    seconds: list[list[float]] = [[] for _ in cases]
    for turn in range(rounds + 5):
        for case, seen in zip(cases, seconds, strict=True):
            request = zipf(rng, rows, IDS)
            start = time.perf_counter()
            case(request)
            if turn >= 5:
                seen.append(time.perf_counter() - start)
    return [statistics.median(seen) for seen in seconds]


def line_seconds(rows: int, rounds: int) -> dict[str, list[float]]:
    """Median seconds of a request, [native, twin], by case; runs in its own process."""
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    table, grad = aligned_zeros((rows, WIDTH)), rng.standard_normal((IDS, WIDTH)).astype(np.float32)
    load("native").init_rows(table, 1, 0, 1, 0.01)
    made = row_cases(table, grad)
    kinds = [load(name) for name in ("native", "twin")]
    return {case: measure([made[case](kind) for kind in kinds], rng, rows, rounds) for case in LINES}


def lines(rows: int, rounds: int) -> list[Line]:
    """Measure one line a case: speed of the compiled kernel in multiples of the twin's. No target."""
    found = apart(line_seconds, rows, rounds)
    return [
        Line(
            f"kernel-{number}", f"{case}, compiled / torch twin, {rows:,} rows", [twin / native],
            note=f"{IDS / native / 1e6:.1f} / {IDS / twin / 1e6:.1f} M ids/s",
        )
        for number, (case, (native, twin)) in enumerate(found.items(), start=1)
    ]  # fmt: skip


def main() -> None:
    """Print a table of times and rates for each row width."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, width 17 alone")
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    rounds = 25 if options.quick else 300
    rng = np.random.default_rng(0)
    for width in (17,) if options.quick else (16, 17):
        table, grad = aligned_zeros((options.rows, width)), rng.standard_normal((IDS, width)).astype(np.float32)
        load("native").init_rows(table, 1, 0, 1, 0.01)
        print(f"\n{options.rows:,} rows x {width}; {IDS:,} ids a request")
        print(f"{'':28}{'native ms':>10}{'M ids/s':>9}{'twin ms':>10}{'M ids/s':>9}{'ratio':>7}")
        for name, make in {**row_cases(table, grad), **other_cases(options.rows, grad)}.items():
            cases = [make(load(which)) for which in ("native", "twin")]
            fast, slow = measure(cases, rng, options.rows, rounds)
            rate = [" " * 9 if "dense" in name else f"{IDS / t / 1e6:9.1f}" for t in (fast, slow)]
            print(f"{name:28}{fast * 1e3:10.3f}{rate[0]}{slow * 1e3:10.3f}{rate[1]}{slow / fast:7.1f}")


if __name__ == "__main__":
    main()
