"""Base of the launcher's rendezvous, and this machine's interfaces and addresses."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Self

from gbactl.errors import ClusterError

SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class RankSlot:
    """Host and local rank of a rank, as in Horovod's SlotInfo, and the network interface of its host."""

    hostname: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    size: int
    interface: str


class Rendezvous:
    """Interface of the launcher's rendezvous: every rank's environment variables, and a count of rejected requests."""

    refused = 0

    def turned_away(self) -> int:
        """Return the number of requests that the rendezvous has rejected so far."""
        return self.refused

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables that the process of `rank` needs at its start."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop answering ranks, and release all resources. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _address(name: str) -> str:
    """Return the IPv4 address of an interface, or "" when it has none (Linux)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return ""
    return socket.inet_ntoa(answer[20:24])


def address_of_own_name() -> str:
    """Return the address of this machine's own name that Gloo would use: the first that can be bound, or ""."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, where in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
                return str(where[0])
    return ""


def interface_of(address: str) -> str:
    """Return the network interface that has the IPv4 `address`. Raises ClusterError."""
    for _, name in socket.if_nameindex():
        if _address(name) == address:
            return name
    raise ClusterError(f"cluster.bind={address} is no address of this machine; type cluster.bind=127.0.0.1.")
