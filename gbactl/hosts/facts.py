"""What a host has that a run needs: told by its agent, judged by the launcher. Imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
from pathlib import Path
from typing import Any

from gbactl import shared_names
from gbactl.collective.meeting import address_of_own_name
from gbactl.hosts.route import client_of_ssh

SAME = ("gbactl", "python", "torch", "horovod")  # versions that have to be the same everywhere


def facts() -> dict[str, Any]:
    """Versions, cores, free memory in bytes, from where ssh came, and which address its own name has."""
    from gbactl import __version__

    return {
        "gbactl": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "horovod": version("horovod"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": free_memory(),
        "shared_memory": shutil.disk_usage(shared_names.DIRECTORY).free if shared_names.available() else 0,
        "client": client_of_ssh(),
        "name": socket.gethostname(),
        "own_name": address_of_own_name(),
    }


def version(package: str) -> str:
    """Of an installed package; "" where it is not there. Costs no import of it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def free_memory() -> int:
    """Bytes that processes can have without swapping; 0 where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), 0)
