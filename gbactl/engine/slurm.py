"""Engine of `cluster=slurm`: real processes on the nodes of the Slurm allocation in which gbactl runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote
from typing import Annotated, ClassVar

from gbactl.checked_dataclasses import Bounds, Processes
from gbactl.config.engine_interface import EngineOptions
from gbactl.config.groups import ClusterConfig
from gbactl.engine.host_placement import Host
from gbactl.engine.hosts import HostsEngine
from gbactl.errors import ConfigError, require

# -u: without it srun keeps output until a newline. --overlap: agents, and steps of others, share the nodes' cores;
# none is bound to one of them
SRUN = "srun -u --overlap --cpu-bind=none --nodes=1 --ntasks=1"
HOW = "type salloc -N 2 --no-kill gbactl train cluster=slurm ..., or gbactl train cluster=slurm ... --submit"
MORTAL = (
    "Warning: this allocation seems to be without --no-kill: Slurm ends it when it loses a node, before gbactl can "
    "replace the node's processes; type salloc --no-kill ..., or add the line #SBATCH --no-kill to the batch script."
)
OPTION = re.compile(r"[a-z]+(-[a-z]+)*(:[^\s\"'#]+)?")  # of sbatch: partition:long, exclusive
NO_KILL = re.compile(r"(^|\s)(-k|--no-kill)(?!=)(\s|$)")


def counts(text: str) -> Iterator[int]:
    """Expand Slurm's compressed list of numbers, one per node: "4(x2),1" to 4, 4, 1. Raises ValueError."""
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"{text!r} is no list of counts")
        yield from itertools.repeat(int(match[1]), int(match[2] or 1))


def run_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands. Raises ConfigError if it is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(
            f"Slurm's command {command[0]} cannot be run ({error.strerror}); type this where Slurm is installed."
        ) from error


def error_text(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of a command's error output, without the command's name and the full stop."""
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"exit code {done.returncode}").split("error: ")[-1].rstrip(".")


def node_list(environment: Mapping[str, str]) -> str:
    """Return the allocation's nodes as Slurm writes them: n[1-2].

    Raises ConfigError outside an allocation, and in a step of several tasks, each of which would train."""
    nodes = environment.get("SLURM_JOB_NODELIST", "")
    require(bool(nodes), f"cluster=slurm works in an allocation, and this is none; {HOW}.")
    tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
    require(tasks == "1", f"srun starts gbactl {tasks} times here, and each would train; type gbactl without srun.")
    return nodes


def allocation(environment: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the allocation's nodes. A node's slots are its tasks if tasks were asked for, else its CPUs.

    Raises ConfigError outside an allocation."""
    done = run_slurm("scontrol", "show", "hostnames", node_list(environment))
    require(
        not done.returncode, f"cluster=slurm finds no nodes: scontrol failed ({error_text(done)}); type scontrol ping."
    )
    by_tasks = "SLURM_NTASKS" in environment
    key = "SLURM_TASKS_PER_NODE" if by_tasks else "SLURM_JOB_CPUS_PER_NODE"
    try:
        return tuple(Host(name, each) for name, each in zip(done.stdout.split(), counts(environment[key]), strict=True))
    except (KeyError, ValueError) as error:
        raise ConfigError(f"Slurm's {key} does not fit its nodes; type cluster.hosts='[NODE:SLOTS,...]'.") from error


def outlives_nodes(environment: Mapping[str, str]) -> bool:
    """Return whether the allocation was requested with --no-kill, as far as this can be found out.

    Slurm shows that neither in a job's environment nor in its description. It is read from the variables of salloc and
    sbatch, from the command line of the salloc above this process, and from the batch script."""
    import psutil

    if {"SALLOC_NO_KILL", "SBATCH_NO_KILL"} & set(environment):
        return True
    asked = list[str]()
    with contextlib.suppress(psutil.Error):
        asked += [" ".join(each.cmdline()) for each in psutil.Process().parents() if each.name() == "salloc"]
    with contextlib.suppress(ConfigError):
        script = run_slurm("scontrol", "write", "batch_script", environment.get("SLURM_JOB_ID", ""), "-").stdout
        asked += [line.removeprefix("#SBATCH") for line in script.splitlines() if line.startswith("#SBATCH")]
    return any(NO_KILL.search(text) for text in asked)


@dataclass(frozen=True)
class JobOptions:
    """Options of the batch job that `gbactl train --submit` submits.

    `tasks`: slots of a node; `grace`: seconds before the end of the job's time; `sbatch`: further options of sbatch,
    NAME:VALUE or NAME."""

    nodes: Processes = 2
    tasks: Processes | None = None
    grace: Annotated[int, Bounds(at_least=1, at_most=65_535)] = 60
    sbatch: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SlurmOptions(EngineOptions):
    """Options of cluster=slurm: the key `slurm` has the options of a batch job."""

    slurm: JobOptions = field(default_factory=JobOptions)


class SlurmEngine(HostsEngine):
    """Engine whose agents are started by srun, one a node. cluster.hosts, if given, chooses among the nodes."""

    Options: ClassVar[type[EngineOptions]] = SlurmOptions
    signs: ClassVar[tuple[str, ...]] = ("SLURM_JOB_NODELIST",)
    surroundings: ClassVar[str] = "a Slurm allocation"
    not_resumed: ClassVar[tuple[str, ...]] = ("hosts", "bind", "slurm")  # the next allocation has other nodes

    def hosts(self) -> list[str]:
        return [f"{host.name}:{host.slots}" for host in allocation(os.environ)]

    def agent(self, cluster: ClusterConfig, host: str) -> str:
        from gbactl.engine.agent_connection import agent_command

        node_list(os.environ)  # outside an allocation srun would wait for one of its own
        return f"{SRUN} --nodelist={quote(host)} {agent_command(cluster.python)}"

    def check(self, cluster: ClusterConfig, workers: int) -> None:
        super().check(cluster, workers)
        options = self.options(cluster)
        assert isinstance(options, SlurmOptions)
        invalid = [each for each in options.slurm.sbatch if not OPTION.fullmatch(each)]
        require(not invalid, f"cluster.slurm.sbatch has {invalid[:1]}, which is no NAME:VALUE; type [partition:long].")

    def warning(self, cluster: ClusterConfig) -> str:
        return MORTAL if len(cluster.hosts) > 1 and not outlives_nodes(os.environ) else ""


ENGINE = SlurmEngine()
