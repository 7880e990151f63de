"""Cells that ask for times alone: those of a training, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timing_only

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, TrainConfig, check
from gbactl.config.groups import CostConfig
from gbactl.data.dataset import open_dataset
from gbactl.simulation.simulated_run import run_virtual
from tests.support import small_data
from tests.support.modes import every_k


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 6000)


def config(mode: str, dense: int | None = None, **cost: Any) -> RunConfig:
    costs = {"spread": "lognormal", "spread_scale": 0.3, "workers_per_host": 1, "servers_on": "own", **cost}
    return check(RunConfig(
        mode=ModeConfig(name=mode, local_batch=32, options=every_k(mode)), model=ModelConfig(dim=4, hidden=[64, 64]),
        cluster=ClusterConfig(name="virtual", workers=4, servers=3, dense_servers=dense),
        train=TrainConfig(global_batch=128), cost=CostConfig(**costs),
    ))  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize("dense", [None, 1])
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd", "fr_ma", "async"])
def test_times_are_those_of_a_training(data: Path, tmp_path: Path, mode: str, dense: int | None) -> None:
    cfg, dataset = config(mode, dense), open_dataset(data)
    trained = run_virtual(cfg, dataset, tmp_path)
    (tmp_path / "timing_only").mkdir()
    told = timing_only.times(cfg, dataset, tmp_path / "timing_only")
    assert told["phase_eps"] == trained["eps"] and told["samples"] == trained["samples"]
    assert "auc" not in told
    assert told["eps"] == pytest.approx(trained["eps"], rel=0.1)
    for key, value in told.get("replicas", {}).items():
        assert value == trained["replicas"][key], key


def test_what_saturates_is_told(data: Path, tmp_path: Path) -> None:
    """The centre on one server whose interface takes longer for it than four trainers for three batches."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    dataset = open_dataset(data)
    narrow = timing_only.times(config("fr_easgd", 1, bandwidth_gbit=0.003), dataset, tmp_path / "a")
    wide = timing_only.times(config("fr_easgd", 1), dataset, tmp_path / "b")
    assert narrow["busy"]["S0"] > 0.7 > narrow["busy"]["others"] > wide["busy"]["others"] > 0
    assert wide["busy"]["S0"] < 0.5 and narrow["eps"] < 0.5 * wide["eps"]


def test_a_cell_leaves_a_result(tmp_path: Path) -> None:
    overrides = (
        "experiment=shadowsync", "cluster.workers=2", "mode=fr_easgd", "mode.k=3", "mode.local_batch=32",
        "data.rows_per_day=3200", "data.max_cardinality=200", f"data.cache={tmp_path / 'cache'}", "seed=1",
    )  # fmt: skip
    told = timing_only.run(overrides, tmp_path)
    assert told["eps"] > 0 and told["replicas"]["trainers"] == 2


def test_a_run_of_a_moment_has_no_rate(data: Path, tmp_path: Path) -> None:
    short = small_data.prepared(tmp_path / "cache", 128)
    with pytest.raises(ValueError, match="too short"):
        timing_only.times(config("async"), open_dataset(short), tmp_path)
