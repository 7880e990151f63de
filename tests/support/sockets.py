"""What processes listen on."""

from __future__ import annotations

import os
import socket
from pathlib import Path

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
_LISTENING = "0A"


def listeners(pid: int) -> set[str]:
    """ADDRESS:PORT (hexadecimal, as the kernel writes them) that a process listens on."""
    try:
        sockets = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:
        return set()
    rows = [line.split() for table in tables for line in table.splitlines()[1:]]
    return {row[1] for row in rows if row[3] == _LISTENING and f"socket:[{row[9]}]" in sockets}


def free_port() -> int:
    """A TCP port of loopback on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
