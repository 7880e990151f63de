"""A replica's exchange with the centre, seen from a trainer: its slice to every server that has one, and back those of
before.

One exchange at a time, from any thread but the one that reads. A dense vector each way; what is sent is copied once.
The slice of a server that is away, or goes while it is asked, stays as it is: nobody waits until another one has come.
"""

from __future__ import annotations

import numpy as np

from gbactl.errors import PeerGoneError, WireError
from gbactl.kernels.base import Floats
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Centre, Elastic
from gbactl.worker.dense_slices import Slices

AWAY_SECONDS = 0.05  # how long an exchange waits where no server is there: it would be tried again at once


class ElasticExchange:
    """`size` floats in all."""

    def __init__(self, slices: Slices, size: int) -> None:
        self.exchange, self.cuts = slices.exchange, slices.held
        self._centre: Floats = np.empty(size, np.float32)
        self._sent = self._centre
        self._ticket = 0
        self._missing: set[int] = set()
        self.exchange.more[Centre] = self._arrived
        self.exchange.on_lost = self._lost

    def __call__(self, replica: Floats, alpha: float) -> Floats | None:
        """f32[size], valid until the next call: the centre before it went `alpha` of the way towards the replica, and
        the replica itself where no server answers; None where none does.

        Raises GbactlError when the run is over, or a server gone for good."""
        self.exchange.until(self._anybody, AWAY_SECONDS)
        with self.exchange.steady() as served:
            there = {shard: channel for shard, channel in served.items() if shard in self.cuts}
            self._ticket, self._sent, self._missing = self._ticket + 1, replica, set(there)
        for shard, (low, high) in self.cuts.items():
            if shard not in there:
                self._centre[low:high] = replica[low:high]
                continue
            out = there[shard].reserve(4 * (high - low))
            out.view(np.float32)[:] = replica[low:high]
            there[shard].send(Elastic(self._ticket, alpha), out)
        self.exchange.until(lambda: not self._missing)
        if self._missing:
            raise PeerGoneError("The run was over before a replica's exchange was.")
        return self._centre if there else None

    def _anybody(self) -> bool:
        with self.exchange.steady() as there:
            return not self.cuts.keys().isdisjoint(there)

    def _arrived(self, shard: int, message: Centre, frame: Frame) -> None:
        low, high = self.cuts[shard]
        if message.ticket != self._ticket or frame.payload.size != 4 * (high - low):
            raise WireError(f"S{shard} answered an exchange with {frame.payload.size} bytes.")
        self._centre[low:high] = frame.payload.view(np.float32)
        frame.release()
        self._missing.discard(shard)

    def _lost(self, shard: int) -> None:
        """Nobody answers for a shard any more."""
        if shard in self._missing:
            low, high = self.cuts[shard]
            self._centre[low:high] = self._sent[low:high]
            self._missing.discard(shard)
