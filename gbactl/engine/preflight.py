"""Preflight checks before any process starts: hosts and their network, all-reduce, memory, size of the batch.

Each fault is one sentence: what is wrong, and what to do. The memory that a run needs is estimated from its rows and
dense parameters, without the batches in flight.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gbactl.config import RunConfig
from gbactl.config.shard_specs import row_bytes, shard_spec
from gbactl.data.dataset import Dataset
from gbactl.engine.fork_server import dense_size
from gbactl.engine.host_and_network_facts import PACKAGES, SAME, LinkMeasurement
from gbactl.errors import ConfigError
from gbactl.host_limits import free_memory
from gbactl.store.optimizer_settings import dense_moments

if TYPE_CHECKING:
    from gbactl.models.dry_run import Findings

MEBI = 1 << 20
# last message of a worker that has lost a server, or could not reach it
CUT = re.compile(r"lost its connection to (S\d+)\.|answers at ([\d.]+):")
# end of a command that starts an agent, with what ssh has around it
AGENT_PART = re.compile(r"\s*('cd .* ; exec )?\S+ -m gbactl\.engine\.agent'?")
LAUNCHER = "the launcher"
BIND = "type cluster.bind=ADDRESS, one of its own that all hosts reach"
LABELS = {"gbactl": "gbactl", "python": "Python", "torch": "torch", "horovod": "Horovod", "code": "gbactl source hash"}
GET = {
    "gbactl": "install the same version there (make install in the same checkout)",
    "python": "make its environment with the same Python",
    "torch": "install the same version there: pip install torch=={}",
    "horovod": "build the same version there: python -m gbactl.install.horovod",
    "code": "check out the same commit there, with the same changes, and type make install",
}


@dataclass
class HostReport:
    """Facts about a host, and the faults for which a run cannot use it.

    `shared`: it sees the run directory; `sees`: whether it sees other paths."""

    host: str
    facts: dict[str, Any] = field(default_factory=dict)
    address: str = ""
    interface: str = ""
    data: str = "-"
    needs: int = 0
    lines: dict[str, LinkMeasurement] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    shared: bool = True
    sees: dict[str, bool] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether a run may use the host."""
        return not self.faults

    def cells(self) -> list[str]:
        """Return the host's row of the table of hosts, a text for each of HEADINGS."""
        facts = self.facts
        if not facts:
            return [self.host, "-", "-", "-", "-", "-", "no answer"]
        versions = " ".join(str(facts.get(name) or "none") for name in PACKAGES)
        memory = f"{facts.get('memory', 0) // MEBI:,}"
        needs = f" of {self.needs // MEBI:,} needed" if self.needs >= MEBI else ""
        state, cores = "ok" if self.ok else "see below", str(facts.get("cores", "-"))
        return [self.host, self.address or "-", cores, versions, memory + needs, self.data, state]


HEADINGS = ("host", "address", "cores", "gbactl Python torch Horovod", "MiB free", "data", "state")


def unreachable(host: str, output: str, why: str, command: str) -> str:
    """Describe the fault of a host whose agent does not answer; `command`: what should have started the agent."""
    reason, trial = output.rstrip(".") or why, AGENT_PART.sub(" true", command)
    return f"Host {host} cannot be reached ({reason}); see that `{trial}` works without a question."


def not_installed(program: str, host: str) -> str:
    """Describe the fault of a host that is reached by a program which this machine does not have."""
    return f"Host {host} cannot be reached without the program {program}, which is not on the PATH; install it."


def versions(host: str, host_facts: Mapping[str, Any], own_facts: Mapping[str, Any]) -> list[str]:
    """List the versions of a host that differ from this machine's, one sentence each."""
    found = []
    for name in SAME:
        own, other = str(own_facts.get(name, "")), str(host_facts.get(name, ""))
        if own != other and not (name == "code" and host_facts.get("gbactl") != own_facts.get("gbactl")):
            has = f"has {LABELS[name]} {other}" if other else f"has no {LABELS[name]}"
            found.append(f"Host {host} {has}, and this machine has {own or 'none'}; {GET[name].format(own)}.")
    return found


