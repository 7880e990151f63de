"""cluster=hosts in the configuration: what is filled in, and what cannot be."""

from __future__ import annotations

import pytest

from gbactl.compose import compose
from gbactl.errors import ConfigError
from gbactl.hosts.needs import bytes_on, shard_bytes

HOSTS = ["cluster=hosts", "cluster.hosts=[a:4,10.0.0.7:2]", "train.global_batch=1200", "mode=gba"]


def test_there_are_as_many_workers_as_slots() -> None:
    cfg = compose(HOSTS)
    assert (cfg.cluster.workers, cfg.local_batch, cfg.threads) == (6, 200, 1)
    assert cfg.real and cfg.several_hosts
    assert compose([*HOSTS, "cluster.workers=5"]).cluster.workers == 5


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["cluster.hosts=[]"], "cluster=hosts needs machines"),
        (["cluster.hosts=[a]"], "NAME:SLOTS"),
        (["cluster.hosts=[3]"], "cluster.hosts is a list"),
        (["cluster.workers=8"], "do not fit into the 6 slots"),
        (["collective=shm"], "collective=shm works within one host"),
        (["cluster.placement=far"], "type one of: spread, packed"),
    ],
)
def test_what_cannot_be(typed: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose([*HOSTS, *typed])


class Table:
    """As much of a data set as a shard needs."""

    class schema:
        rows = 1000


@pytest.mark.parametrize(
    ("name", "bytes_a_row"), [("sgd", 68), ("adagrad", 136), ("rowwise_adagrad", 72), ("adam", 208)]
)
def test_memory_of_shards(name: str, bytes_a_row: int) -> None:
    cfg = compose([*HOSTS, f"optim={name}", "model=wide_deep", "model.dim=16", "cluster.servers=4"])
    assert shard_bytes(cfg, Table(), 0) == int(1.03 * 250 * bytes_a_row)  # type: ignore[arg-type]
    placed = {"S0": "a", "S1": "b", "S2": "a", "W0": "a"}
    one = shard_bytes(cfg, Table(), 0)  # type: ignore[arg-type]
    assert bytes_on(cfg, Table(), placed) == {"a": 2 * one, "b": one}  # type: ignore[arg-type]
