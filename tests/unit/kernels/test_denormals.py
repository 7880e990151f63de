"""Flushing denormal numbers: the thread's own setting, with and without the compiled native."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from gbactl.kernels import load, native
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard_rows import RowBlock


def halved() -> float:
    """Half of the smallest normal number, as this thread computes it."""
    return float(np.multiply(np.float32(1.2e-38), np.float32(0.5)))


@pytest.mark.parametrize("compiled", [True, False])
def test_inside_they_are_nothing_and_outside_as_before(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    if not compiled:
        monkeypatch.setattr(native, "find_library", lambda: None)
    assert halved() > 0
    with native.flushed():
        assert halved() == 0
        with native.flushed():
            pass
        assert halved() == 0 and native.flushes()
    assert halved() > 0


def test_the_setting_is_the_thread_s_own() -> None:
    found: list[float] = []
    with native.flushed():
        thread = threading.Thread(target=lambda: (native.flush(False), found.append(halved())))
        thread.start()
        thread.join()
        assert halved() == 0
    assert found[0] > 0


@pytest.mark.parametrize("name", ["native", "twin"])
def test_a_moment_that_fades_becomes_zero(name: str) -> None:
    table = np.zeros((1, 4), np.float32)
    block = RowBlock(table, OptimizerSpec("adam", 1e-3), load(name))
    block.moments["first"][:] = 1.2e-38
    with native.flushed():
        block.apply([(np.zeros(1, np.int32), np.zeros((1, 4), np.float32), 1.0)], 1.0, 1.0)
    assert not block.moments["first"].any()
