"""A replica's exchange with the centre, seen from a trainer: its slice to every server that has one, and back those of
before.

One exchange at a time, from any thread but the one that reads. A dense vector each way; what is sent is copied once.
"""

from __future__ import annotations

import numpy as np

from gbactl.cluster.frames import Frame
from gbactl.cluster.messages import Centre, Elastic
from gbactl.cluster.slices import Slices
from gbactl.errors import PeerGoneError, WireError
from gbactl.kernels.base import Floats


class ElasticExchange:
    """`size` floats in all."""

    def __init__(self, slices: Slices, size: int) -> None:
        self.exchange, self.cuts = slices.exchange, slices.held
        self._centre: Floats = np.empty(size, np.float32)
        self._ticket = self._missing = 0
        self.exchange.more[Centre] = self._arrived

    def __call__(self, replica: Floats, alpha: float) -> Floats:
        """f32[size], valid until the next call: the centre before it went `alpha` of the way towards the replica.

        Raises GbactlError when a server is gone, or the run over."""
        self._ticket += 1
        self._missing = len(self.cuts)
        for shard, (low, high) in self.cuts.items():
            channel = self.exchange.servers[shard]
            out = channel.reserve(4 * (high - low))
            out.view(np.float32)[:] = replica[low:high]
            channel.send(Elastic(self._ticket, alpha), out)
        self.exchange.until(lambda: not self._missing)
        if self._missing:
            raise PeerGoneError("The run was over before a replica's exchange was.")
        return self._centre

    def _arrived(self, shard: int, message: Centre, frame: Frame) -> None:
        low, high = self.cuts[shard]
        if message.ticket != self._ticket or frame.payload.size != 4 * (high - low):
            raise WireError(f"S{shard} answered an exchange with {frame.payload.size} bytes.")
        self._centre[low:high] = frame.payload.view(np.float32)
        frame.release()
        self._missing -= 1
