"""Supervision of a run's processes by the launcher: connection to the coordinator, replacements, injected faults.

The fault plan is executed on real processes: SIGKILL, SIGSTOP and, when due, SIGCONT. The coordinator reports which
faults are due; only the launcher knows the pids. A failed process is replaced as soon as the coordinator asks for it,
and again if the replacement fails: every process is checked four times a second. A killed coordinator is replaced too,
and its replacement may repeat events of the failed one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gbactl.coordinator.state import writes_journal
from gbactl.engine.local_processes import ChildProcess, RunProcesses
from gbactl.errors import ClusterError, WireError
from gbactl.wire.messages import Event, Hello
from gbactl.wire.node_connections import SocketHub
from gbactl.wire.socket_channel import SocketChannel

LOOK_SECONDS, AWAY_SECONDS = 0.1, 2.0


class CoordinatorConnection:
    """Launcher's connection to the current coordinator; `say` prints a sentence.

    `check` raises where a child's end ends the run."""

    def __init__(
        self, children: RunProcesses, hub: SocketHub, say: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        self.children, self.hub, self.say, self.check = children, hub, say, check
        self._channel: SocketChannel | None = None
        self._last_message = self._last_check = time.monotonic()
        self._error: WireError | None = None

    def connect(self) -> None:
        """Connect to the coordinator; if a process fails before that, raise that process's error.

        The dial runs in a thread: a pending connection to a failed coordinator stays open, as its replacement may
        accept it."""
        self.hub.patience, self._error = self.children.cfg.cluster.start_timeout, None
        dialling = threading.Thread(target=self._dial, name="dial", daemon=True)
        dialling.start()
        while dialling.is_alive():
            dialling.join(LOOK_SECONDS)
            if self.children.coordinator_replaceable:
                self.children.replace_coordinator("death", self._last_message)
            self.check()
        if self._error is not None:
            self.children.wait(1.0)
            self.check()
            raise self._error
        self._last_message = self._last_check = time.monotonic()

    def _dial(self) -> None:
        try:
            self._channel = self.hub.connect(self.children.coordinator)
            self._channel.send(Hello("launcher", 0, ""))
        except WireError as error:
            self._error = error

    def send(self, event: Event) -> None:
        """Send an event to the coordinator."""
        if self._channel is not None:
            self._channel.send(event)

    def kill_if_hanging(self) -> str:
        """Kill the coordinator if it hangs; return how one that can be replaced has failed: hang, death, or ""."""
        found = "hang" if self._silent() else "death"
        return found if self.children.coordinator_replaceable else ""

    def replace(self, failure: str) -> None:
        """Start a replacement coordinator and connect to it."""
        self.say("  C is gone; another one goes on from its journal.")
        self.children.replace_coordinator(failure, self._last_message)
        self.connect()

    def _silent(self) -> bool:
        """Kill the coordinator if it was silent for too long; returns whether it was killed.

        Time during which this process itself was suspended does not count."""
        now, child = time.monotonic(), self.children.running[0]
        if now - self._last_check > AWAY_SECONDS:
            self._last_message += now - self._last_check
        self._last_check = now
        cfg = self.children.cfg
        hangs = writes_journal(cfg) and self.children.all_ready and now - self._last_message > cfg.cluster.hang_seconds
        if hangs and child.process.poll() is None:
            child.process.kill()
            child.process.wait()
            return True
        return False

    def on_event(self, event: Event) -> None:
        """Record the arrival time of a coordinator's event, and whether a replacement coordinator now runs the job."""
        self._last_message = time.monotonic()
        if event.name == "joined" and event.fields.get("process") == "C":
            self.children.coordinator_continues()


MOST_TRIES = 3


class Replacements:
    """Starter of replacements for failed processes, at the coordinator's request; `say` prints a sentence."""

    def __init__(self, children: RunProcesses, say: Callable[[str], None]) -> None:
        self.children, self.say = children, say
        self._tries: dict[str, int] = {}

    def on_event(self, event: Event) -> None:
        """Handle an event: replace a lost process, or record that a replacement has joined or that the run is over."""
        self.children.all_ready |= event.name != "beat"
        name = event.fields.get("process")
        if event.name == "lost" and isinstance(name, str):
            if event.fields.get("epoch", self.children.incarnations[name]) < self.children.incarnations[name]:
                return  # the event was repeated by a replacement coordinator
            self.children.stop_watching(name, kill=bool(event.fields.get("shared")))
            if event.fields.get("replaced"):
                self._tries[name] = 1
                self.children.replace(name)
        elif event.name == "joined" and isinstance(name, str):
            self._tries.pop(name, None)
        elif event.name == "result":
            for unready in self._tries:
                self.children.stop_watching(unready, kill=True)
            self._tries.clear()

    def poll(self) -> None:
        """Start another replacement for each replacement that ended before it had joined the run.

        Raises ClusterError where the MOST_TRIES replacements of a server, or of the last worker, all failed."""
        for name, tries in list(self._tries.items()):
            child = next((child for child in self.children.running if child.name == name), None)
            if child is None or child.process.poll() is None:
                continue
            self.children.stop_watching(name)
            if tries == MOST_TRIES:
                told = f"{name} could not be replaced in {tries} tries; look into {child.log}."
                if name[0] == "S" or not any(each.name[0] == "W" for each in self.children.running):
                    raise ClusterError(f"{child.exit_sentence() or ''} {told}".lstrip())
                self.say(f"  {told}")
                del self._tries[name]
            else:
                self._tries[name] = tries + 1
                self.children.replace(name, again=True)


def event_sentence(event: Event) -> str:
    """Describe in one line the failure of a process, its replacement, or a full recovery."""
    fields = event.fields
    if event.name == "rewound":
        again = f"{fields['samples']:,} samples are trained again"
        return f"step {fields['step']}: everybody goes back to the checkpoint of step {fields['to']}; {again}."
    name = fields["process"]
    if event.name == "lost" and name[0] == "S":
        others = "everybody goes back to it" if fields["recovery"] == "full" else "the others keep what they have"
        return f"{name} is gone; another one takes its place with the last checkpoint, and {others}."
    if event.name == "lost":
        successor = ", and another one takes its place" if fields["replaced"] else ""
        return f"{name} is gone; the others go on, its batches are handed out again{successor}."
    loaded = fields.get("loaded")
    state = "" if loaded is None else f" as it was at {'the beginning' if loaded < 0 else f'step {loaded}'}"
    return f"step {fields['step']}: {name} is back{state}."


class FaultInjection:
    """Injection of the fault plan's kills and hangs into real processes."""

    def __init__(self, children: RunProcesses) -> None:
        self.children = children
        self._suspended: list[tuple[float, ChildProcess]] = []

    def inject(self, fields: dict[str, Any]) -> int | None:
        """Kill or suspend the process that an event `inject` names; returns its pid, or None if it does not run."""
        child = next((child for child in self.children.running if child.name == fields["process"]), None)
        if child is None or child.process.poll() is not None:
            return None
        hang = fields["kind"] == "hang"
        child.process.send_signal(signal.SIGSTOP if hang else signal.SIGKILL)
        if hang and fields["seconds"] is not None:
            self._suspended.append((time.monotonic() + fields["seconds"], child))
        return child.process.pid

    def poll(self) -> None:
        """Resume (SIGCONT) the suspended processes whose injected hang has lasted long enough."""
        now = time.monotonic()
        for due, child in list(self._suspended):
            if now >= due:
                self._suspended.remove((due, child))
                child.process.send_signal(signal.SIGCONT)


def repeats_known_failure(event: Event, losses: Sequence[dict[str, Any]]) -> bool:
    """Return whether an event repeats the loss of a process (same incarnation) that is already in `losses`."""
    return event.name == "lost" and _matches_one_of(event.fields, losses, "process", "epoch")


def repeats_known_switch(event: Event, switches: Sequence[dict[str, Any]]) -> bool:
    """Return whether an event repeats a completed switch that is already known.

    Its pause is ignored, as only the first of the two events may have it."""
    done = event.name == "switch" and event.fields["state"] == "done"
    return done and _matches_one_of(event.fields, switches, "step", "from", "to")


def _matches_one_of(fields: dict[str, Any], known: Sequence[dict[str, Any]], *keys: str) -> bool:
    return any(all(fields.get(key) == each.get(key) for key in keys) for each in known)
