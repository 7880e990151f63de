"""How a run goes on without a server and with another one in its place, which has what the last checkpoint had.

Partial: that server alone goes back; the others and the workers keep what they have and wait for it. Full: once it is
there and nothing is in flight, everybody goes back to the last complete checkpoint, and what was trained since is
trained again. Between its loss and its return no gradient can be announced, since every one has a part on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.checkpoint.lost_work import Loss
from gbactl.checkpoint.restore import BEGINNING, chain_at
from gbactl.coordinator import event_log
from gbactl.coordinator.heartbeat import Heartbeat
from gbactl.coordinator.position import Position
from gbactl.errors import CheckpointError, ClusterError
from gbactl.wire.channel import Channel
from gbactl.wire.messages import Adopt, BeginPhase, Inspect, Loaded, Pong, Reload, Relocated, Staged

if TYPE_CHECKING:
    from gbactl.coordinator.core import Coordinator

log = logging.getLogger(__name__)


class GoBack(Exception):
    """Nothing is in flight, and everybody goes back to the last checkpoint."""


class Returns:
    """Part of the coordinator."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c, cfg = coordinator, coordinator.cfg
        self.on = cfg.server_returns
        self.losses = 0  # so far
        self.begun: BeginPhase | None = None  # what servers were told last
        self.fresh_at = BEGINNING - 1  # the step at which the optimizer's state began anew
        self._gone: dict[int, float] = {}  # shard -> when it was missed
        self._unproven: set[int] = set()  # back, and not yet of use
        self._asked: tuple[Any, Callable[[int], bool]] | None = None
        self._reloaded: set[int] = set()
        self._back = False
        self._heartbeat = self._fresh_heartbeat()

    def _fresh_heartbeat(self, reading: bool = False) -> Heartbeat:
        """`reading`: of servers that read all they have, which takes longer than anything else."""
        c = self.c.cfg.cluster
        return Heartbeat(max(c.hang_seconds, c.start_timeout) if reading else c.hang_seconds, self.c.hub.now)

    @property
    def full(self) -> bool:
        """Whether everybody goes back."""
        return self.c.cuts.estimate.recovery == "full"

    @property
    def complete(self) -> bool:
        """Whether every shard is served."""
        return not self._gone

    @property
    def sound(self) -> bool:
        """Whether what the servers have may be saved: every shard is served, and none waits for all to go back."""
        return not (self._gone or self._back)

    @contextmanager
    def asking(self, message: Any, answered: Callable[[int], bool]) -> Iterator[None]:
        """Tell every server, and inside, whoever takes the place of one whose shard has not answered."""
        self._asked = (message, answered)
        self._heartbeat = self._fresh_heartbeat(isinstance(message, Inspect | Reload))
        self.c.members.tell("server", message)
        try:
            yield
        finally:
            self._asked, self._heartbeat = None, self._fresh_heartbeat()

    def ask(self, message: Any, answered: Callable[[int], bool]) -> None:
        """Tell every server and wait until all shards have answered."""
        with self.asking(message, answered):
            self.c._pump(lambda: all(answered(shard) for shard in range(self.c.cfg.cluster.servers)))

    def restore(self, told: list[dict[str, Any]]) -> None:
        """Go on where a dead coordinator was; `told` of servers in its log since nothing was in flight.

        Raises ClusterError where one had not come back, or everybody was to go back: who has what, no log tells."""
        back = {each["shard"] for each in told if each["state"] == "back"}
        lost = {each["shard"] for each in told if each["state"] == "lost"}
        if told and (self.full or lost - back or told[-1]["state"] == "lost"):
            which = ", ".join(f"S{shard}" for shard in sorted(lost))
            raise ClusterError(f"{which} was lost, and then the coordinator, before all was well again; type resume=.")
        self.losses = sum(each["state"] == "lost" for each in told)

    # -- who is gone --------------------------------------------------------------------------------

    def look(self) -> None:
        """Between two messages: miss who is silent; give up where nobody comes."""
        c = self.c
        if not c.members.settled or c.stopped or not c.cfg.place.real:
            return
        if self._heartbeat.due:
            for shard in self._heartbeat.silent(c.members.of("server")):
                self._silent(shard)
        limit = c.cfg.cluster.start_timeout
        for shard, since in self._gone.items():
            if c.hub.now() - since > limit:
                raise ClusterError(
                    f"S{shard} did not come back within {limit:.0f} s; look into its logs, or type "
                    f"cluster.start_timeout={2 * limit:.0f}."
                )
        training = c._training
        if self._back and training is not None and training.stopped is None:
            training.stop()

    def answered(self, channel: Channel, message: Pong) -> None:
        """A server is alive."""
        self.c.members.authentic(channel, "server", message.worker)
        self._heartbeat.answered(message)

    def _silent(self, shard: int) -> None:
        """A server that does not answer is treated as if it had died; what it says later is refused."""
        patience = self.c.cfg.cluster.hang_seconds
        channel = self.c.members.of("server")[shard]
        log.warning("S%d has not answered for %.1f s", shard, patience)
        self.c.members.forget(channel)
        channel.close()
        if not self.lost(channel, "hang"):
            raise ClusterError(
                f"S{shard} has not answered for {patience:g} s (is it stopped?), and no other can take its place "
                f"without checkpoints; type checkpoint=cpr, or cluster.hang_seconds={2 * patience:g} if it was only "
                "slow."
            )

    def lost(self, channel: Channel, failure: str = "death") -> bool:
        """A server that belonged to the run is missed. Whether it comes back."""
        c, shard = self.c, channel.peer.index
        c.recovery.times.detected(f"S{shard}", failure)
        if not (self.on and c.members.settled):
            return False
        self.losses += 1
        self._gone[shard] = c.hub.now()
        self._unproven.discard(shard)
        training = c._training
        if training is not None:
            training.server_gone(shard)
        self._count_lost(shard)
        c.switcher.disturbed()
        c.log.info(event_log.SERVER, {"shard": shard, "state": "lost", "step": c._now_step})
        told = {"step": c._now_step, "batches": 0, "shared": False, "recovery": c.cuts.estimate.recovery}
        c._event("lost", {"process": f"S{shard}", "replaced": True, **told})
        return True

    def _count_lost(self, shard: int) -> None:
        c = self.c
        c.cuts.server_gone(shard)
        finished = c.record.ledger.finished + (0 if c._training is None else c._training.policy.ledger.finished)
        if not self.full:
            self._cost(shard, c.cuts.stakes.lost(shard, finished))

    def _cost(self, shard: int, loss: Loss) -> None:
        found = self.c.recovery.times.last(f"S{shard}")
        if found is not None:
            found.add(loss)

    def missed(self, shard: int, samples: int, rows: int) -> None:
        """A gradient's part on a shard was in flight when its server was lost, and is not applied."""
        if not self.full:
            self._cost(shard, self.c.cuts.stakes.missed(shard, samples, rows))

    # -- who comes ----------------------------------------------------------------------------------

    def joiner_lost(self, channel: Channel) -> bool:
        """Whether a connection that is lost was that of a server that had not come yet; the launcher starts another."""
        return self.c.members.returner_lost(channel)

    def loaded(self, channel: Channel, message: Loaded) -> None:
        """A server has what a checkpoint has. Raises WireError for who is none."""
        members, shard = self.c.members, message.shard
        if not members.comes(channel, shard):
            members.authentic(channel, "server", shard)
            self._reloaded.add(shard)
            return
        c = self.c
        members.admit_server(shard)
        if c.stopped:  # the run is over, and its log closed: it is dismissed with the others
            return
        del self._gone[shard]
        self._bring_up(channel, message.step)
        if self.full:
            self._back = True
        else:
            self._cost(shard, c.cuts.stakes.older(shard, message.step))
            self._of_use(shard)
        c.journal.note()
        c.log.info(event_log.SERVER, {"shard": shard, "state": "back", "step": c._now_step, "loaded": message.step})
        self.tell_workers(channel)
        c._event("joined", {"process": f"S{shard}", "step": c._now_step, "loaded": message.step})

    def _of_use(self, shard: int) -> None:
        self.c.recovery.times.loaded(f"S{shard}")
        self._unproven.add(shard)

    def _bring_up(self, channel: Channel, loaded: int) -> None:
        """What the others know: the phase, who is dead, how many steps there were, what is being asked."""
        c, training = self.c, self.c._training
        if self.begun is not None:
            channel.send(self.begun)
        c.losses.tell(channel)
        waiting = [] if training is None else training.server_back()
        channel.send(Adopt(c._now_step, waiting, loaded <= self.fresh_at))
        if self._asked is not None and not self._asked[1](channel.peer.index):
            channel.send(self._asked[0])

    def tell_workers(self, channel: Channel) -> None:
        """Where a shard is served now, and what must have a part there."""
        c, shard = self.c, channel.peer.index
        address, epoch = c.members.addresses[shard], channel.peer.epoch
        for worker, to in c.members.of("worker").items():
            pairs = c.switcher.late.of(worker)
            if c._training is not None:
                pairs += [(c._training.number, batch) for batch in c._training.owed(worker)]
            to.send(Relocated(shard, address, epoch, [number for pair in pairs for number in pair]))
        c.members.tell_joining(Relocated(shard, address, epoch, []))

    def staged(self, message: Staged) -> None:
        """A shard has a part of a gradient: the first one, where it was lost, shows that it is of use."""
        if message.rows >= 0 and message.shard in self._unproven:
            self._unproven.discard(message.shard)
            self.c.recovery.times.useful(f"S{message.shard}")

    # -- everybody goes back ------------------------------------------------------------------------

    def check(self) -> None:
        """Nothing is in flight: raise GoBack if everybody has to go back now."""
        if self._back or (self._gone and self.full):
            raise GoBack

    def rewind(self) -> None:
        """Everybody has the last complete checkpoint; the job is where it was then."""
        c = self.c
        c._pump(lambda: self.complete)
        c.cuts.settle("everybody goes back")
        path, position = self._newest()
        before, finished = c.step, c.record.ledger.finished
        self._reloaded.clear()
        self.ask(Reload(path), lambda shard: shard in self._reloaded)
        self._back = False
        c.members.tell("worker", Relocated(-1, "", 0, []))
        c.cuts.go_back(position)
        self._give_dense()
        again = finished - c.record.ledger.finished
        for failed in c.recovery.times.all:
            if failed.process.startswith("S") and failed.loaded is None:
                failed.samples_rolled_back, again = again, 0
                self._of_use(int(failed.process[1:]))
        c.log.info(event_log.SERVER, {"shard": -1, "state": "rewound", "step": before, "loaded": c.step})
        c._event("rewound", {"step": before, "to": c.step, "samples": finished - c.record.ledger.finished})

    def _newest(self) -> tuple[str, Position]:
        """Folder ("" for the beginning) and position of the newest complete checkpoint."""
        cuts, resume = self.c.cuts, self.c.cfg.resume
        try:
            chain = cuts.folder.newest(lambda why: log.warning("%s", why))
        except CheckpointError:
            if resume is None:
                return "", cuts.beginning
            chain = chain_at(Path(resume))
        return str(chain.folder / chain.last.name), Position(chain.last.position)

    def _give_dense(self) -> None:
        """Workers that hold the dense part take it from the servers."""
        c = self.c
        if c.now.home == "servers":
            return
        c.switcher.mover.fetch_again(c.now.home)
        c.losses.tell_workers()
