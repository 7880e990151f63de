"""How a run goes on without a worker and with another one in its place.

Carries the fault plan's clock (the launcher does what it says), notices who hangs, keeps successors waiting until
the servers have closed their doors to whom they follow, and gives them their part in the phase. Costs a comparison
a message, and what heartbeat.py costs.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gbactl.collective import fault_tolerant
from gbactl.collective.shared_memory import available
from gbactl.coordinator import event_log
from gbactl.coordinator.heartbeat import Heartbeat
from gbactl.coordinator.recovery_times import Failed, Recoveries
from gbactl.errors import ClusterError
from gbactl.faults.injector import Injector
from gbactl.faults.process_faults import Hang
from gbactl.wire.auth import Peer
from gbactl.wire.channel import Channel
from gbactl.wire.messages import BeginPhase, Inspected, MoveDense, Pong, Stop

if TYPE_CHECKING:
    from gbactl.coordinator.core import Coordinator

log = logging.getLogger(__name__)
FATES = ("dropped", "duplicated", "reordered", "delayed", "retried")
NO_TURN = -1  # of a MoveDense whose answer nobody waits for


class Recovery:
    """Part of the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        cfg, now = coordinator.cfg, coordinator.hub.now
        plan = cfg.fault_plan()
        self.injector = Injector(plan)
        self.times = Recoveries(now, self._log)
        self.heartbeat = Heartbeat(cfg.cluster.hang_seconds, now)
        self.begun: BeginPhase | None = None  # what workers were told last
        self.struck = (-1, -1.0)  # step and seconds of the last injection
        self._beats = cfg.place.real or any(isinstance(fault, Hang) for fault in plan.faults)
        self._fails = plan.fails
        self._storms = plan.storms() if plan.stormy else None
        self._takes: dict[int, int] = {}  # batches that a successor has asked for before it was admitted
        self._ready: set[int] = set()
        self.broken = False  # the workers' dense parts may differ in their last bits

    @property
    def replaces(self) -> bool:
        """Whether a dead worker gets a successor."""
        return self.c.cfg.cluster.lost_worker == "replace"

    @property
    def so_far(self) -> tuple[int, float]:
        """Global step and seconds of training; both below 0 before it begins."""
        return (self.c._now_step, self.c.record.seconds) if self.c.members.settled else (-1, -1.0)

    # -- while the coordinator waits ----------------------------------------------------------------

    def left(self, seconds: float) -> float:
        """At most so many seconds, less if something is due before."""
        if not self.c.members.settled or self.c.stopped:
            return seconds
        least = min(seconds, self.heartbeat.beat_seconds) if self._beats else seconds
        return max(0.0, min(least, self.injector.next_seconds - self.c.record.seconds)) if self._fails else least

    def look(self) -> None:
        """Between two messages: hurt who is to be hurt, miss who is silent, admit who waits."""
        c = self.c
        if not c.members.settled or c.stopped:
            return
        at = self.so_far
        if self._storms is not None and c._training is not None:
            c.record.statistics.stormed(self._storms.on(*at))
        for injection in self.injector.due(*at) if self._fails else ():
            if self._lives(injection.process):
                self.times.injected(injection.process, injection.kind)
            self.struck = at
            c.journal.note()
            told = {"step": c._now_step, "at": c.record.seconds, "seconds": injection.seconds, "plan": injection.place}
            c._event("inject", {"kind": injection.kind, "process": injection.process, **told})
        if self._beats and self.heartbeat.due:
            for worker in self.heartbeat.silent(c.members.of("worker")):
                self._silent(worker)
        if self._ready and c.now.home == "servers" and (c._training is not None or c._evaluation is not None):
            self.admit(self.begun)
        elif (self._ready or self.broken) and c._training is not None and c._training.stopped is None:
            c._training.stop()  # a successor gets the dense part between two steps: a new phase begins with it

    def restore(self, struck: list[float], broken: bool) -> None:
        """What a plan did up to a step and a time, before this coordinator was there, is done."""
        self.broken = broken
        step, seconds = self.struck = (int(struck[0]), struck[1])
        self.injector.due(step, seconds)

    def reborn(self, failure: str, missed: float, sign: float) -> None:
        """Another coordinator goes on; the one before was `missed` at that time, by what looked like `failure`, and its
        last `sign` of life was then."""
        c = self.c
        c.record.statistics.rates(c.record.seconds)  # what is told next begins here
        self.times.reborn("C", failure, missed, sign)
        c.journal.note()
        c._event("joined", {"process": "C", "step": c._now_step})

    def _lives(self, process: str) -> bool:
        if process == "C":
            return True
        role = {"W": "worker", "S": "server"}.get(process[0])
        return role is not None and (role, int(process[1:])) in self.c.members.channels

    def answered(self, channel: Channel, message: Pong) -> None:
        """A worker is alive."""
        self.c.members.authentic(channel, "worker", message.worker)
        self.heartbeat.answered(message)

    def _silent(self, worker: int) -> None:
        """A worker that does not answer is treated as if it had died; what it says later is refused."""
        c, patience = self.c, self.c.cfg.cluster.hang_seconds
        channel = c.members.of("worker")[worker]
        log.warning("W%d has not answered for %.1f s", worker, patience)
        c.members.forget(channel)
        self.lost(channel.peer, "hang")
        if not c._can_do_without(channel.peer):
            raise ClusterError(
                f"W{worker} has not answered for {patience:g} s (is it stopped?); type cluster.hang_seconds="
                f"{2 * patience:g} if it was only slow."
            )
        c._give_up(channel.peer)

    def unequal(self) -> None:
        """The workers' dense parts may differ: between two phases they get the same again."""
        self.broken |= self.c.cfg.collects

    # -- successors ---------------------------------------------------------------------------------

    def lost(self, peer: Peer, failure: str = "death") -> None:
        """A node that belonged to the run is missed."""
        self.times.detected(str(peer), failure)
        cfg = self.c.cfg
        ring = cfg.collective.name != fault_tolerant.NAME and cfg.place.real
        self.broken |= ring and self.c.now.home == "workers"

    def early(self, channel: Channel, worker: int) -> bool:
        """Whether who asks for a batch is a successor that is not admitted yet; it gets one then."""
        if self.c.members.joining.get(worker) is not channel:
            return False
        self._takes[worker] = self._takes.get(worker, 0) + 1
        return True

    def came(self, channel: Channel, worker: int) -> bool:
        """Whether who is ready is a successor."""
        if self.c.members.joining.get(worker) is not channel:
            return False
        self._ready.add(worker)
        return True

    def joiner_lost(self, channel: Channel) -> bool:
        """Whether a connection that is lost was a successor's; the launcher starts the next one."""
        joining = self.c.members.joining
        for worker, known in list(joining.items()):
            if known is channel:
                del joining[worker]
                self._ready.discard(worker)
                self._takes.pop(worker, None)
                return True
        return False

    @property
    def survivable(self) -> bool:
        """Whether the mode at hand goes on when a worker dies, who is no member any more."""
        now = self.c.now
        trainers = [worker for worker in self.c.members.of("worker") if worker < now.cluster.workers]
        if now.home == "workers" and now.place.real:
            return not now.place.one_host or available()  # else they have nowhere to sum when their ring breaks
        return now.home != "replicas" or bool(trainers)

    def begin(self) -> None:
        """A phase begins, of which workers are told next."""
        if self.c.now.home == "servers":
            self.admit(None)

    def rejoin(self) -> None:
        """Between two phases, in `sync`: one worker gives the dense part to the servers, and all with the successors
        take it from there. So they have the same again where a ring broke in the middle of a sum. Trainers all begin
        with what the servers hold then, too."""
        c, home = self.c, self.c.now.home
        ready = any(not c.losses.fencing(worker) for worker in self._ready)
        self.broken &= home != "servers"  # which have the one that counts
        if home == "servers" or not (ready or self.broken):
            return
        self.broken = False
        if home == "workers":  # for a replay; of replicas there is none
            if c.started:
                c.log_checksums(c.inspect("server", what=c.switcher.what))
            c.log.info(event_log.MOVED, {"step": c.step})
        mover = c.switcher.mover
        mover.move("servers", home)
        self.admit(None, "servers")
        while not mover.move(home, "servers"):  # somebody died meanwhile: once more, without it
            pass
        c.losses.tell_workers()

    def admit(self, begun: BeginPhase | None, home: str | None = None) -> None:
        """Let successors in that are ready. `begun`: the phase at hand, of which they do not know; `home`: who holds
        the dense part."""
        for worker in sorted(self._ready):
            if not self.c.losses.fencing(worker):
                self._ready.discard(worker)
                self._admit(worker, begun, home or self.c.now.home)

    def _admit(self, worker: int, begun: BeginPhase | None, home: str) -> None:
        c = self.c
        channel = c.members.admit(worker)
        c.losses.returned(worker)
        c.journal.came(worker, channel.peer.epoch)
        channel.send(MoveDense(home, -1, NO_TURN))
        if begun is not None:
            channel.send(begun)
        if c._training is not None:
            c._training.joined(worker)
        self.times.loaded(f"W{worker}")
        c.journal.note()
        c._event("joined", {"process": f"W{worker}", "step": c._now_step})
        for _ in range(self._takes.pop(worker, 0)):
            c._take(worker)

    def _log(self, number: int, failed: Failed) -> None:
        since = failed.at - self.c.record.began
        self.c.log.info(event_log.FAILURE, {"number": number, "at_s": since, **failed.timed()})

    def told(self, inspected: Mapping[str, Inspected]) -> dict[str, Any]:
        """What result.json says of failures, and of messages where a fault plan was at work on them."""
        counts: Counter[str] = Counter(getattr(self.c.hub, "counts", None))
        for node in inspected.values():
            counts.update(node.counters)
        fates = {name: counts[name] for name in FATES if counts[name]}
        messages = {"messages": fates} if fates else {}
        return {"fenced_frames": counts["fenced"], "recovery": self.times.told(), **messages}

    def dismiss(self) -> None:
        """The run is over: whoever was to join need not."""
        for channel in self.c.members.joining.values():
            channel.send(Stop("done"))
