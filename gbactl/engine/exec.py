"""Engine of `cluster=exec`: real processes on hosts that a shell command reaches (kubectl, docker exec, nsenter)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from gbactl.config.engine_interface import EngineOptions
from gbactl.config.groups import ClusterConfig
from gbactl.engine.hosts import HostsEngine
from gbactl.errors import require

HOSTS = "GBACTL_HOSTS"  # POD:SLOTS of each pod, with commas between them, as a manifest can set it
KUBECTL = "kubectl exec -i {host} -- {agent}"


@dataclass(frozen=True)
class ExecOptions(EngineOptions):
    """Options with the command `exec`: `{host}` stands for a host's name, `{agent}` for the agent's start command."""

    exec: str = KUBECTL


class ExecEngine(HostsEngine):
    """Engine whose agents are started by the user's command, once for each host of cluster.hosts.

    Where none are given, the hosts are those of the environment variable GBACTL_HOSTS."""

    Options: ClassVar[type[EngineOptions]] = ExecOptions
    replaces_hosts: ClassVar[bool] = True  # a StatefulSet gives a new pod the name of the one that was lost
    not_resumed: ClassVar[tuple[str, ...]] = ("bind",)  # the next launcher's pod has another address
    signs: ClassVar[tuple[str, ...]] = ("KUBERNETES_SERVICE_HOST", HOSTS)
    surroundings: ClassVar[str] = f"a pod with {HOSTS}"

    def hosts(self) -> list[str]:
        return os.environ[HOSTS].split(",") if os.environ.get(HOSTS) else []

    def template(self, cluster: ClusterConfig) -> str:
        """Return the command with its two placeholders."""
        options = self.options(cluster)
        assert isinstance(options, ExecOptions)
        return options.exec

    def agent(self, cluster: ClusterConfig, host: str) -> str:
        from gbactl.engine.agent_connection import agent_command

        return self.template(cluster).replace("{host}", host).replace("{agent}", agent_command(cluster.python))

    def check(self, cluster: ClusterConfig, workers: int) -> None:
        super().check(cluster, workers)
        lacks = [word for word in ("{host}", "{agent}") if word not in self.template(cluster)]
        require(not lacks, f"cluster.exec lacks {' and '.join(lacks)}; type for instance cluster.exec='{KUBECTL}'.")


ENGINE = ExecEngine()
