"""Row kernels against their torch twin, as lines of the benchmark; kernels.py has the cases."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench_lines import Line
from process_group import one_thread_each

CASES = ("pull (gather)", "aggregate + adagrad", "aggregate + adam")
WIDTH = 17


def _seconds(rows: int, rounds: int) -> dict[str, list[float]]:
    """Median seconds of a request, [native, twin], by case; runs in its own process."""
    import numpy as np
    import torch
    from kernels import IDS, measure, row_cases

    from gbactl.kernels import load
    from gbactl.store.aligned_memory import zeros

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    table, grad = zeros((rows, WIDTH)), rng.standard_normal((IDS, WIDTH)).astype(np.float32)
    load("native").init_rows(table, 1, 0, 1, 0.01)
    made = row_cases(table, grad)
    kinds = [load(name) for name in ("native", "twin")]
    return {case: measure([made[case](kind) for kind in kinds], rng, rows, rounds) for case in CASES}


def measure_all(rows: int, rounds: int) -> list[Line]:
    """Measure one line a case: speed of the compiled kernel in multiples of the twin's. No target."""
    from kernels import IDS

    one_thread_each()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        found = pool.submit(_seconds, rows, rounds).result()
    return [
        Line(
            f"kernel-{number}", f"{case}, compiled / torch twin, {rows:,} rows", [twin / native],
            note=f"{IDS / native / 1e6:.1f} / {IDS / twin / 1e6:.1f} M ids/s",
        )
        for number, (case, (native, twin)) in enumerate(found.items(), start=1)
    ]  # fmt: skip
