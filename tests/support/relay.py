"""A wire that delays: every frame goes on to the other of two devices so many seconds after it came, or is lost.

For kernels without netem. A process (relay.cpp, compiled when it is first wanted) in the namespace of both devices,
asleep in between. Packet sockets hand over what the network card would have cut and summed (up to 64 KiB) as it is.
Frames of a direction keep their order; what does not fit into a direction's queue is dropped and counted, and so is the
share of all that `loss` says, drawn with a fixed seed. A line on its standard input is answered with the counts so far,
its end ends the relay, so it does not outlive who started it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gbactl.install.horovod import find_compiler

SOURCE = Path(__file__).with_suffix(".cpp")
QUEUE_BYTES = 64 << 20  # of a direction: 5 ms at 100 Gbit/s
FLAGS = ("-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror")


def compiled(folder: Path) -> Path:
    """The program, in a folder."""
    target = folder / "relay"
    if not target.exists():
        subprocess.run([*find_compiler(), *FLAGS, "-o", str(target), str(SOURCE)], check=True)
    return target


class Relay:
    """One that runs. `inside`: what to put before a command of its namespace; `folder`: for the program; `room`: bytes
    that wait in a direction at most. A device may be an open socket's number."""

    def __init__(
        self, folder: Path, inside: Sequence[str], devices: Sequence[str | int], seconds: float, loss: float = 0.0,
        room: int = QUEUE_BYTES,
    ) -> None:  # fmt: skip
        names = [device if isinstance(device, str) else f"fd:{device}" for device in devices]
        self._process = subprocess.Popen(
            [*inside, str(compiled(folder)), *names, repr(seconds), repr(loss), str(room)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            pass_fds=[device for device in devices if isinstance(device, int)],
        )  # fmt: skip
        if self._read() != "ready\n":
            self.end()
            raise RuntimeError(f"the relay between {' and '.join(names)} did not start")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def counts(self) -> dict[str, float]:
        """So far: `frames` sent, `dropped` (no room), `lost` (drawn), `late` (seconds, all together), `cpu_seconds`."""
        assert self._process.stdin is not None
        self._process.stdin.write("counts\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._read())
        return found

    def end(self) -> None:
        """It is gone."""
        self._process.kill()
        self._process.communicate()
