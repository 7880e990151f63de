"""What a server's table costs in resident memory, peak included, measured in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from gbactl.kernels.base import aligned_full, aligned_zeros

SCRIPT = """
import numpy as np, sys
from gbactl.kernels import load
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.shard import Shard, ShardSpec
def peak():
    return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) * 1024
def cycle(rows):
    shard = Shard(ShardSpec(0, 1, rows, 17), load(sys.argv[1]))
    for step, low in enumerate(range(0, rows, 5000)):
        index = np.arange(low, min(low + 5000, rows), dtype=np.int32)
        shard.stage(step, GradientSlice(index, np.ones((len(index), 17), np.float32)))
        shard.apply(StepOrder(step, ((step, 1.0),), 1.0, 1.0))
    return shard
cycle(20_000)
before = peak()
cycle(600_000)
print((peak() - before) / (600_000 * 17 * 4 * 3))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("which", ["native", "twin"])
def test_resident_memory_is_rows_and_state(which: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, which], env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    if "MissingDependencyError" in done.stderr:
        pytest.skip("compiled kernels are not built")
    assert done.returncode == 0, done.stderr
    assert 0.8 < float(done.stdout) <= 1.15


def test_arrays_start_on_a_cache_line() -> None:
    for made in (aligned_zeros((3, 17)), aligned_zeros((5,), np.uint32), aligned_full((7, 2), 0.5)):
        assert made.ctypes.data % 64 == 0
        assert made.flags.c_contiguous
    assert (aligned_full((7, 2), 0.5) == 0.5).all()
    assert not aligned_zeros((0, 4)).size


def test_large_arrays_start_on_a_huge_page() -> None:
    made = aligned_zeros((100_000, 17))
    assert made.ctypes.data % (1 << 21) == 0 and made.flags.writeable and made.flags.c_contiguous
    assert made.shape == (100_000, 17) and made.dtype == np.float32 and not made.any()