def ring(host: str, host_facts: Mapping[str, Any], address: str) -> list[str]:
    """Describe the fault of a host whose own name is not the address at which Horovod's ring can be reached.

    Nothing where `address` is unknown. Of Horovod's two rings the one that sums (that of the process set) ignores
    HOROVOD_GLOO_IFACE in 0.28.1, and listens where the host's own name points to."""
    name, found = host_facts.get("name", ""), host_facts.get("own_name", "")
    if not address or found == address:
        return []
    means = found or "no address"
    return [
        f"Host {host} takes its own name {name} for {means}, where Horovod's ring would listen, out of reach of "
        f"others; put the line `{address} {name}` before any other with that name into its /etc/hosts."
    ]


def memory(host: str, free: int, needs: int) -> list[str]:
    """Describe the fault of a host without enough free memory for its servers and workers."""
    if not free or needs <= free:
        return []
    return [
        f"Host {host} has {free // MEBI:,} MiB of memory free, and its servers and workers need {needs // MEBI:,}; "
        "free some, spread them over more hosts, or use a smaller model."
    ]


def connection(who: str, whom: str, target: str, line: LinkMeasurement) -> list[str]:
    """Describe the fault of a connection that failed; `target`: address and port that were dialled."""
    if not line.error:
        return []
    other = f", or {BIND}" if whom == LAUNCHER else ""
    return [
        f"{who} does not reach {whom} at {target} ({line.error}); let TCP through between them, on the ports that the "
        f"system gives out (net.ipv4.ip_local_port_range){other}."
    ]


def broken_connection(host: str, said: str, hosts: Mapping[str, str]) -> str:
    """Describe the failed connection between two hosts that the last message of a process indicates; "" if none.

    `hosts`: host by server name and by address."""
    match = CUT.search(said)
    far = None if match is None else hosts.get(match[1] or match[2])
    if far is None or far == host:
        return ""
    return f"Host {host} does not reach host {far}, though this machine reaches both; see what is between them."


def path_not_visible(host: str, what: str, path: str, instead: str) -> str:
    """Describe the fault of a host that does not see a shared path."""
    return f"Host {host} does not see {what} {path}; put it on a file system that all hosts share, or type {instead}."


def forwarded_environment(cfg: RunConfig) -> dict[str, str]:
    """Return the environment variables that the hosts' processes get from here."""
    return {name: os.environ[name] for name in cfg.cluster.forward if name in os.environ}


def named_classes(cfg: RunConfig) -> dict[str, str]:
    """Collect the classes of other packages that a run's processes import, as {key: MODULE.CLASS}.

    The hosts have gbactl's own, as they have its version."""
    keys = {"model.target": cfg.model.target, "data.target": cfg.data.get("target")}
    keys |= {"mode.target": cfg.mode.target}
    modes = {phase.mode.target for phase in cfg.possible} - {cfg.mode.target}
    keys |= {f"switch.modes' {target}": target for target in modes}
    return {key: str(target) for key, target in keys.items() if target and not target.startswith("gbactl.")}


def import_failure(host: str, key: str, target: str, why: str) -> str:
    """Describe the fault of a host that cannot import a class which the configuration names."""
    return (
        f"Host {host} cannot import {key}={target} ({why.rstrip('.')}); install its package there, for the Python of "
        "cluster.python, or type cluster.forward=[PYTHONPATH] if the hosts have its folder at the same path."
    )


BESIDE = 1.03  # ratio of a server's memory to that of its rows and moments (docs/studies/performance.md)
FLOAT = 4
OF_MODEL = 4  # dense-sized vectors of a model: values, initial values, the gradient as computed and as sent


def shard_bytes(cfg: RunConfig, dataset: Dataset, shard: int) -> int:
    """Return the memory for a shard's rows with their optimizer state, in bytes."""
    return int(BESIDE * shard_spec(cfg, dataset.schema.rows, shard).local_rows * row_bytes(cfg))


def vector_bytes(cfg: RunConfig, dataset: Dataset) -> int:
    """Return the size of one copy of the dense vector, in bytes."""
    schema = dataset.schema
    return FLOAT * dense_size(cfg.model, schema.numeric, schema.fields, schema.list_targets)


def served_vectors(cfg: RunConfig) -> int:
    """Count the vectors of dense size that all servers together hold: values and optimizer state."""
    return 1 + len(dense_moments(cfg.optim.name))


