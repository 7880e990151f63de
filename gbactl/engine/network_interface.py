"""Address and network interface of this machine on the route to another."""

from __future__ import annotations

import os
import socket

from gbactl.collective.rendezvous import interface_of
from gbactl.errors import ClusterError

ANY_PORT = 9  # nothing is sent


def route_to(address: str) -> str:
    """Return this machine's IPv4 address on its route to another. Raises ClusterError where there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, ANY_PORT))
        except OSError as error:
            raise ClusterError(f"there is no route to {address} ({error.strerror})") from error
        found: str = probe.getsockname()[0]
    return found


def interface_to(address: str) -> tuple[str, str]:
    """Return (address, interface) of this machine on its route to another. Raises ClusterError."""
    own = route_to(address)
    return own, interface_of(own)


def client_of_ssh() -> str | None:
    """Return the address of this session's ssh client; None outside ssh."""
    given = os.environ.get("SSH_CONNECTION", "").split()
    return given[0] if len(given) == 4 and ":" not in given[0] else None
