"""A coordinator that is lost in virtual time: until another one is ready in its place, whatever is sent to it waits.

Another one would hold what the journal says, which is what this one holds, so the same objects go on; a checkpoint
under way will not be, as in coordinator/failover.py. Workers and servers do meanwhile what they have been given. Not
modelled: the messages by which nodes tell what they have, and that an evaluation begins anew. Costs nothing while no
coordinator fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gbactl.errors import ClusterError

if TYPE_CHECKING:
    from gbactl.simulation.cluster import VirtualCluster


class Outages:
    """Part of a virtual cluster. `server_lost`: the last one that was killed, and when."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.server_lost = (-1, -1.0)

    def inject(self, kind: str, seconds: float | None) -> None:
        """It disappears, or stands still: that counts as its death when it lasts too long.

        Raises ClusterError where the run ends with it."""
        cluster, cfg = self.cluster, self.cluster.cfg.cluster
        if cluster.hub.absent:
            return
        replaced = cfg.lost_coordinator == "replace"
        if kind == "hang" and seconds is not None and (not replaced or seconds <= cfg.hang_seconds):
            cluster.hub.leave()
            cluster.events.after(seconds, cluster.hub.come_back)
            return
        if not replaced:
            fate = "was killed by SIGKILL" if kind == "kill" else "stands still for ever"
            raise ClusterError(f"C {fate}; type cluster.lost_coordinator=replace and another one goes on.")
        self._check_servers()
        cluster.hub.leave()
        cluster.events.after(cluster.cost.local_latency if kind == "kill" else cfg.hang_seconds, self._missed)

    def _check_servers(self) -> None:
        """Another coordinator needs everything that the servers have: see Revival.gather."""
        shard, when = self.server_lost
        if when == self.cluster.events.now:
            raise ClusterError(f"S{shard} did not come back when another coordinator took over.")

    def _missed(self) -> None:
        """The launcher starts another one, which waits for workers as long as one may say nothing."""
        cluster, seconds = self.cluster, self.cluster.cost.restart
        if any(cluster.workers[index].dead for index in cluster.coordinator.context.members.of("worker")):
            seconds += cluster.cfg.cluster.hang_seconds
        cluster.events.after(seconds, self._back, cluster.events.clock)

    def _back(self, missed: float) -> None:
        """It goes on."""
        c = self.cluster.coordinator
        c.core.checkpoints.taken_over()
        if c.core.switch.auto is not None and c.context.training is not None:
            c.core.switch.auto.begin(c.context.current.mode.name, c.context.training.policy)
        c.core.took_over("death", missed, missed)
        self.cluster.hub.come_back()
