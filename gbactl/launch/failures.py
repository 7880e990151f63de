"""Failures of a run's processes, on the launcher's side: injection, replacement and messages.

The fault plan is executed on real processes: SIGKILL, SIGSTOP and, when due, SIGCONT. The coordinator reports which
faults are due; only the launcher knows the pids. A failed process is replaced as soon as the coordinator asks for it,
and again if the replacement fails: each is checked four times a second. A replacement coordinator may repeat events of
the failed one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from gbactl.engine.base import ChildProcess, RunProcesses
from gbactl.errors import ClusterError
from gbactl.wire.messages import Event

MOST_TRIES = 3


class Replacements:
    """Replacements of failed processes, started on the coordinator's events; `say` shows a sentence."""

    def __init__(self, children: RunProcesses, say: Callable[[str], None]) -> None:
        self.children, self.say = children, say
        self._tries: dict[str, int] = {}

    def heard(self, event: Event) -> None:
        """Handle an event about a lost or joined process, or the result."""
        self.children.settled |= event.name != "beat"
        name = event.fields.get("process")
        if event.name == "lost" and isinstance(name, str):
            if event.fields.get("epoch", self.children.epoch(name)) < self.children.epoch(name):
                return  # repeated by a replacement coordinator
            self.children.bury(name, kill=bool(event.fields.get("shared")))
            if event.fields.get("replaced"):
                self._tries[name] = 1
                self.children.succeed(name)
        elif event.name == "joined" and isinstance(name, str):
            self._tries.pop(name, None)
        elif event.name == "result":
            for late in self._tries:
                self.children.bury(late, kill=True)
            self._tries.clear()

    def look(self) -> None:
        """Start another replacement where one ended before it had joined.

        Raises ClusterError for a server whose MOST_TRIES replacements all failed."""
        for name, tries in list(self._tries.items()):
            child = next((child for child in self.children.running if child.name == name), None)
            if child is None or child.process.poll() is None:
                continue
            self.children.bury(name)
            if tries == MOST_TRIES and name[0] == "S":
                raise ClusterError(f"{name} could not be replaced in {tries} tries; look into {child.log}.")
            if tries == MOST_TRIES:
                self.say(f"  {name} could not be replaced in {tries} tries; look into {child.log}.")
                del self._tries[name]
            else:
                self._tries[name] = tries + 1
                self.children.succeed(name, again=True)


def told(event: Event) -> str:
    """Describe a process failure, a return or a full recovery in one line."""
    fields = event.fields
    if event.name == "rewound":
        again = f"{fields['samples']:,} samples are trained again"
        return f"step {fields['step']}: everybody goes back to the checkpoint of step {fields['to']}; {again}."
    name = fields["process"]
    if event.name == "lost" and name[0] == "S":
        others = "everybody goes back to it" if fields["recovery"] == "full" else "the others keep what they have"
        return f"{name} is gone; another one takes its place with the last checkpoint, and {others}."
    if event.name == "lost":
        more = ", and another one takes its place" if fields["replaced"] else ""
        return f"{name} is gone; the others go on, its batches are handed out again{more}."
    has = fields.get("loaded")
    return f"step {fields['step']}: {name} is back{'' if has is None else _having(has)}."


def _having(step: int) -> str:
    return " as it was at the beginning" if step < 0 else f" as it was at step {step}"


class FaultInjection:
    """Injection of a fault plan's kills and hangs into real processes."""

    def __init__(self, children: RunProcesses) -> None:
        self.children = children
        self._wake: list[tuple[float, ChildProcess]] = []

    def inflict(self, fields: dict[str, Any]) -> int | None:
        """Kill or stop a process as an event `inject` says; returns its pid, or None where it does not run."""
        child = next((child for child in self.children.running if child.name == fields["process"]), None)
        if child is None or child.process.poll() is not None:
            return None
        hang = fields["kind"] == "hang"
        child.process.send_signal(signal.SIGSTOP if hang else signal.SIGKILL)
        if hang and fields["seconds"] is not None:
            self._wake.append((time.monotonic() + fields["seconds"], child))
        return child.process.pid

    def look(self) -> None:
        """Resume stopped processes (SIGCONT) whose hang is over."""
        now = time.monotonic()
        for due, child in list(self._wake):
            if now >= due:
                self._wake.remove((due, child))
                child.process.send_signal(signal.SIGCONT)


def loss_known(event: Event, losses: Sequence[dict[str, Any]]) -> bool:
    """Return whether an event repeats a known loss of the same process and incarnation."""
    return event.name == "lost" and _among(event.fields, losses, "process", "epoch")


def switch_known(event: Event, switches: Sequence[dict[str, Any]]) -> bool:
    """Return whether an event repeats a known completed switch.

    Its pause is ignored, as only the first of the two events may have it."""
    done = event.name == "switch" and event.fields["state"] == "done"
    return done and _among(event.fields, switches, "step", "from", "to")


def _among(fields: dict[str, Any], told: Sequence[dict[str, Any]], *keys: str) -> bool:
    return any(all(fields.get(key) == old.get(key) for key in keys) for old in told)
