"""Start of a run's processes: the start-up document, the servers' addresses and the initial dense values.

The launcher gives each child process its start-up document on standard input. The run's key is therefore on no command
line and in no environment. The coordinator inherits its listening socket.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from gbactl.config import RunConfig, from_dict
from gbactl.errors import PeerGoneError
from gbactl.store.dense import Cut, DenseSpec
from gbactl.store.shard import ShardSpec
from gbactl.wire import frames
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.messages import Ack, InstallDense, ShardAddresses, Stop, decode


@dataclass(frozen=True)
class StartupDocument:
    """Start-up parameters of a child process, encoded as one line of JSON."""

    role: str
    index: int
    key: str
    coordinator: str
    run_dir: str
    dataset: str
    config: dict[str, Any]
    listener: int = -1
    place: tuple[int, int, int] | None = None  # see gbactl/cpu.py
    incarnation: int = 0  # above 0: it replaces a failed process
    host: str = ""  # the address of its host, where a run has several
    # of a coordinator's predecessor: time of detection, kind of failure, last sign of life
    coordinator_failure: tuple[float, str, float] = (0.0, "", 0.0)

    def dumps(self) -> bytes:
        """Encode the document as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def loads(cls, line: bytes) -> StartupDocument:
        """Decode a document that dumps() encoded."""
        return cls(**json.loads(line))

    @property
    def peer(self) -> Peer:
        """Identity of this child process."""
        return Peer(self.role, self.index, self.incarnation)

    @property
    def log_name(self) -> str:
        """Name of the child's log file in logs/, without the suffix: W1; W1-2 for the second replacement of W1."""
        return f"{self.peer}-{self.incarnation}" if self.incarnation else str(self.peer)

    @property
    def cfg(self) -> RunConfig:
        """Configuration of the run."""
        return from_dict(self.config)


def await_dense(hub: Hub, coordinator: Channel, spec: ShardSpec, momentum: float) -> ShardSpec | None:
    """Wait for the initial dense values, which a worker sends; None if the run ends before.

    `momentum` is that of the running statistics among the values."""
    while True:
        for channel, frame in hub.poll(None):
            if frame.kind == frames.CLOSED and channel is coordinator:
                return None
            message = None if frame.kind == frames.CLOSED else decode(frame)
            if isinstance(message, Stop):
                return None
            if isinstance(message, InstallDense):
                values = frame.floats()
                frame.release()
                channel.send(Ack())
                dense = DenseSpec(message.params, message.buffers, momentum)
                return replace(spec, dense=dense, dense_init=values)


def await_setup(hub: Hub, coordinator: Channel) -> ShardAddresses:
    """Wait, as a worker, for the servers' addresses. Raises ClusterError if the run ends before."""
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
