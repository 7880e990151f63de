"""The bootstrap document of a child process.

The launcher hands it over on standard input, so that the run's key is on no command line and in no environment; the
coordinator inherits its listening socket.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gbactl.config import RunConfig, from_dict
from gbactl.wire.auth import Peer


@dataclass(frozen=True)
class Bootstrap:
    """What a child process needs to know, as one line of JSON."""

    role: str
    index: int
    key: str
    coordinator: str
    run_dir: str
    dataset: str
    config: dict[str, Any]
    listener: int = -1
    place: tuple[int, int, int] | None = None  # see worker/core_sharing.py
    epoch: int = 0  # above 0: it takes the place of one that is gone
    host: str = ""  # the address of its host, where a run has several
    missed: tuple[float, str, float] = (0.0, "", 0.0)  # a coordinator: that one was then, as what, last heard of then

    def dumps(self) -> bytes:
        """One line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def loads(cls, line: bytes) -> Bootstrap:
        """Read what dumps() made."""
        return cls(**json.loads(line))

    @property
    def peer(self) -> Peer:
        """This child's identity."""
        return Peer(self.role, self.index, self.epoch)

    @property
    def log_name(self) -> str:
        """Its log in logs/, without the suffix: W1, and W1-2 for its second successor."""
        return f"{self.peer}-{self.epoch}" if self.epoch else str(self.peer)

    @property
    def cfg(self) -> RunConfig:
        """The run's configuration."""
        return from_dict(self.config)
