"""What was pulled and not yet computed with: copies made when a shard moves on, and only then.

Gradients that pulled one version share one copy of its dense slices.
"""

from __future__ import annotations

import numpy as np

from gbactl.coordinator.event_log import AnnounceRecord
from gbactl.kernels.base import Floats
from gbactl.replay.gradients import Gradients, Pulled
from gbactl.replay.pulls import Pulls
from gbactl.store.gradient_slice import Part
from gbactl.store.shard import Shard


class Captures:
    """The pulls of one phase as they come due."""

    def __init__(
        self, gradients: Gradients, shards: list[Shard], pulls: Pulls, version: int, replica: Floats | None = None
    ) -> None:
        """`replica`: the dense vector where it is not the shards'."""
        self.gradients, self.shards, self.pulls, self.replica = gradients, shards, pulls, replica
        self.version = version
        self._held: dict[int, Pulled] = {}
        self._dense: dict[int, Floats] = {}
        self._computed: set[int] = set()  # at the present version

    def leave(self) -> None:
        """The shards are about to take a step: copy what was pulled now and is wanted later."""
        for shard, dense, batch in self.pulls.leaving(self.version):
            if batch not in self._computed:
                self._take(self._pulled(batch), shard, dense)
        self._dense.clear()
        self._computed.clear()
        self.version += 1

    def gradient(self, record: AnnounceRecord) -> list[Part]:
        """An announced batch's parts; what it pulled at the present version is read now."""
        pulled = self._pulled(record.batch)
        for shard in range(len(self.shards)):
            if pulled.rows[shard] is None:
                self._take(pulled, shard, False)
            if pulled.dense[shard] is None:
                self._take(pulled, shard, True)
        del self._held[record.batch]
        self._computed.add(record.batch)
        return self.gradients.compute(pulled)

    def forget(self, batch: int) -> None:
        """A gradient that is never computed."""
        self._held.pop(batch, None)

    def _pulled(self, batch: int) -> Pulled:
        if batch not in self._held:
            self._held[batch] = self.gradients.prepare(batch)
        return self._held[batch]

    def _take(self, pulled: Pulled, shard: int, dense: bool) -> None:
        if dense:
            pulled.dense[shard] = self._slice(shard)
            return
        index = pulled.index(shard)
        rows = np.empty((len(index), self.gradients.width), np.float32)
        self.shards[shard].pull_rows(index, rows)
        self.shards[shard].note_pull(pulled.number, index)
        pulled.rows[shard] = self.gradients.arrived(rows)

    def _slice(self, shard: int) -> Floats:
        if shard not in self._dense:
            low, high = self.shards[shard].dense_range
            self._dense[shard] = np.empty(high - low, np.float32)
            if self.replica is None:
                self.shards[shard].pull_dense(self._dense[shard])
                self._dense[shard] = self.gradients.arrived(self._dense[shard])
            else:
                np.copyto(self._dense[shard], self.replica[low:high])
        return self._dense[shard]
