"""Memory that the servers of a host need."""

from __future__ import annotations

from collections.abc import Mapping

from gbactl.cluster.specs import shard_spec
from gbactl.config import RunConfig
from gbactl.data.dataset import Dataset
from gbactl.models import row_width
from gbactl.store.optim import MOMENTS

BESIDE = 1.03  # a server's memory over that of its rows and moments (README, Speed)
STEPS_BYTES = 4  # Adam's count of a row's steps
FLOAT = 4


def shard_bytes(cfg: RunConfig, dataset: Dataset, shard: int) -> int:
    """Bytes of a shard's rows with their optimizer state."""
    return int(BESIDE * shard_spec(cfg, dataset, shard).local_rows * row_bytes(cfg))


def row_bytes(cfg: RunConfig) -> int:
    """Bytes of a row with its optimizer state."""
    name = cfg.optim.name
    moments = 0 if name == "rowwise_adagrad" else len(MOMENTS[name])
    return row_width(cfg.model) * FLOAT * (1 + moments) + (STEPS_BYTES if name in ("adam", "rowwise_adagrad") else 0)


def bytes_on(cfg: RunConfig, dataset: Dataset, placed: Mapping[str, str]) -> dict[str, int]:
    """Host -> bytes of all its shards."""
    found: dict[str, int] = {}
    for process, host in placed.items():
        if process[0] == "S":
            found[host] = found.get(host, 0) + shard_bytes(cfg, dataset, int(process[1:]))
    return found
