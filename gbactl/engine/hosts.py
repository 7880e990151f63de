"""Engine of `cluster=hosts`: real processes on several machines, over ssh; base of the engines on a scheduler."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from gbactl.config.engine_interface import EngineInterface
from gbactl.config.groups import ClusterConfig
from gbactl.engine.host_placement import hosts_of, place, slots
from gbactl.errors import require

if TYPE_CHECKING:
    from gbactl.engine.local_processes import LaunchContext


class HostsEngine(EngineInterface):
    """Engine that starts processes through agents on hosts; the coordinator runs beside the launcher.

    A subclass says what command starts an agent on a host (`agent`), and may know the hosts (`hosts`). The command's
    standard input and output are the agent's; when it ends, the host counts as lost."""

    one_host: ClassVar[bool] = False
    #: whether the command of a lost host, when it is started again, finds another machine in its place
    replaces_hosts: ClassVar[bool] = False

    def agent(self, cluster: ClusterConfig, host: str) -> str:
        """Return the command that starts the agent on a host, quoted as for a shell."""
        from gbactl.engine.agent_connection import command

        return command(host, cluster.ssh, cluster.python)

    def hosts(self) -> list[str]:
        """Return the hosts that the engine itself finds, as NAME:SLOTS; [] if none. Raises GbactlError."""
        return []

    def defaults(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Return values for unset keys: `hosts` as the engine finds them, and `workers` as the sum of their slots."""
        given = cluster.get("hosts") or self.hosts()
        listed = isinstance(given, list) and all(isinstance(host, str) for host in given)
        require(listed, "cluster.hosts has to be a list of NAME:SLOTS; type cluster.hosts='[a:4,b:4]'.")
        known = {} if cluster.get("hosts") else {"hosts": given}
        return known if cluster.get("workers") is not None else {**known, "workers": slots(hosts_of(given))}

    def warning(self, cluster: ClusterConfig) -> str:
        """Describe what a run may suffer from although it can start; "" if nothing is known."""
        return ""

    def check(self, cluster: ClusterConfig, workers: int) -> None:
        place(hosts_of(cluster.hosts), workers, cluster.servers, cluster.placement)
        require(bool(cluster.ssh.strip()), "cluster.ssh is the command that reaches a host; type cluster.ssh=ssh.")

    def threads(self, cluster: ClusterConfig, computing: int) -> int:
        """Return the configured number of threads, or 1 until the hosts have reported their cores."""
        return cluster.threads or 1

    def train(self, launch: LaunchContext) -> None:
        from gbactl.engine.remote_processes import RemoteRunProcesses

        if warning := self.warning(launch.cfg.cluster):
            launch.show.print_line(warning)
        start = functools.partial(self.agent, launch.cfg.cluster)
        launch.follow(RemoteRunProcesses(launch, start, self.replaces_hosts))


ENGINE = HostsEngine()
