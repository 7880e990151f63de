"""Engine of `cluster=slurm`: real processes on the nodes of the Slurm allocation in which gbactl runs."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from gbactl.config.groups import ClusterConfig
from gbactl.engine.host_placement import Host
from gbactl.engine.hosts import HostsEngine
from gbactl.errors import ConfigError

# -u: without it srun keeps output until a newline. --overlap: agents, and steps of others, share the nodes' cores
SRUN = "srun -u --overlap --nodes=1 --ntasks=1"
HOW = "type salloc -N 2 gbactl train cluster=slurm ..., or put that line into a script for sbatch"


def counts(text: str) -> Iterator[int]:
    """Expand Slurm's list of a number for each node, such as "4(x2),1". Raises ValueError for other texts."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"{text!r} is no list of counts")
        yield from itertools.repeat(int(match[1]), int(match[2] or 1))


def allocation(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the allocation's nodes. A node's slots are its tasks where these were asked for, else its CPUs.

    Raises ConfigError outside an allocation."""
    if "SLURM_JOB_NODELIST" not in environment:
        raise ConfigError(f"cluster=slurm works in an allocation, and this is none; {HOW}.")
    listed = ["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]]
    try:
        names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"cluster=slurm needs Slurm's commands on the PATH: scontrol failed ({error}).") from error
    by_tasks = "SLURM_NTASKS" in environment
    key = "SLURM_TASKS_PER_NODE" if by_tasks else "SLURM_JOB_CPUS_PER_NODE"
    try:
        return tuple(Host(name, each) for name, each in zip(names, counts(environment[key]), strict=True))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"Slurm's {key} does not fit its nodes; type cluster.hosts='[NODE:SLOTS,...]'.") from error


class SlurmEngine(HostsEngine):
    """Engine whose agents are started by srun, one a node. cluster.hosts, where given, chooses among the nodes."""

    def defaults(self, cluster: Mapping[str, Any]) -> dict[str, Any]:
        """Return the nodes of the allocation where no hosts are given, and the number of workers."""
        known = {} if cluster.get("hosts") else {"hosts": [f"{h.name}:{h.slots}" for h in allocation(os.environ)]}
        return {**known, **super().defaults({**cluster, **known})}

    def agent(self, cluster: ClusterConfig, host: str) -> str:
        from gbactl.engine.agent_connection import agent_command

        return f"{SRUN} --nodelist={quote(host)} {agent_command(cluster.python)}"


ENGINE = SlurmEngine()