def worker_vectors(cfg: RunConfig) -> int:
    """Return the minimum number of vectors of dense size that a worker holds.

    These are the model's, and the optimizer's where workers hold the dense parameters or are trainers with a replica
    each."""
    replica = served_vectors(cfg)
    return OF_MODEL + (replica - 1) * ("workers" in cfg.homes) + replica * ("replicas" in cfg.homes)


def vectors(cfg: RunConfig) -> int:
    """Estimate how many vectors of dense size all processes of a run on this machine will hold, at least.

    The workers of a virtual cluster share one model."""
    served = served_vectors(cfg)
    if cfg.engine.real:
        return served + cfg.processes * worker_vectors(cfg)
    trainers = cfg.processes * ("replicas" in cfg.homes)
    return OF_MODEL + served * (1 + trainers) + (served - 1) * ("workers" in cfg.homes)


def bytes_on(cfg: RunConfig, dataset: Dataset, placed: Mapping[str, str]) -> dict[str, int]:
    """Return the memory that the shards and workers of each host need, in bytes by host."""
    found, vector, holders = Counter[str](), vector_bytes(cfg, dataset), cfg.cluster.dense_holders
    for process, host in placed.items():
        index = int(process[1:])
        if process[0] == "W":
            found[host] += vector * worker_vectors(cfg)
        else:
            dense = vector * served_vectors(cfg) // holders if index < holders else 0
            found[host] += shard_bytes(cfg, dataset, index) + dense
    return found


GIBI = 1 << 30


def check_model(cfg: RunConfig, dataset: Dataset) -> Findings | None:
    """Return what a dry run on one batch finds in a user's own model; None for gbactl's models.

    Raises ConfigError, one sentence, where the model breaks the contract."""
    if cfg.model.target is None:
        return None
    from gbactl.models.dry_run import dry_run  # it imports torch, which takes a second

    return dry_run(cfg.model, dataset, cfg.seed, cfg.precision)


def check_memory(cfg: RunConfig, dataset: Dataset) -> None:
    """Raise ConfigError if servers and workers on this machine need more memory than is free.

    With several hosts, preflight checks them."""
    if cfg.engine.one_host and (why := too_large(cfg, dataset, free_memory())):
        raise ConfigError(why)


def too_large(cfg: RunConfig, dataset: Dataset, free: int) -> str:
    """Describe by how much rows and dense parameters exceed the free memory, and the remedy; "" if they fit.

    `free`: free memory in bytes (0: unknown)."""
    rows = sum(shard_bytes(cfg, dataset, shard) for shard in range(cfg.cluster.servers))
    vector = vector_bytes(cfg, dataset)
    dense = vector * vectors(cfg)
    if not free or rows + dense <= free:
        return ""
    room = f"{free / GIBI:,.1f} GiB of memory are free"
    if rows > free:
        return (
            f"The table's {dataset.schema.rows:,} rows of {row_bytes(cfg)} bytes (values and {cfg.optim.name}'s state) "
            f"need {rows / GIBI:,.1f} GiB, and {room}; use data with fewer ids, a smaller model.dim or "
            "optim=rowwise_adagrad, or spread the servers over machines with cluster=hosts."
        )
    return (
        f"The dense part's {vector // FLOAT:,} values of {FLOAT} bytes, {vectors(cfg)} times (values, gradients and "
        f"{cfg.optim.name}'s state of {cfg.processes} workers and the servers), need at least {dense / GIBI:,.1f} GiB "
        f"beside the table's {rows / GIBI:,.1f}, and {room}; use a smaller model.hidden or fewer cluster.workers, or "
        "spread them over machines with cluster=hosts."
    )


def too_few(cfg: RunConfig, rows: Mapping[str, int]) -> str:
    """Describe a global batch that is larger than the smallest day or epoch; "" if it is not larger.

    `rows`: number of samples by name of the day or epoch."""
    name, least = min(rows.items(), key=lambda item: item[1])
    batch = cfg.train.global_batch
    if batch <= least:
        return ""
    return (
        f"train.global_batch={batch} is more than the {least} samples of {name}: a mode that waits for a whole batch "
        f"takes one smaller step there; type train.global_batch={max(1, least // 10)} or so."
    )
