"""Server kernel against a memory copy: bytes touched a second by a step of four gradients.

The tables are far larger than the caches. The bytes that a step must touch are counted once: each gradient's ids and
values read, the sums written and read, row and optimizer state read and written. The copy is one of as many bytes,
elsewhere in a large array every time; the two alternate. It reads and writes each byte, so against the bytes that it
moves the ratio is half as large; the note gives that, too. One thread, in its own process.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from bench_lines import Line
from process_group import apart

WIDTH, PARTS, TARGET = 17, 4, 0.30
INT = FLOAT = 4
STATE = {"adam": 2 * WIDTH * FLOAT + FLOAT, "rowwise_adagrad": FLOAT}
COPIED = 1 << 28
WARM_UP = 5


def touched(name: str, of_parts: int, distinct: int) -> int:
    """Number of bytes that a step reads and writes: `of_parts` rows in all gradients, `distinct` among them."""
    row = WIDTH * FLOAT
    return of_parts * (INT + row) + distinct * (2 * row + 2 * (row + STATE[name]))


def request(kernels: Any, rng: Any, rows: int) -> list[Any]:
    """Draw four workers' gradients, each with distinct rows as a worker sends them."""
    import numpy as np
    from kernels import BATCH, FIELDS, IDS, zipf

    offsets = np.zeros(FIELDS, np.int64)
    ids = [zipf(rng, rows, IDS).reshape(BATCH, FIELDS) for _ in range(PARTS)]
    indices = [kernels.dedupe(each, offsets, 1).index for each in ids]
    return [(index, rng.standard_normal((len(index), WIDTH), dtype=np.float32), 1.0) for index in indices]


def _ratios(name: str, rows: int, rounds: int) -> tuple[float, float]:
    """Median GB/s of the kernel, and of the copy."""
    import numpy as np
    import torch

    from gbactl.kernels import load
    from gbactl.kernels.base import aligned_zeros
    from gbactl.store.optimizer_settings import OptimizerSpec
    from gbactl.store.shard_rows import RowBlock

    torch.set_num_threads(1)
    rng, block = np.random.default_rng(0), RowBlock(aligned_zeros((rows, WIDTH)), OptimizerSpec(name, 1e-4), load())
    block.initialise(1, 0, 1, 0.01)
    for state in (*block.moments.values(), *([] if block.counts is None else [block.counts])):
        state.fill(0)  # otherwise first touches of fresh pages would be timed
    source, target = np.ones(COPIED, np.uint8), np.ones(COPIED, np.uint8)
    rates: dict[str, list[float]] = {"kernel": [], "copy": []}
    for turn in range(rounds + WARM_UP):
        parts = request(block._kernels, rng, rows)
        distinct = len(np.unique(np.concatenate([part[0] for part in parts])))
        size = touched(name, sum(len(part[0]) for part in parts), distinct)
        began = time.perf_counter()
        block.apply(parts, float(PARTS), 1.0)
        middle = time.perf_counter()
        low = int(rng.integers(COPIED - size))
        copying = time.perf_counter()
        target[low : low + size] = source[low : low + size]
        ended = time.perf_counter()
        if turn >= WARM_UP:
            rates["kernel"].append(size / (middle - began) / 1e9)
            rates["copy"].append(size / (ended - copying) / 1e9)
    return statistics.median(rates["kernel"]), statistics.median(rates["copy"])


def lines(rows: int, rounds: int) -> list[Line]:
    """Measure one line for each optimizer."""
    found = []
    for name, short in (("adam", "adam"), ("rowwise_adagrad", "rowwise")):
        kernel, copy = apart(_ratios, name, rows, rounds)
        note = f"{kernel:.1f} / {copy:.1f} GB/s, {rounds} steps; {kernel / copy / 2:.2f} of its reads and writes"
        what = f"server kernel, aggregate of {PARTS} + {name}, {rows:,} rows / copy of the same bytes"
        found.append(Line(f"kernel-copy-{short}", what, [kernel / copy], TARGET, note=note))
    return found
