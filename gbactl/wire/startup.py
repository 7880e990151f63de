"""Start-up exchange of a run: the servers' addresses and the initial dense values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gbactl.errors import PeerGoneError
from gbactl.store.dense import Cut, DenseSpec
from gbactl.store.shard import ShardSpec
from gbactl.wire import frames
from gbactl.wire.channel import Channel, Hub
from gbactl.wire.messages import Ack, InstallDense, ShardAddresses, Stop, decode

INSTALLED = Ack(0, 0)


def await_dense(hub: Hub, coordinator: Channel, spec: ShardSpec, momentum: float) -> ShardSpec | None:
    """Wait for the initial dense values, sent by a worker. None when the run ends before.

    `momentum`: of the running statistics among the values."""
    while True:
        for channel, frame in hub.poll(None):
            if frame.kind == frames.CLOSED and channel is coordinator:
                return None
            message = None if frame.kind == frames.CLOSED else decode(frame)
            if isinstance(message, Stop):
                return None
            if isinstance(message, InstallDense):
                values = frame.payload.view(np.float32).copy()
                frame.release()
                channel.send(INSTALLED)
                dense = DenseSpec(message.params, message.buffers, momentum)
                return replace(spec, dense=dense, dense_init=values)


def await_setup(hub: Hub, coordinator: Channel) -> ShardAddresses:
    """Wait, as a worker, for the servers' addresses. Raises ClusterError when the run ends before."""
    setup: ShardAddresses | None = None
    while setup is None:
        for channel, frame in hub.poll(None):
            if frame.kind == frames.CLOSED and channel is coordinator:
                raise PeerGoneError("The coordinator is gone.")
            message = None if frame.kind == frames.CLOSED else decode(frame)
            setup = message if isinstance(message, ShardAddresses) else setup
    return setup


def install_dense(hub: Hub, servers: list[Channel], cuts: list[Cut], params: int, buffers: int, vector: Any) -> None:
    """Send every server its slice of the initial dense values, even an empty one, and wait for all acknowledgements."""
    for channel, (low, high) in zip(servers, cuts, strict=True):
        channel.send(InstallDense(params, buffers), np.ascontiguousarray(vector[low:high]).view(np.uint8))
    waiting = len(servers)
    while waiting:
        for _, frame in hub.poll(None):
            if frame.kind == frames.CLOSED:
                raise PeerGoneError("A server is gone.")
            waiting -= isinstance(decode(frame), Ack)
