"""Bootstrap document that the launcher gives a child process on standard input.

The run's key is therefore on no command line and in no environment. The coordinator inherits its listening socket.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from gbactl.config import RunConfig, from_dict
from gbactl.wire.auth import Peer


@dataclass(frozen=True)
class Bootstrap:
    """Start-up parameters of a child process, encoded as one line of JSON."""

    role: str
    index: int
    key: str
    coordinator: str
    run_dir: str
    dataset: str
    config: dict[str, Any]
    listener: int = -1
    place: tuple[int, int, int] | None = None  # see worker/core_sharing.py
    epoch: int = 0  # its incarnation; above 0: it replaces a failed process
    host: str = ""  # the address of its host, where a run has several
    missed: tuple[float, str, float] = (0.0, "", 0.0)  # coordinator: (time of failure, cause, last heard of)

    def dumps(self) -> bytes:
        """Encode the document as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def loads(cls, line: bytes) -> Bootstrap:
        """Decode a document that dumps() encoded."""
        return cls(**json.loads(line))

    @property
    def peer(self) -> Peer:
        """Identity of this child process."""
        return Peer(self.role, self.index, self.epoch)

    @property
    def log_name(self) -> str:
        """Name of the child's log in logs/ without the suffix: W1, and W1-2 for its second successor."""
        return f"{self.peer}-{self.epoch}" if self.epoch else str(self.peer)

    @property
    def cfg(self) -> RunConfig:
        """Configuration of the run."""
        return from_dict(self.config)
