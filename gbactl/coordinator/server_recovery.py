"""Recovery from server failures, by successors that load the last checkpoint.

Partial recovery: that server alone goes back; the others and the workers keep their state and wait for it. Full:
once it is there and nothing is in flight, all nodes go back to the last complete checkpoint, and what was trained
since is trained again. Between the failure and the successor no gradient can be announced, since every one has a slice
on that shard. core.py has the order of what follows from a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gbactl.coordinator.context import RunContext
from gbactl.coordinator.heartbeat import Heartbeat
from gbactl.errors import ClusterError
from gbactl.wire.channel import Channel
from gbactl.wire.messages import BeginPhase, Pong, ShardRelocated, Staged


class ServerRecovery:
    """Server failures and successors. `full`: all nodes go back."""

    def __init__(self, run: RunContext, full: bool) -> None:
        self.run, self.full = run, full
        self.begun: BeginPhase | None = None  # last phase announced to servers
        self._unproven: set[int] = set()  # successors that have not done useful work yet
        self._heartbeat = self._fresh_heartbeat(False)

    def _fresh_heartbeat(self, reading: bool) -> Heartbeat:
        c = self.run.cfg.cluster
        return Heartbeat(max(c.hang_seconds, c.start_timeout) if reading else c.hang_seconds, self.run.hub.now)

    def asking(self, reading: bool) -> None:
        """Reset the heartbeat when servers are asked something or have answered.

        `reading` all their data takes longest."""
        self._heartbeat = self._fresh_heartbeat(reading)

    # -- failures -----------------------------------------------------------------------------------

    def look(self) -> list[int]:
        """Stop a phase that is to be rolled back. Returns the shards whose servers have been silent for too long.

        Raises ClusterError where a failed server gets no successor in time."""
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
        """Record a server's answer."""
        self._heartbeat.answered(message)

    def hang_error(self, shard: int) -> ClusterError:
        """Error for a server that does not answer and that nobody can replace."""
        patience = self.run.cfg.cluster.hang_seconds
        return ClusterError(
            f"S{shard} has not answered for {patience:g} s (is it stopped?), and no other can take its place "
            f"without checkpoints; type checkpoint=cpr, or cluster.hang_seconds={2 * patience:g} if it was only "
            "slow."
        )

    @property
    def replaces(self) -> bool:
        """Whether a server that fails now gets a successor."""
        return self.run.cfg.server_returns and self.run.members.settled

    def lost(self, shard: int) -> None:
        """Record a server failure whose successor is expected."""
        self.run.server_losses += 1
        self.run.servers_gone[shard] = self.run.hub.now()
        self._unproven.discard(shard)

    def restore(self, told: Sequence[Mapping[str, Any]]) -> None:
        """Continue after a coordinator failover; `told`: the log's records about servers since nothing was in flight.

        Raises ClusterError where a server had no successor yet, or a rollback was pending: the log has not what each
        node has."""
        back = {each["shard"] for each in told if each["state"] == "back"}
        lost = {each["shard"] for each in told if each["state"] == "lost"}
        if told and (self.full or lost - back or told[-1]["state"] == "lost"):
            which = ", ".join(f"S{shard}" for shard in sorted(lost))
            raise ClusterError(f"{which} was lost, and then the coordinator, before all was well again; type resume=.")
        self.run.server_losses = sum(each["state"] == "lost" for each in told)

    # -- successors ---------------------------------------------------------------------------------

    def back(self, shard: int) -> None:
        """Record that a successor has loaded a checkpoint."""
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
        """Tell workers the new address of a shard, and which gradients must have a slice there.

        These are the batches that they have leased, and (phase, batch) of those that they have `abandoned`."""
        run, shard = self.run, server.peer.index
        address, incarnation = run.members.addresses[shard], server.peer.incarnation
        for worker, channel in run.members.of("worker").items():
            pairs = list(abandoned.get(worker, ()))
            if run.training is not None:
                pairs += [(run.training.number, batch) for batch in run.training.owed(worker)]
            channel.send(ShardRelocated(shard, address, incarnation, [number for pair in pairs for number in pair]))
        run.members.tell_joining(ShardRelocated(shard, address, incarnation, []))

    def staged(self, message: Staged) -> None:
        """Record a staged slice: the first one on a successor shows that it is useful."""
        if message.rows >= 0 and message.shard in self._unproven:
            self._unproven.discard(message.shard)
            self.run.failures.useful(f"S{message.shard}")
