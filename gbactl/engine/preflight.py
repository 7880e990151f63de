"""Preflight checks of a host before training: each fault is one sentence, with the host's name and what to do. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gbactl.engine.bandwidth_probe import LinkMeasurement
from gbactl.engine.host_info import SAME

MEBI = 1 << 20
# last message of a worker that has lost a server, or did not reach one
CUT = re.compile(r"lost its connection to (S\d+)\.|answers at ([\d.]+):")
LABELS = {"gbactl": "gbactl", "python": "Python", "torch": "torch", "horovod": "Horovod"}
GET = {
    "gbactl": "install the same version there (make install in the same checkout)",
    "python": "make its environment with the same Python",
    "torch": "install the same version there: pip install torch=={}",
    "horovod": "build the same version there: python -m gbactl.install.horovod",
}


@dataclass
class HostReport:
    """Facts about a host, and its faults, which keep a run from using it."""

    host: str
    facts: dict[str, Any] = field(default_factory=dict)
    address: str = ""
    interface: str = ""
    data: str = "-"
    needs: int = 0
    lines: dict[str, LinkMeasurement] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether a run may use the host."""
        return not self.faults

    def cells(self) -> list[str]:
        """Return the host's row of the table."""
        facts = self.facts
        if not facts:
            return [self.host, "-", "-", "-", "-", "-", "no answer"]
        versions = " ".join(str(facts.get(name) or "none") for name in SAME)
        memory = f"{facts.get('memory', 0) // MEBI:,}"
        needs = f" of {self.needs // MEBI:,} needed" if self.needs >= MEBI else ""
        state, cores = "ok" if self.ok else "see below", str(facts.get("cores", "-"))
        return [self.host, self.address or "-", cores, versions, memory + needs, self.data, state]


def faults_of(found: Mapping[str, HostReport]) -> list[str]:
    """Collect the faults of all hosts, in the hosts' order."""
    return [sentence for each in found.values() for sentence in each.faults]


HEADINGS = ("host", "address", "cores", "gbactl Python torch Horovod", "MiB free", "data", "state")


def unreachable(host: str, said: str, why: str) -> str:
    """Describe a host whose agent does not answer."""
    told = f" ({said.rstrip('.')})" if said else f" ({why})"
    return f"Host {host} cannot be reached{told}; see that `ssh {host} true` works without a question."


def versions(host: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Describe versions that differ from this machine's, a sentence each."""
    found = []
    for name in SAME:
        own, other = str(here.get(name, "")), str(there.get(name, ""))
        if own != other:
            has = f"has {LABELS[name]} {other}" if other else f"has no {LABELS[name]}"
            found.append(f"Host {host} {has}, and this machine has {own or 'none'}; {GET[name].format(own)}.")
    return found


def ring(host: str, there: Mapping[str, Any], address: str) -> list[str]:
    """Describe a host whose own name is no address at which others reach Horovod's ring; "" for an unknown `address`.

    Of Horovod's two rings the one that sums (that of the process set) ignores HOROVOD_GLOO_IFACE in 0.28.1, and listens
    where the host's own name points to."""
    name, found = there.get("name", ""), there.get("own_name", "")
    if not address or found == address:
        return []
    means = found or "no address"
    return [
        f"Host {host} takes its own name {name} for {means}, where Horovod's ring would listen unreachable for others; "
        f"put the line `{address} {name}` before any other with that name into its /etc/hosts."
    ]


def memory(host: str, free: int, needs: int) -> list[str]:
    """Describe a host whose servers and workers do not fit into its free memory."""
    if not free or needs <= free:
        return []
    return [
        f"Host {host} has {free // MEBI:,} MiB of memory free, and its servers and workers need {needs // MEBI:,}; "
        "free some, spread them over more hosts, or use a smaller model."
    ]


def lines(host: str, targets: Mapping[str, str], found: Mapping[str, LinkMeasurement]) -> list[str]:
    """Describe the hosts that this one does not reach. `targets`: name -> address and port."""
    return [_cut(f"Host {host}", name, targets[name], line.error) for name, line in found.items() if line.error]


def unreached(host: str, target: str, line: LinkMeasurement) -> list[str]:
    """Describe a host that the launcher does not reach."""
    return [_cut("This machine", f"host {host}", target, line.error)] if line.error else []


def _cut(who: str, whom: str, target: str, why: str) -> str:
    return (
        f"{who} does not reach {whom} at {target} ({why}); let TCP through between them, on the ports that the system "
        "gives out (net.ipv4.ip_local_port_range)."
    )


def cut(host: str, said: str, hosts: Mapping[str, str]) -> str:
    """Describe a failed connection between two hosts, where a process's last message `said` names one; else "".

    `hosts`: host by server name and by address."""
    match = CUT.search(said)
    far = None if match is None else hosts.get(match[1] or match[2])
    if far is None or far == host:
        return ""
    return f"Host {host} does not reach host {far}, though this machine reaches both; see what is between them."


def unseen(host: str, what: str, path: str, instead: str) -> str:
    """Describe a host that does not see a path which it must share."""
    return f"Host {host} does not see {what} {path}; put it on a file system that all hosts share, or type {instead}."
