"""cluster=hosts in the configuration: what is filled in, and what cannot be."""

from __future__ import annotations

import pytest

from gbactl.engine.preflight import bytes_on, shard_bytes, vector_bytes, vectors, worker_vectors
from gbactl.errors import ConfigError
from gbactl.launch.hydra_config import compose

HOSTS = ["cluster=hosts", "cluster.hosts=[a:4,10.0.0.7:2]", "train.global_batch=1200", "mode=gba"]


def test_there_are_as_many_workers_as_slots() -> None:
    cfg = compose(HOSTS)
    assert (cfg.cluster.workers, cfg.local_batch, cfg.threads) == (6, 200, 1)
    assert cfg.engine.real and not cfg.engine.one_host and not cfg.engine.here
    assert compose([*HOSTS, "cluster.workers=5"]).cluster.workers == 5


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["cluster.hosts=[]"], "No machines are named"),
        (["cluster.hosts=[a]"], "NAME:SLOTS"),
        (["cluster.hosts=[3]"], "cluster.hosts has to be a list"),
        (["cluster.workers=8"], "do not fit into the 6 slots"),
        (["collective=shm"], "collective=shm works within one host"),
        (["cluster.placement=far"], "type cluster.placement= one of: spread, packed"),
    ],
)
def test_what_cannot_be(typed: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose([*HOSTS, *typed])


class Table:
    """As much of a data set as a shard needs."""

    class schema:
        rows, numeric, fields, list_targets = 1000, 3, 5, ()


@pytest.mark.parametrize(
    ("name", "bytes_a_row"), [("sgd", 68), ("adagrad", 136), ("rowwise_adagrad", 72), ("adam", 208)]
)
def test_memory_of_shards(name: str, bytes_a_row: int) -> None:
    cfg = compose([*HOSTS, f"optim={name}", "model=wide_deep", "model.dim=16", "cluster.servers=4"])
    assert shard_bytes(cfg, Table(), 0) == int(1.03 * 250 * bytes_a_row)  # type: ignore[arg-type]
    placed = {"S0": "a", "S1": "b", "S2": "a", "W0": "a"}
    one = shard_bytes(cfg, Table(), 0)  # type: ignore[arg-type]
    vector, moments = vector_bytes(cfg, Table()), {"sgd": 0, "adam": 2}.get(name, 1)  # type: ignore[arg-type]
    one += vector * (1 + moments) // 4
    assert bytes_on(cfg, Table(), placed) == {"a": 2 * one + 4 * vector, "b": one}  # type: ignore[arg-type]


@pytest.mark.parametrize(("mode", "more"), [("async", 0), ("sync", 2), ("fr_ma", 3)])
def test_workers_that_hold_the_dense_part_have_its_optimizer(mode: str, more: int) -> None:
    cfg = compose(["cluster=local", f"mode={mode}", "optim=adam", "cluster.workers=2"])
    assert (worker_vectors(cfg), vectors(cfg)) == (4 + more, 3 + 2 * (4 + more))
    modelled = compose(["cluster=virtual", f"mode={mode}", "optim=adam", "cluster.workers=2"])
    assert vectors(modelled) == 4 + 3 + {"async": 0, "sync": 2, "fr_ma": 2 * 3}[mode]
