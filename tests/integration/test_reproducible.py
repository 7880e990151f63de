"""`sync` from a seed gives the same bits: again, with a busy neighbour, and on 1, 2 or 3 servers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes import Launcher, busy_neighbour, collective
from tests.support.slow import slow

pytestmark = pytest.mark.beside

PARTS = ("checksums", "auc", "logloss", "ne", "calibration", "samples", "global_step")
COMMON = ("mode=sync", "model.dropout=0.2", "model.batch_norm=true", "data.rows_per_day=4010", "seed=11")


def bits(result: dict[str, Any]) -> dict[str, Any]:
    return {part: result[part] for part in PARTS}


@pytest.mark.parametrize("workers", [3, slow(4)])
def test_twice_and_beside_a_busy_neighbour(launcher: Launcher, workers: int) -> None:
    size = (f"cluster.workers={workers}", f"train.global_batch={64 * workers}")
    overrides = (*COMMON, *size, f"collective={collective()}")
    first = bits(launcher.train(*overrides))
    with busy_neighbour():
        second = bits(launcher.train(*overrides))
    assert first == second
    assert {first["checksums"][f"W{index}"] for index in range(workers)} == {first["checksums"]["W0"]}
    other = bits(launcher.train(*overrides, "seed=12"))
    assert other["checksums"]["model"] != first["checksums"]["model"]


@pytest.mark.slow
def test_any_number_of_servers(launcher: Launcher) -> None:
    results = [
        launcher.train(*COMMON, "collective=gloo", f"cluster.servers={servers}", f"cluster.transport={transport}")
        for servers, transport in ((1, "shm"), (2, "tcp"), (3, "shm"))
    ]
    assert results[0]["checksums"]["model"]
    for key in ("auc", "logloss", "ne", "calibration", "samples"):
        assert [result[key] for result in results] == [results[0][key]] * 3
    assert {result["checksums"]["model"] for result in results} == {results[0]["checksums"]["model"]}
    assert {result["checksums"]["W0"] for result in results} == {results[0]["checksums"]["W0"]}
    wires = [result["wire"] for result in results]
    assert wires[0]["bytes"]["dense"] == wires[1]["bytes"]["dense"] == wires[2]["bytes"]["dense"] > 0
    assert wires[1]["shared_memory"] == wires[1]["bytes"]["dense"], "a ring of two sends what is laid down beside it"


@pytest.mark.slow
def test_evaluation_does_not_depend_on_the_number_of_workers(launcher: Launcher) -> None:
    """The same parameters (none are trained: a rate of next to nothing) judged by one worker and by three."""
    same = ("mode=gba", "optim=sgd", "optim.lr=1e-30", "model.init_scale=0.5", "train.global_batch=192")
    few, many = (launcher.train(*same, "train.eval_batch=300", f"cluster.workers={workers}") for workers in (1, 3))
    for key in ("auc", "logloss", "ne", "calibration"):
        assert few[key] == many[key]
