"""Starting a node's process on this host: what the launcher and a host's agent have in common."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def start_node(environment: Mapping[str, str], log: Path, fds: Sequence[int]) -> subprocess.Popen[bytes]:
    """A process that inherits `fds`, writes what it prints to the end of `log`, waits for what it is to be (see `tell`)
    and dies with the thread that has started it."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "gbactl.cluster.process", str(os.getpid())],
            stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **environment}, pass_fds=fds,
        )  # fmt: skip


def tell(process: subprocess.Popen[bytes], boot: bytes) -> None:
    """Hand over the bootstrap. One that died at once has an exit code that tells why."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(boot)
