"""Cell of the scale study: what a frame costs the coordinator, beside the handling of its message; in this process.

Microseconds of CPU to send a step's order to one server, and to receive a server's announcement, alone or `TOGETHER`
with others in one read: what packing many messages into one frame could save at best.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator_core import staged

from gbactl.store.gradient_slice import StepOrder
from gbactl.wire.auth import Peer
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Granted, OrderStep
from gbactl.wire.node_measurements import TrafficCounter
from gbactl.wire.socket_channel import QueuedBytes, SocketChannel

MESSAGES, TOGETHER = 12_800, 64
KEY = bytes(32)


def ends() -> tuple[SocketChannel, SocketChannel]:
    """Connect two channels within this process."""
    near, far = socket.socketpair(socket.AF_UNIX)

    def channel(sock: socket.socket) -> SocketChannel:
        return SocketChannel(sock, Peer("server", 0), (KEY, KEY), threading.RLock(), QueuedBytes(), TrafficCounter())

    return channel(near), channel(far)


def cost(message: Any, together: int) -> tuple[float, float]:
    """Microseconds of CPU to send a message, and to receive it with `together` - 1 others."""
    near, far = ends()
    sending = receiving = 0.0
    for _ in range(MESSAGES // TOGETHER):
        taken = 0
        while taken < TOGETHER:
            began = time.process_time()
            for _ in range(together):
                near.send(message)
            sent, found = time.process_time(), list[Frame]()
            far.receive(found)
            receiving += time.process_time() - sent
            sending += sent - began
            taken += len(found)
    near.close()
    far.close()
    return 1e6 * sending / MESSAGES, 1e6 * receiving / MESSAGES


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the cell; return microseconds to send an order, and to receive an announcement alone and with others."""
    order = OrderStep(0, StepOrder(1234, ((5678, 1.0),), 1.0, 1.0), False)
    announcement = staged(Granted(0, 5678, 1234, 0, 300, -1, 0.0, 1.0), 3, 17, 1200)
    return {
        "order_sent_us": cost(order, TOGETHER)[0],
        "announcement_received_us": cost(announcement, 1)[1],
        "announcement_among_others_us": cost(announcement, TOGETHER)[1],
    }
