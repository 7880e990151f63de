"""Denormal numbers, and machines that differ."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from gbactl.config import RunConfig
from gbactl.data.dataset import open_dataset
from gbactl.data.prepare import prepare
from gbactl.kernels.denormals import flushes
from gbactl.replay import machine
from gbactl.replay.command import replay
from gbactl.simulation.cluster import run_virtual
from tests.support.recorded import config, record, splits


def long_enough(cfg: RunConfig) -> RunConfig:
    """With rates that let idle rows' moments fade into denormal numbers."""
    cfg.model.init_scale = 1e-37
    cfg.optim = dataclasses.replace(cfg.optim, name="sgd", lr=1e-3, row_lr=1e-36)
    return cfg


@pytest.mark.parametrize("cluster", ["memory", "virtual"])
def test_numbers_that_are_denormal_are_flushed_alike_everywhere(tmp_path: Path, cluster: str) -> None:
    cfg = long_enough(config("async", splits(tmp_path / "data")))
    if cluster == "memory":
        record(cfg, tmp_path / "run")
    else:
        (tmp_path / "run").mkdir()
        cfg = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, name="virtual"))
        run_virtual(cfg, open_dataset(prepare(cfg.data)), tmp_path / "run", lambda event: None)
    verdict = replay(tmp_path / "run", path=tmp_path / "last.npz")
    assert verdict["identical"]
    with np.load(tmp_path / "last.npz") as last:
        sizes = np.abs(last["rows"])
        assert not (sizes[sizes > 0] < 1.17e-38).any()
    assert not flushes(), "a run leaves the thread as it was"


def test_another_machine_is_told_from_this() -> None:
    header = {"machine": "x86_64", "cpu_flags": "avx2", "torch": "2.13.0", "kernels": "native"}
    assert machine.differences(header, {**header, "kernels": "twin"}) == []
    assert machine.differences(header, {**header, "torch": "2.14.0", "machine": "arm"}) == [
        "processor", "version of torch",
    ]  # fmt: skip
