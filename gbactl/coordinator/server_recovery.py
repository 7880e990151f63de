"""Servers that are lost, and those that take their place with what the last checkpoint had.

Partial recovery: that server alone goes back; the others and the workers keep what they have and wait for it. Full:
once it is there and nothing is in flight, everybody goes back to the last complete checkpoint, and what was trained
since is trained again. Between its loss and its return no gradient can be announced, since every one has a slice on it.
What follows from a loss, in which order, is in core.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gbactl.coordinator.context import RunContext
from gbactl.coordinator.heartbeat import Heartbeat
from gbactl.errors import ClusterError
from gbactl.wire.channel import Channel
from gbactl.wire.messages import BeginPhase, Pong, Relocated, Staged


class ServerRecovery:
    """`full`: everybody goes back."""

    def __init__(self, run: RunContext, full: bool) -> None:
        self.run, self.full = run, full
        self.begun: BeginPhase | None = None  # what servers were told last
        self._unproven: set[int] = set()  # back, and not yet of use
        self._heartbeat = self._fresh_heartbeat(False)

    def _fresh_heartbeat(self, reading: bool) -> Heartbeat:
        c = self.run.cfg.cluster
        return Heartbeat(max(c.hang_seconds, c.start_timeout) if reading else c.hang_seconds, self.run.hub.now)

    def asking(self, reading: bool) -> None:
        """Servers are asked something, or have answered; `reading` all that they have takes longer than anything."""
        self._heartbeat = self._fresh_heartbeat(reading)

    # -- who is gone --------------------------------------------------------------------------------

    def look(self) -> list[int]:
        """Stop a phase that everybody goes back from. Returns the shards whose servers have been silent for too long.

        Raises ClusterError where nobody comes in the place of one that is gone."""
        run = self.run
        if not run.members.settled or run.stopped or not run.cfg.place.real:
            return []
        silent = self._heartbeat.silent(run.members.of("server")) if self._heartbeat.due else []
        self._check_returns()
        if run.all_go_back and run.training is not None and run.training.stopped is None:
            run.training.stop()
        return silent

    def _check_returns(self) -> None:
        limit = self.run.cfg.cluster.start_timeout
        for shard, since in self.run.servers_gone.items():
            if self.run.hub.now() - since > limit:
                raise ClusterError(
                    f"S{shard} did not come back within {limit:.0f} s; look into its logs, or type "
                    f"cluster.start_timeout={2 * limit:.0f}."
                )

    def answered(self, message: Pong) -> None:
        """Note that a server is alive."""
        self._heartbeat.answered(message)

    def hang_error(self, shard: int) -> ClusterError:
        """The error of a server that does not answer and that nobody can replace."""
        patience = self.run.cfg.cluster.hang_seconds
        return ClusterError(
            f"S{shard} has not answered for {patience:g} s (is it stopped?), and no other can take its place "
            f"without checkpoints; type checkpoint=cpr, or cluster.hang_seconds={2 * patience:g} if it was only "
            "slow."
        )

    @property
    def replaces(self) -> bool:
        """Whether a server that is lost now gets a successor."""
        return self.run.cfg.server_returns and self.run.members.settled

    def lost(self, shard: int) -> None:
        """A server is gone and will have a successor."""
        self.run.server_losses += 1
        self.run.servers_gone[shard] = self.run.hub.now()
        self._unproven.discard(shard)

    def restore(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Go on where a dead coordinator was; `told` of servers in its log since nothing was in flight.

        Raises ClusterError where one had not come back, or everybody was to go back: who has what, no log tells."""
        back = {each["shard"] for each in told if each["state"] == "back"}
        lost = {each["shard"] for each in told if each["state"] == "lost"}
        if told and (self.full or lost - back or told[-1]["state"] == "lost"):
            which = ", ".join(f"S{shard}" for shard in sorted(lost))
            raise ClusterError(f"{which} was lost, and then the coordinator, before all was well again; type resume=.")
        self.run.server_losses = sum(each["state"] == "lost" for each in told)

    # -- who comes ----------------------------------------------------------------------------------

    def back(self, shard: int) -> None:
        """Another server has what a checkpoint has."""
        del self.run.servers_gone[shard]
        if self.full:
            self.run.all_go_back = True
        else:
            self.of_use(shard)

    def of_use(self, shard: int) -> None:
        """Expect useful work from a server that has loaded what it needs."""
        self.run.failures.loaded(f"S{shard}")
        self._unproven.add(shard)

    def tell_workers(self, server: Channel, abandoned: Mapping[int, Sequence[tuple[int, int]]]) -> None:
        """Tell workers where a shard is served now, and which gradients must have a slice there: what they have leased,
        and (phase, batch) of what they have `abandoned`."""
        run, shard = self.run, server.peer.index
        address, incarnation = run.members.addresses[shard], server.peer.epoch
        for worker, channel in run.members.of("worker").items():
            pairs = list(abandoned.get(worker, ()))
            if run.training is not None:
                pairs += [(run.training.number, batch) for batch in run.training.owed(worker)]
            channel.send(Relocated(shard, address, incarnation, [number for pair in pairs for number in pair]))
        run.members.tell_joining(Relocated(shard, address, incarnation, []))

    def staged(self, message: Staged) -> None:
        """A shard has a gradient slice: the first one, where it was lost, shows that it is of use."""
        if message.rows >= 0 and message.shard in self._unproven:
            self._unproven.discard(message.shard)
            self.run.failures.useful(f"S{message.shard}")
