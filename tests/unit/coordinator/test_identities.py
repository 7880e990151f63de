"""The identities of the modes, to the last bit, on whole clusters: batch norm, dropout, a short last batch."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gbactl.config import ModeConfig, RunConfig, TrainConfig
from tests.support.simulated_runs import model
from tests.support.thread_cluster import ThreadCluster, clustered


def config(mode: str, servers: int = 2, **mode_options: Any) -> RunConfig:
    chosen = ModeConfig(name=mode, **{"prefetch": "none", **mode_options})
    return clustered(chosen, {"workers": 4, "servers": servers}, train=TrainConfig(global_batch=128, eval_batch=200))


def test_gba_in_lock_step_is_sync_to_the_last_bit(cluster: ThreadCluster, lock_step: None) -> None:
    """B_a = B_s, M = N_s = W: dense on the servers or all-reduced, the same bits."""
    sync = cluster.train(config("sync"), "sync")
    gba = cluster.train(config("gba"), "gba")
    assert model(gba) == model(sync)
    assert (gba["auc"], gba["logloss"]) == (sync["auc"], sync["logloss"])
    assert gba["samples"] == sync["samples"]
    assert gba["staleness"]["p99"] == sync["staleness"]["p99"] == 0


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_any_number_of_servers_gives_the_same_bits(cluster: ThreadCluster, lock_step: None, mode: str) -> None:
    results = [cluster.train(config(mode, servers), str(servers)) for servers in (1, 2, 3)]
    assert len({model(r) for r in results}) == 1
    assert len({r["auc"] for r in results}) == 1


def test_a_seed_changes_the_bits(cluster: ThreadCluster) -> None:
    """The checksum is one that can tell models apart."""
    cfg = config("sync")
    other = dataclasses.replace(cfg, seed=4)
    a, b = (cluster.train(c, str(c.seed)) for c in (cfg, other))
    assert model(a) != model(b)


@pytest.mark.quick(4)
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
@pytest.mark.parametrize("mode", ["async", "gba", "sync"])
def test_every_sample_has_one_fate(cluster: ThreadCluster, mode: str, prefetch: str) -> None:
    """Uneven last batch, several shards, prefetch on."""
    assert cluster.train(config(mode, 3, prefetch=prefetch))["samples"]["read"] == 1500


def test_gba_of_one_gradient_is_async(cluster: ThreadCluster, lock_step: None) -> None:
    """M = 1, iota = infinity, arrivals in the same order: the same bits."""
    results = [
        cluster.train(config(m, local_batch=128, options=options), m)
        for m, options in (("async", {}), ("gba", {"iota": float("inf")}))
    ]
    assert model(results[0]) == model(results[1])
    assert results[0]["global_step"] == results[1]["global_step"] == 12
