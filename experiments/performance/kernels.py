"""Row kernels, compiled against torch: speed of a server's work on a request of raw ids.

A request is 512 x 26 Zipf ids (13,312, about 54 % distinct) into a table far beyond the caches. No request
occurs twice, and rounds alternate between the two. One thread, in its own process.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from bench_lines import Line
from process_group import apart

from gbactl.kernels import load
from gbactl.kernels.base import Kernels, Workspace, aligned_zeros
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard_rows import RowBlock

BATCH, FIELDS, WIDTH = 512, 26, 17
IDS = BATCH * FIELDS
EXPONENT = 1.05
Case = Callable[[Any], object]


def zipf(rng: np.random.Generator, rows: int, count: int) -> Any:
    """Draw bounded Zipf ranks by the inverse of the continuous law, scattered over the table."""
    power = 1 - EXPONENT
    ranks = (((rows**power - 1) * rng.random(count) + 1) ** (1 / power)).astype(np.int64)
    return (ranks * 2_654_435_761 % rows).astype(np.int32)


def pulling(kernels: Kernels, table: Any, grad: Any) -> Case:
    """Make a case that pulls the rows of a request."""
    out = np.empty_like(grad)
    return lambda index: kernels.gather(table, index, out)


def stepping(name: str, kernels: Kernels, table: Any, grad: Any) -> Case:
    """Make a case that aggregates a request of raw ids and steps its rows."""
    block, space = RowBlock(table, OptimizerSpec(name, 1e-4), kernels), Workspace()
    for state in (*block.moments.values(), block.counts):
        if state is not None:
            state.fill(0)  # otherwise first touches of fresh pages would be timed

    def run(index: Any) -> None:
        made = kernels.aggregate([(index, grad, 1.0)], space)
        block.apply([(made.index, made.total, 1.0)], 1.0, 1.0)

    return run


CASES = {
    "pull (gather)": pulling,
    **{f"aggregate + {name}": functools.partial(stepping, name) for name in ("adagrad", "adam")},
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
    kinds = [load(name) for name in ("native", "twin")]
    return {
        case: measure([make(kind, table, grad) for kind in kinds], rng, rows, rounds) for case, make in CASES.items()
    }


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
