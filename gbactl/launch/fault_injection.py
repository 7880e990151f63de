"""The fault plan carried out on real processes: SIGKILL, SIGSTOP and, when its time has come, SIGCONT.

The coordinator says what is due; only the launcher knows the pids.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from gbactl.engine.base import Child, Children


class Injuries:
    """One run's."""

    def __init__(self, children: Children) -> None:
        self.children = children
        self._wake: list[tuple[float, Child]] = []

    def inflict(self, fields: dict[str, Any]) -> int | None:
        """Hurt a process as an event `inject` says; its pid, None where it does not run now."""
        child = next((child for child in self.children.running if child.name == fields["process"]), None)
        if child is None or child.process.poll() is not None:
            return None
        hang = fields["kind"] == "hang"
        child.process.send_signal(signal.SIGSTOP if hang else signal.SIGKILL)
        if hang and fields["seconds"] is not None:
            self._wake.append((time.monotonic() + fields["seconds"], child))
        return child.process.pid

    def look(self) -> None:
        """Wake those up whose time has come."""
        now = time.monotonic()
        for due, child in list(self._wake):
            if now >= due:
                self._wake.remove((due, child))
                child.process.send_signal(signal.SIGCONT)
