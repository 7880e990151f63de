"""EASGD exchange of a trainer with the servers: its replica's slices out, the centre's previous slices back.

One exchange at a time, from any thread but the reading one. A dense vector each way; what is sent is copied once.
The slice of a server that is disconnected, or fails during the exchange, stays unchanged: nobody waits for its
successor.
"""

from __future__ import annotations

import numpy as np

from gbactl.errors import PeerGoneError
from gbactl.kernels.base import Floats
from gbactl.trainer.core import CentreSlices
from gbactl.wire.frames import Frame
from gbactl.wire.messages import EasgdCentre
from gbactl.worker.dense_slices import ShardSlices

AWAY_SECONDS = 0.05  # seconds that an exchange waits where no server is connected: else it would be retried at once


class EasgdExchange:
    """EASGD exchange of a vector of `size` floats."""

    def __init__(self, slices: ShardSlices, size: int) -> None:
        self.exchange, self.cuts = slices.exchange, slices.held
        self._slices = CentreSlices(self.cuts, size)
        self.exchange.more[EasgdCentre] = self._arrived
        self.exchange.on_lost = self._lost

    def __call__(self, replica: Floats, alpha: float) -> Floats | None:
        """Exchange f32[size] with the servers: returns the centre before it moved by `alpha` towards the replica.

        The result is valid until the next call. It has the replica's own values where a server does not answer, and is
        None where none does. Raises GbactlError when the run is over, or a server is gone for good."""
        self.exchange.until(self._anybody, AWAY_SECONDS)
        with self.exchange.steady() as served:
            asked = [(served[shard], told, part) for shard, told, part in self._slices.ask(replica, alpha, served)]
        for channel, told, part in asked:
            out = channel.reserve(part.nbytes)
            out.view(np.float32)[:] = part
            channel.send(told, out)
        self.exchange.until(lambda: not self._slices.missing)
        if self._slices.missing:
            raise PeerGoneError("The run was over before a replica's exchange was.")
        return self._slices.centre if asked else None

    def _anybody(self) -> bool:
        with self.exchange.steady() as there:
            return not self.cuts.keys().isdisjoint(there)

    def _arrived(self, shard: int, message: EasgdCentre, frame: Frame) -> None:
        self._slices.arrived(shard, message, frame.payload)
        frame.release()

    def _lost(self, shard: int) -> None:
        """Stop waiting for a failed server's slice."""
        self._slices.lost(shard)
