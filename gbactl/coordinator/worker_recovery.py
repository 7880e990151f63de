"""Recovery from worker failures, by successors; and the clock of the fault plan.

Tells the launcher which faults are due, detects workers that hang, and keeps successors waiting until every
server refuses their predecessors; then they join the phase. Costs a comparison a message, and what
heartbeat.py costs. core.py has the order of what follows from a failure.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gbactl.collective.base import SHARED_MEMORY
from gbactl.collective.shared_memory import available
from gbactl.coordinator.context import RunContext
from gbactl.coordinator.heartbeat import Heartbeat
from gbactl.errors import ClusterError
from gbactl.faults.injector import FaultInjector, Injection
from gbactl.faults.spec import Hang
from gbactl.wire.channel import Channel
from gbactl.wire.messages import BeginPhase, Inspected, MoveDense, Pong, Stop

log = logging.getLogger(__name__)
FATES = ("dropped", "duplicated", "reordered", "delayed", "retried")
UNANSWERED = -1  # request number of a MoveDense whose answer is ignored


class WorkerRecovery:
    """Worker failures and successors. Faults that a failed coordinator's plan has injected are not injected again."""

    def __init__(self, run: RunContext) -> None:
        self.run = run
        cfg, plan = run.cfg, run.cfg.fault_plan()
        self.injector = FaultInjector(plan)
        self.injector.due(*run.state.ongoing.failures.struck)
        self.heartbeat = Heartbeat(cfg.cluster.hang_seconds, run.hub.now)
        self.begun: BeginPhase | None = None  # last phase announced to workers
        self._beats = cfg.place.real or any(isinstance(fault, Hang) for fault in plan.faults)
        self._fails = plan.fails
        self._storms = plan.storms() if plan.stormy else None
        self._takes: dict[int, int] = {}  # batches that a successor asked for before it was admitted
        self._ready: set[int] = set()

    @property
    def replaces(self) -> bool:
        """Whether a failed worker gets a successor."""
        return self.run.cfg.cluster.lost_worker == "replace"

    @property
    def so_far(self) -> tuple[int, float]:
        """Global step and seconds of training so far; both below 0 before it begins."""
        return (self.run.step_now, self.run.record.seconds) if self.run.members.settled else (-1, -1.0)

    # -- while the coordinator waits ----------------------------------------------------------------

    def left(self, seconds: float) -> float:
        """Limit a wait of `seconds` to the time until a fault or heartbeat is due."""
        if not self.run.members.settled or self.run.stopped:
            return seconds
        least = min(seconds, self.heartbeat.beat_seconds) if self._beats else seconds
        return max(0.0, min(least, self.injector.next_seconds - self.run.record.seconds)) if self._fails else least

    def look(self) -> list[int]:
        """Order the faults that are due. Returns the workers that have been silent for too long."""
        run = self.run
        if not run.members.settled or run.stopped:
            return []
        at = self.so_far
        if self._storms is not None and run.training is not None:
            run.record.statistics.stormed(self._storms.on(*at))
        for injection in self.injector.due(*at) if self._fails else ():
            self._inject(injection, at)
        if not (self._beats and self.heartbeat.due):
            return []
        return self.heartbeat.silent(run.members.of("worker"))

    def _inject(self, injection: Injection, at: tuple[int, float]) -> None:
        run = self.run
        if self._lives(injection.process):
            run.failures.injected(injection.process, injection.kind)
        run.state.ongoing.failures.struck = at
        run.note()
        told = {"step": run.step_now, "at": run.record.seconds, "seconds": injection.seconds, "plan": injection.place}
        run.tell("inject", {"kind": injection.kind, "process": injection.process, **told})

    def look_for_successors(self) -> None:
        """Admit successors, or end the phase so that they can be admitted."""
        run = self.run
        if not run.members.settled or run.stopped:
            return
        unequal = run.state.ongoing.unequal
        if self._ready and run.home == "servers" and (run.training is not None or run.evaluation is not None):
            self.admit(self.begun)
        elif (self._ready or unequal) and run.training is not None and run.training.stopped is None:
            run.training.stop()  # a successor gets the dense parameters between two steps: a new phase begins with it

    def _lives(self, process: str) -> bool:
        if process == "C":
            return True
        role = {"W": "worker", "S": "server"}.get(process[0])
        return role is not None and (role, int(process[1:])) in self.run.members.channels

    def answered(self, message: Pong) -> None:
        """Record a worker's answer."""
        self.heartbeat.answered(message)

    def hang_error(self, worker: int) -> ClusterError:
        """Error for a worker that does not answer and that the run cannot do without."""
        patience = self.run.cfg.cluster.hang_seconds
        return ClusterError(
            f"W{worker} has not answered for {patience:g} s (is it stopped?); type cluster.hang_seconds="
            f"{2 * patience:g} if it was only slow."
        )

    def server_lost(self) -> None:
        """Mark the workers' dense parameters as unequal: a failed server may have lost a part of their move."""
        self.run.state.ongoing.unequal |= self.run.cfg.collects

    # -- successors ---------------------------------------------------------------------------------

    def lost(self) -> None:
        """Mark the workers' dense parameters as unequal where a failed worker took part in a ring all-reduce."""
        cfg = self.run.cfg
        ring = cfg.collective.name != SHARED_MEMORY and cfg.place.real
        self.run.state.ongoing.unequal |= ring and self.run.home == "workers"

    def early(self, channel: Channel, worker: int) -> bool:
        """Whether a request for a batch comes from a successor not admitted yet, which gets one on admission."""
        if self.run.members.joining.get(worker) is not channel:
            return False
        self._takes[worker] = self._takes.get(worker, 0) + 1
        return True

    def ready(self, channel: Channel, worker: int) -> bool:
        """Whether a ready worker is a successor."""
        if self.run.members.joining.get(worker) is not channel:
            return False
        self._ready.add(worker)
        return True

    def joiner_lost(self, channel: Channel) -> bool:
        """Whether a lost connection belonged to a successor not admitted yet; the launcher starts the next one."""
        joining = self.run.members.joining
        for worker, known in list(joining.items()):
            if known is channel:
                del joining[worker]
                self._ready.discard(worker)
                self._takes.pop(worker, None)
                return True
        return False

    @property
    def survivable(self) -> bool:
        """Whether the current mode survives the failure of a worker that is no member any more."""
        now = self.run.current
        trainers = [worker for worker in self.run.members.of("worker") if worker < now.cluster.workers]
        if now.home == "workers" and now.place.real:
            return not now.place.one_host or available()  # else they cannot sum once their ring is broken
        return now.home != "replicas" or bool(trainers)

    @property
    def waiting(self) -> bool:
        """Whether a successor can be admitted."""
        return any(not self.run.fencing.fencing(worker) for worker in self._ready)

    def admit(self, begun: BeginPhase | None, home: str | None = None) -> None:
        """Admit ready successors.

        `begun`: the current phase, which they do not know; `home`: the holder of the dense parameters."""
        for worker in sorted(self._ready):
            if not self.run.fencing.fencing(worker):
                self._ready.discard(worker)
                self._admit(worker, begun, home or self.run.home)

    def _admit(self, worker: int, begun: BeginPhase | None, home: str) -> None:
        run = self.run
        channel = run.members.admit(worker)
        run.fencing.returned(worker)
        run.state.ongoing.lives.workers[worker] = channel.peer.incarnation
        run.note()
        channel.send(MoveDense(home, -1, UNANSWERED))
        if begun is not None:
            channel.send(begun)
        if run.training is not None:
            run.training.joined(worker)
        run.failures.loaded(f"W{worker}")
        run.note()
        run.tell("joined", {"process": f"W{worker}", "step": run.step_now})
        for _ in range(self._takes.pop(worker, 0)):
            run.take(worker)

    def summary(self, inspected: Mapping[str, Inspected]) -> dict[str, Any]:
        """Fields of result.json about failures, and about messages where the fault plan disturbed them."""
        counts: Counter[str] = Counter(getattr(self.run.hub, "counts", None))
        for node in inspected.values():
            counts.update(node.counters)
        fates = {name: counts[name] for name in FATES if counts[name]}
        messages = {"messages": fates} if fates else {}
        return {"fenced_frames": counts["fenced"], "recovery": self.run.failures.told(), **messages}

    def dismiss(self) -> None:
        """Dismiss the successors not admitted yet, at the end of the run."""
        for channel in self.run.members.joining.values():
            channel.send(Stop("done"))
