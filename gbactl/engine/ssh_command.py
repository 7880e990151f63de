"""Command that starts an agent on a host, built as Horovod's launcher builds it.

Taken from Horovod: which hosts are this machine (`network`), the command over ssh or Kubeflow's shell
(`remote.get_remote_command`), and the placement of ranks (`hosts.get_host_assignments`). Not taken: `launch_gloo` and
`safe_shell_exec.execute`. According to its source, the first opens a rendezvous without a key on every interface, puts
the environment on the ssh command line and ends the job with the first process that ends. The second starts commands
through multiprocessing, which gives them an empty standard input, the only safe way to pass a secret key, and decodes
their output as text. Horovod's ssh also accepts any host key (StrictHostKeyChecking=no); gbactl keeps ssh's own rule
unless `cluster.ssh` says otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from gbactl.collective.horovod import missing
from gbactl.collective.rendezvous import RankSlot
from gbactl.config.placement import Host

AGENT = "gbactl.engine.agent"
SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"


@dataclass(frozen=True)
class HostAccess:
    """Access to hosts: the `ssh` command with its options, and the `python` there (None: the same path as here)."""

    ssh: str = SSH
    python: str | None = None


def _horovod() -> tuple[Any, Any, Any]:
    """Import the modules of Horovod's launcher: (network, remote, hosts). Raises MissingDependencyError."""
    try:
        from horovod.runner.common.util import hosts
        from horovod.runner.util import network, remote
    except ImportError as error:
        raise missing(error) from error
    return network, remote, hosts


def address_of_host(host: str) -> str | None:
    """Resolve a host's name to its IPv4 address; None where only ssh knows it. Raises MissingDependencyError."""
    found: str | None = _horovod()[0].resolve_host_address(host)
    return found


def is_here(host: str) -> bool:
    """Return whether a host is this machine, and needs no ssh. Raises MissingDependencyError."""
    network = _horovod()[0]
    address = network.resolve_host_address(host)
    return address in network.get_local_host_addresses() or bool(address and address.startswith("127."))


def command(host: str, reach: HostAccess) -> str:
    """Build the local command that starts an agent on a host, quoted as for a shell, without secrets and environment.

    Raises MissingDependencyError."""
    start = f"{quote(reach.python or sys.executable)} -m {AGENT}"
    if is_here(host):
        return start
    remote = _horovod()[1]
    there = quote(f"cd {quote(os.getcwd())} > /dev/null 2>&1 ; exec {start}")
    made: str = remote.get_remote_command(there, host=host)
    return made.replace(remote.SSH_COMMAND_PREFIX, reach.ssh, 1)


def seats(hosts: Sequence[Host], workers: int, interfaces: Mapping[str, str]) -> list[RankSlot]:
    """Return rank -> seat, for the first `workers` slots. Raises MissingDependencyError."""
    util = _horovod()[2]
    infos = [util.HostInfo(host.name, host.slots) for host in hosts]
    found = util.get_host_assignments(infos, workers, workers)
    return [
        RankSlot(s.hostname, s.local_rank, s.local_size, s.cross_rank, s.cross_size, s.size, interfaces[s.hostname])
        for s in sorted(found, key=lambda slot: int(slot.rank))
    ]
