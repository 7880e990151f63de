"""The fault plan's kills and hangs on virtual processes: a worker disappears, or stands still, at its moment.

What a killed worker had sent arrives; what it was computing never does. A worker in its place is ready after
`cost.restart_us`. Nothing here costs anything while nobody fails.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gbactl.errors import ClusterError
from gbactl.simulation.coordinator_failures import Outages
from gbactl.simulation.worker import VirtualWorker
from gbactl.wire.messages import Event, Hello, Ready

if TYPE_CHECKING:
    from gbactl.simulation.cluster import VirtualCluster


class Failing:
    """Listens to the coordinator as a launcher does."""

    def __init__(self, cluster: VirtualCluster) -> None:
        self.cluster = cluster
        self.outages = Outages(cluster)
        self._epochs: Counter[int] = Counter()
        self._over = False

    def heard(self, event: Event) -> None:
        """Act on what concerns who dies or is to be replaced."""
        self.cluster.comebacks.heard(event)
        if event.name == "inject":
            self._inject(event.fields)
        elif event.name == "lost":
            self._lost(int(event.fields["process"][1:]), event.fields)
        elif event.name == "result":
            self._over = True

    def _lost(self, index: int, fields: dict[str, Any]) -> None:
        worker = self.cluster.workers[index]
        if fields["shared"]:
            worker.die()  # as the launcher kills one that hangs: it could write into what others share
        self.cluster.sides.left(index)
        if fields["replaced"]:
            self.cluster.events.after(self.cluster.cost.restart, self._succeed, index)

    def _inject(self, fields: dict[str, Any]) -> None:
        process, seconds = fields["process"], fields["seconds"]
        if process == "C":
            self.outages.inject(fields["kind"], seconds)
            return
        if process[0] == "S":
            self._server(int(process[1:]), fields["kind"], seconds)
            return
        worker = self.cluster.workers[int(process[1:])]
        if fields["kind"] == "kill":
            worker.die()
            return
        worker.freeze()
        if seconds is not None:
            self.cluster.events.after(seconds, worker.wake)

    def _server(self, shard: int, kind: str, seconds: float | None) -> None:
        """A server disappears, or stands still: that counts as its death when it lasts too long."""
        cluster, patience = self.cluster, self.cluster.cfg.cluster.hang_seconds
        if not cluster.coordinator.cuts.on:
            why = f"The fault plan hit S{shard} ({kind})"
            raise ClusterError(f"{why}: the run cannot go on without it; type checkpoint=cpr or full.")
        if kind == "kill":
            self.outages.server_lost = (shard, cluster.events.now)
            cluster.comebacks.lost(shard)
            return
        if seconds is not None and seconds <= patience:
            cluster.events.stall(seconds)
            return
        cluster.events.stall(patience)
        cluster.comebacks.spent.rescheduling += patience
        cluster.comebacks.lost(shard)

    def _succeed(self, index: int) -> None:
        """Another worker in the place of one that is gone."""
        if self._over:
            return
        self._epochs[index] += 1
        cluster = self.cluster
        host, shared = cluster.hosts.workers[index], cluster.workers[index].shared
        worker = VirtualWorker(index, host, shared, self._epochs[index])
        cluster.wire(worker)
        cluster.workers[index] = worker
        worker.coordinator.send(Hello("worker", index, "", 0))
        worker.coordinator.send(Ready("worker", index))
        worker.start(cluster.ahead)
