"""The identities of the modes, to the last bit, on whole clusters: batch norm, dropout, a short last batch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, TrainConfig, check
from tests.support import small_data
from tests.support.memory_cluster import run_in_memory
from tests.support.simulated_runs import model


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny synthetic set whose rows are no multiple of the batch."""
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 1500)


def config(mode: str, servers: int = 2, **mode_options: Any) -> RunConfig:
    cfg = RunConfig(
        mode=ModeConfig(name=mode, **{"prefetch": "none", **mode_options}),
        model=ModelConfig(dim=4, hidden=[8], dropout=0.2, batch_norm=True),
        cluster=ClusterConfig(workers=4, servers=servers),
        train=TrainConfig(global_batch=128, eval_batch=200),
        seed=3,
    )
    return check(cfg)


def test_gba_in_lock_step_is_sync_to_the_last_bit(data: Path, tmp_path: Path, lock_step: None) -> None:
    """B_a = B_s, M = N_s = W: dense on the servers or all-reduced, the same bits."""
    sync = run_in_memory(config("sync"), data, tmp_path / "sync")
    gba = run_in_memory(config("gba"), data, tmp_path / "gba")
    assert model(gba) == model(sync)
    assert (gba["auc"], gba["logloss"]) == (sync["auc"], sync["logloss"])
    assert gba["samples"] == sync["samples"]
    assert gba["staleness"]["p99"] == sync["staleness"]["p99"] == 0


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_any_number_of_servers_gives_the_same_bits(data: Path, tmp_path: Path, lock_step: None, mode: str) -> None:
    results = [run_in_memory(config(mode, servers), data, tmp_path / str(servers)) for servers in (1, 2, 3)]
    assert len({model(r) for r in results}) == 1
    assert len({r["auc"] for r in results}) == 1


def test_a_seed_changes_the_bits(data: Path, tmp_path: Path) -> None:
    """The checksum is one that can tell models apart."""
    cfg = config("sync")
    other = dataclasses.replace(cfg, seed=4)
    a, b = (run_in_memory(c, data, tmp_path / str(c.seed)) for c in (cfg, other))
    assert model(a) != model(b)


@pytest.mark.quick(4)
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
@pytest.mark.parametrize("mode", ["async", "gba", "sync"])
def test_every_sample_has_one_fate(data: Path, tmp_path: Path, mode: str, prefetch: str) -> None:
    """Uneven last batch, several shards, prefetch on."""
    result = run_in_memory(config(mode, 3, prefetch=prefetch), data, tmp_path)
    samples = result["samples"]
    assert samples["read"] == 1500 == samples["trained"] + samples["decayed"] + samples["lost"]


def test_gba_of_one_gradient_is_async(data: Path, tmp_path: Path, lock_step: None) -> None:
    """M = 1, iota = infinity, arrivals in the same order: the same bits."""
    results = [
        run_in_memory(config(m, local_batch=128, options=options), data, tmp_path / m)
        for m, options in (("async", {}), ("gba", {"iota": float("inf")}))
    ]
    assert model(results[0]) == model(results[1])
    assert results[0]["global_step"] == results[1]["global_step"] == 12
