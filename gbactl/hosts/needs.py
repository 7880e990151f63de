"""Memory that the servers of a host need."""

from __future__ import annotations

from collections.abc import Mapping

from gbactl.cluster.specs import shard_spec
from gbactl.config import RunConfig
from gbactl.data.dataset import Dataset
from gbactl.store.optim import MOMENTS

BESIDE = 1.03  # a server's memory over that of its rows and moments (README, Speed)
STEPS_BYTES = 4  # Adam's count of a row's steps
FLOAT = 4


def shard_bytes(cfg: RunConfig, dataset: Dataset, shard: int) -> int:
    """Bytes of a shard's rows with their optimizer state."""
    spec = shard_spec(cfg, dataset, shard)
    name = cfg.optim.name
    moments = 0 if name == "rowwise_adagrad" else len(MOMENTS[name])
    row = spec.width * FLOAT * (1 + moments) + (STEPS_BYTES if name in ("adam", "rowwise_adagrad") else 0)
    return int(BESIDE * spec.local_rows * row)


def bytes_on(cfg: RunConfig, dataset: Dataset, placed: Mapping[str, str]) -> dict[str, int]:
    """Host -> bytes of all its shards."""
    found: dict[str, int] = {}
    for process, host in placed.items():
        if process[0] == "S":
            found[host] = found.get(host, 0) + shard_bytes(cfg, dataset, int(process[1:]))
    return found
