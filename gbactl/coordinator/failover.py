"""A coordinator in the place of one that was killed: it brings the run to where the log of the other one ends.

What any other process can know of the dead coordinator's decisions is in its log (see journal.py), so the policy is
driven to the log's end again. Then servers tell what they have and get the orders that they miss; what waits there
and was never announced is announced now. Workers tell what they were granted and get what is on its way no more; who
has less than it asked for waits for a batch. Nothing is trained twice and nothing is lost; an evaluation begins anew,
and a checkpoint under way will not be. Costs a message to and from every node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.ranges import Range
from gbactl.config import mode_values
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, InfoRecord
from gbactl.coordinator.handout import Training
from gbactl.coordinator.journal import EVALUATE, OVER, TRAIN, Found
from gbactl.coordinator.phase import Apply, Command, HandOut
from gbactl.coordinator.phase_log import LoggedPhase
from gbactl.coordinator.position import Position
from gbactl.coordinator.recovery_times import Failed
from gbactl.coordinator.worker_recovery import NO_TURN
from gbactl.errors import ClusterError, PeerGoneError, WireError
from gbactl.policies import Grant
from gbactl.wire.auth import Peer
from gbactl.wire.channel import NO_BYTES, Channel
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.messages import (
    Abandon,
    Absent,
    BeginPhase,
    Hello,
    Holding,
    MoveDense,
    PartsLost,
    Revive,
    RingBroken,
    Staged,
    Standing,
    Take,
)

if TYPE_CHECKING:
    from gbactl.coordinator.core import Coordinator

log = logging.getLogger(__name__)
MOST_JOINS = 4  # more than a worker may have at once


class Revival:
    """Part of the coordinator until everybody goes on. `found`: what the one before left."""

    def __init__(self, coordinator: Coordinator, found: Found) -> None:
        self.c, self.found = coordinator, found
        notes = found.notes
        self.epochs: dict[int, int] = {worker: epoch for worker, epoch in notes["epochs"]}
        self.gone: list[int] = notes["gone"]
        self.known = set(range(coordinator.cfg.processes)) - set(self.gone)
        self.servers: dict[int, int] = {shard: epoch for shard, epoch in notes["servers"]}
        infos = [record for record in found.records if isinstance(record, InfoRecord)]
        phases = [record.fields for record in infos if record.kind == event_log.PHASE]
        self.number = found.stood["phase"] + len(phases)
        self.begun = BeginPhase(**phases[-1]) if phases and found.stood["stage"] == TRAIN else None
        self.told = [record.fields for record in infos if record.kind == event_log.SERVER]
        self.failures = [record.fields for record in infos if record.kind == event_log.FAILURE]
        self.announced = any(isinstance(record, AnnounceRecord) for record in found.records)
        self._standing: dict[int, Standing] = {}
        self._holding: dict[int, Holding] = {}
        self._staged: list[tuple[Channel, Staged]] = []
        self._sums: list[tuple[Channel, PartsLost | RingBroken]] = []
        self.handlers: dict[type[Any], Callable[[Channel, Any, Frame], None]] = {
            Standing: self._on_standing, Holding: self._on_holding,
        }  # fmt: skip

    # -- everybody comes back -----------------------------------------------------------------------

    def gather(self) -> None:
        """Wait until servers and launcher are there, and workers as long as one may say nothing.

        Raises ClusterError that names the servers that are not, or that were lost just before."""
        c, cluster = self.c, self.c.cfg.cluster
        servers = set(range(cluster.servers))
        c.returns.restore(self.told)
        c.members.knows(self.known)

        def there() -> bool:
            return servers <= set(self._standing) and c.launcher is not None

        if not c._pump(there, c.hub.now() + cluster.start_timeout):
            missing = ", ".join(f"S{shard}" for shard in sorted(servers - set(self._standing))) or "The launcher"
            raise ClusterError(f"{missing} did not come back when another coordinator took over.")
        c._pump(lambda: self.known <= set(self._holding), c.hub.now() + cluster.hang_seconds)
        c._gathered = c.members.settled = True

    def hello(self, channel: Channel, hello: Hello) -> None:
        """A node has come back. Raises WireError for one that the journal does not know."""
        epoch = self.epochs.get(hello.number, 0)
        if hello.role == "worker" and (hello.number not in self.known or channel.peer.epoch != epoch):
            raise WireError(f"{channel.peer} is not who was there before.")
        if hello.role == "server" and channel.peer.epoch != self.servers.get(hello.number, 0):
            raise WireError(f"{channel.peer} is not who served there before.")
        self.c.members.hello(channel, hello)
        self.c.members.ready.add((hello.role, hello.number))
        channel.send(Revive(self.found.epoch))

    def lost(self, channel: Channel) -> bool:
        """Whether a connection may break now: who had it may come again."""
        if self.c.members.settled:
            return False
        if self.c.members.forget(channel):
            answers: dict[int, Any] = self._standing if channel.peer.role == "server" else self._holding
            answers.pop(channel.peer.index, None)
        return True

    def keeps(self, channel: Channel, message: Any) -> bool:
        """Whether a message is not for now: what was said before the answer to Revive is in that answer."""
        if isinstance(message, Staged):
            if message.shard in self._standing:
                self._staged.append((channel, message))
            return True
        if isinstance(message, PartsLost | RingBroken):
            self._sums.append((channel, message))
            return True
        return isinstance(message, Take) and message.worker not in self._holding

    @property
    def phase_began(self) -> float:
        """When, in seconds of the run."""
        stood = self.found.stood
        return float(stood["at"]) - float(stood["began"])

    def _on_standing(self, channel: Channel, message: Standing, _: Frame) -> None:
        self.c.members.authentic(channel, "server", message.shard)
        if message.epoch == self.found.epoch:  # else it is what one asked that is gone, too
            self._standing[message.shard] = message

    def _on_holding(self, channel: Channel, message: Holding, _: Frame) -> None:
        self.c.members.authentic(channel, "worker", message.worker)
        if message.epoch == self.found.epoch:
            self._holding[message.worker] = message

    # -- where the run stood ------------------------------------------------------------------------

    def restore(self) -> None:
        """Put the coordinator where the one before was when nothing was in flight."""
        c, stood, notes = self.c, self.found.stood, self.found.notes
        position = Position(stood["position"])
        c.cuts.results.clear()
        position.restore(c.record, c.cuts.stopping, c.cuts.results)
        c.record.go_on(c.hub.now() - stood["began"])
        c.step, c._phase_number, c.started = position.step, self.number, True
        if stood["position"]["mode"] != mode_values(c.now):
            c.now = c.cfg.in_mode(stood["position"]["mode"])
        c.switcher.restore(stood["round"], position.switches, stood["switch"], self.announced)
        c.journal.epochs = dict(self.epochs)
        c.recovery.restore(notes["struck"], notes["broken"])
        c.record.statistics.restore_acted(notes["acted"])
        times = c.recovery.times
        times.all = [Failed(**failed) for failed in notes["failed"]]
        times.heard(self.failures)
        times.injuries = {process: (kind, at) for process, (kind, at) in notes["injured"]}
        c.cuts.restore(notes["cuts"])
        c.lost_parts.restore(notes["dense_lost"])
        c.trainers.restore(stood["replicas"])
        self._place(stood)
        if self.begun is None:
            self._go_on(None, {})

    def _place(self, stood: dict[str, Any]) -> None:
        """What of the rounds is done."""
        if stood["stage"] == OVER:
            self.c.over = True
        rest: tuple[Range, ...] = tuple((int(low), int(high)) for low, high in stood["rest"])
        inside = bool(stood["inside"]) or stood["stage"] == EVALUATE
        self.c.resumed[stood["round"]] = (() if stood["stage"] == EVALUATE else rest, inside, True)

    # -- within a phase -----------------------------------------------------------------------------

    def go_on(self, training: Training) -> None:
        """Bring a phase, whose policy is new, to where the log ends, and everybody with it.

        Raises ClusterError or DivergenceError where the log is not of this run."""
        begun, policy = self.begun, training.policy
        assert begun is not None
        if (policy.phase.samples, policy.step, training.number) != (begun.samples, begun.first_step, begun.number):
            raise ClusterError(f"The event log has a phase {begun.number} that this run cannot have had.")
        logged = LoggedPhase(training.phase)
        commands = self._fed(logged)
        clock = training.clock
        if any(isinstance(command, HandOut) for command in commands):
            clock.first, clock.last = self.found.stood["at"], self.c.hub.now()
        if self.announced:  # the last time by which they can have been: the log has no times
            clock.gradients = (self.found.missed, self.found.missed)
        for shard, standing in sorted(self._standing.items()):
            self._tell_server(training, self.c.members.of("server")[shard], standing, commands)
        training.take_up(logged.due, set(self._holding))
        joins = [each for each in commands if isinstance(each, HandOut) and not each.grant.samples]
        missing = {worker: self._missing(training, each, joins) for worker, each in self._holding.items()}
        self._go_on(training, missing)

    def _fed(self, logged: LoggedPhase) -> list[Command]:
        """Apply the log to a phase. Returns the commands that it confirms."""
        commands: list[Command] = []
        slices = logged.phase.slices
        with nullcontext(list[Any]()) if slices is None else slices.held() as counted:
            for record in self.found.records:
                if isinstance(record, InfoRecord) and record.kind == event_log.NOTE:
                    counted.clear()  # a note tells of all row updates before it
                commands += logged.feed(record)
        return commands

    def _tell_server(
        self, training: Training, channel: Channel, standing: Standing, commands: Sequence[Command]
    ) -> None:
        """The phase and the orders that a server has not heard of."""
        assert self.begun is not None
        if standing.phase != training.number:
            channel.send(self._begun_for_servers)
        for command in commands:
            if isinstance(command, Apply) and command.step.step >= standing.version:
                channel.send(training.told(command))

    @property
    def _begun_for_servers(self) -> BeginPhase:
        """See Coordinator._begin."""
        assert self.begun is not None
        return self.begun._replace(served_dense=self.c.now.home != "workers")

    def _missing(self, training: Training, holding: Holding, joins: Sequence[HandOut]) -> list[Grant]:
        """What a worker was granted and never heard of; of hand-outs of no samples, the last few."""
        heard = set(_groups(holding.granted, 2))
        leases = [grant for owner, grant in training.policy.leases.values() if owner == holding.worker]
        joined = [each.grant for each in joins if each.worker == holding.worker][-MOST_JOINS:]
        return [grant for grant in (*leases, *joined) if (self.number, grant.batch) not in heard]

    # -- from here on -------------------------------------------------------------------------------

    def _go_on(self, training: Training | None, missing: dict[int, list[Grant]]) -> None:
        c = self.c
        waits = {worker: self._waits(training, each, missing.get(worker, [])) for worker, each in self._holding.items()}
        c.revival = None
        self._lose(training)
        if training is not None:
            c.recovery.begun, c.returns.begun = self.begun, self._begun_for_servers
            for channel, staged in self._staged:
                c._on_staged(channel, staged, Frame(CLOSED, b"", NO_BYTES))
            c._barrier(training.policy.step)
        for channel in c.members.of("server").values():
            if channel.peer.epoch:
                c.returns.tell_workers(channel)
        for worker, holding in sorted(self._holding.items()):
            if worker in c.members.of("worker"):
                if training is not None:
                    self._tell_worker(training, holding, missing[worker])
                for _ in range(waits[worker]):
                    c._take(worker)
        if training is not None:
            training.tell()
        c.switcher.settle(self.found.notes["moves"])
        c.losses.tell_workers()
        for channel, told in self._sums:
            c.lost_parts.handlers[type(told)](channel, told, Frame(CLOSED, b"", NO_BYTES))
        self._back()

    def _tell_worker(self, training: Training, holding: Holding, missing: list[Grant]) -> None:
        """Where the dense part is, the phase and the batches, as far as a worker has not heard of them."""
        if self.c.now.home == "servers" and self.epochs.get(holding.worker):
            self.c.members.of("worker")[holding.worker].send(MoveDense("servers", -1, NO_TURN))
        if holding.phase != training.number:
            self.c.members.of("worker")[holding.worker].send(self.begun)
        for grant in missing:
            training.hand(holding.worker, grant, training.phase.lr_scale_of(grant))

    def _waits(self, training: Training | None, holding: Holding, missing: list[Grant]) -> int:
        """For how many batches a worker waits: for as many as it may have, less those that it has."""
        policy, worker = None if training is None else training.policy, holding.worker
        mine = set() if policy is None else {batch for batch, (owner, _) in policy.leases.items() if owner == worker}
        has = len(mine) + sum(grant.samples == 0 for grant in missing)
        for phase, batch, trains in _groups(holding.held, 3):
            if phase == self.number and batch in mine:
                continue
            has += 1
            joins = phase == self.number and policy is not None and batch >= policy.phase.batches
            if trains and not joins:  # it was given up at a switch
                self.c.switcher.late.add(phase, [(worker, batch, set())])
                self.c.members.of("worker")[worker].send(Abandon(phase))
        may_have = 1 + max(each.mode.prefetch for each in self.c.cfg.possible) + self.c.trainers.more(worker)
        if has > may_have:
            self.c.trainers.too_many(worker, has - may_have)
        return max(0, may_have - has)

    def _lose(self, training: Training | None) -> None:
        """Who was gone before is gone, and who has not come back is, too."""
        c = self.c
        for worker in self.gone:
            batches = [] if training is None else training.leaving(worker)
            if batches:
                c.losses.fence(worker, self.number, batches, self.epochs.get(worker, 0))
            else:
                c.losses.gone.append(worker)
            c.members.tell("worker", Absent(worker))
            c._tell_lost(Peer("worker", worker, self.epochs.get(worker, 0)), len(batches))
        for worker in sorted(self.known - set(self._holding)):
            peer, silent = Peer("worker", worker, self.epochs.get(worker, 0)), c.members.of("worker").get(worker)
            if silent is not None:
                c.members.forget(silent)
            c.recovery.lost(peer)
            if not c._can_do_without(peer):
                raise PeerGoneError(f"{peer} is gone.")
            c._give_up(peer)
        if training is not None:
            self._let_in(training)

    def _let_in(self, training: Training) -> None:
        """Workers that had been let in, and no more."""
        policy, members = training.policy, self.c.members.of("worker")
        for worker in sorted(set(self._holding) & set(members) & set(policy.phase.workers) - policy.live):
            training.joined(worker)

    def _back(self) -> None:
        """The run goes on."""
        c = self.c
        log.info("coordinator %d goes on at step %d", self.found.epoch, c._now_step)
        c.recovery.reborn(self.found.failure, self.found.missed, self.found.sign)


def _groups(numbers: list[int], size: int) -> list[tuple[int, ...]]:
    """Told one after the other, `size` belong together."""
    return list(zip(*(numbers[n::size] for n in range(size)), strict=True))
