"""One model that computes the gradients and predictions of all virtual workers from what they pulled.

A gradient depends only on the pulled parameters and the batch, so it may be computed at any moment between the pull and
the push. It costs what a worker's gradient costs; a dense vector is copied only if it changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gbactl.config import RunConfig
from gbactl.config.shard_specs import dense_cuts, shard_spec
from gbactl.data.dataset import Dataset
from gbactl.kernels.base import Floats
from gbactl.simulation.server import PullAnswer
from gbactl.store.dense import nonempty_slices
from gbactl.store.shard import ShardSpec
from gbactl.wire.channel_interface import NO_BYTES
from gbactl.wire.messages import Rows
from gbactl.worker.loop import BatchComputer
from gbactl.worker.worker_core import BatchInProgress


def answer_of(item: BatchInProgress, shard: int) -> PullAnswer:
    """Shard's answer to the pull of a batch."""
    frame = item.answers[shard][1]
    assert isinstance(frame, PullAnswer)
    return frame


def set_answer(item: BatchInProgress, shard: int, rows: Floats | None = None) -> None:
    """Give a batch a shard's rows float32[n, width] without a message, and no dense slice yet."""
    item.answers[shard] = (Rows(0, 0, 0, 0), PullAnswer(0, b"", NO_BYTES, None, None, rows))


class SharedCompute(BatchComputer):
    """Model that computes for all workers of a virtual cluster.

    `cuts`: the servers' slices of the dense vector, which are loaded where the servers hold it."""

    def __init__(self, cfg: RunConfig, dataset: Dataset) -> None:
        super().__init__(cfg, dataset)
        self.cuts = dense_cuts(cfg, self.flat.size)
        self.held = nonempty_slices(self.cuts)
        self._loaded: list[Any] = [None] * self.servers

    def shard_spec(self, cfg: RunConfig, shard: int) -> ShardSpec:
        """Return the specification of a server's shard, with its slice of the initial dense vector."""
        low, high = self.cuts[shard]
        dense = self.flat.initial()[low:high].copy()
        return replace(shard_spec(cfg, self.schema.rows, shard), dense=self.flat.dense_spec, dense_init=dense)

    def load(self, item: BatchInProgress) -> None:
        """Load the dense vector that was pulled for a batch into the model."""
        for shard in item.answers:
            values = answer_of(item, shard).dense
            if values is None or values is self._loaded[shard]:
                continue
            self._loaded[shard] = values
            if len(values) < self.flat.size:
                self.flat.load_slice(self.cuts[shard][0], values)
            else:
                self.flat.use_shared(values)

    def use_own_memory(self) -> None:
        """Make the model compute with its own memory again, and forget the dense slices loaded for a batch."""
        self.flat.use_own_memory()
        self._loaded = [None] * self.servers

    def rows_of(self, item: BatchInProgress, shard: int) -> Floats:
        """Return the rows float32[n, W] that a shard answered."""
        rows = answer_of(item, shard).rows
        assert rows is not None
        return rows
