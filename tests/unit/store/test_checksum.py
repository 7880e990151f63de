"""Digests: every bit counts, and the model's sum does not depend on the sharding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.hashes_and_random_numbers import MODULUS
from gbactl.kernels.base import Kernels
from gbactl.store.dense import DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec

DENSE = DenseSpec(3, 40)


def build(kernels: Kernels, shards: int, name: str) -> list[Shard]:
    start = np.linspace(-1, 1, DENSE.size, dtype=np.float32)
    made = []
    for shard in range(shards):
        lo, hi = DENSE.size * shard // shards, DENSE.size * (shard + 1) // shards
        spec = ShardSpec(
            shard, shards, 50, 3, row_optimizer=OptimizerSpec(name), dense=DENSE,
            dense_optimizer=OptimizerSpec(name), dense_init=start[lo:hi],
        )  # fmt: skip
        made.append(Shard(spec, kernels))
    return made


def total(shards: list[Shard]) -> int:
    return sum(shard.model_sum() or 0 for shard in shards) % MODULUS


@pytest.mark.parametrize("name", ["sgd", "adam", "rowwise_adagrad"])
def test_the_models_sum_does_not_depend_on_the_sharding(kernels: Kernels, name: str) -> None:
    assert len({total(build(kernels, shards, name)) for shards in (1, 2, 3, 60)}) == 1


def change(shard: Shard, what: str) -> None:
    assert shard.dense is not None
    array: Any = {
        "row": shard.table[7], "moment": shard.rows.moments["first"][7], "count": shard.rows.counts[7:8],
        "dense": shard.dense.value[40:], "dense moment": shard.dense.moments["second"],
    }[what]  # fmt: skip
    array.view(np.uint32)[0] ^= 1


@pytest.mark.parametrize("what", ["row", "moment", "count", "dense", "dense moment"])
def test_one_bit_changes_both(kernels: Kernels, what: str) -> None:
    [shard] = build(kernels, 1, "adam")
    before = shard.checksum(), total([shard])
    change(shard, what)
    assert shard.checksum() != before[0]
    assert total([shard]) != before[1]


def test_rows_that_changed_places_change_both(kernels: Kernels) -> None:
    [shard] = build(kernels, 1, "sgd")
    before = shard.checksum(), total([shard])
    shard.table[[3, 4]] = shard.table[[4, 3]]
    assert shard.checksum() != before[0]
    assert total([shard]) != before[1]
