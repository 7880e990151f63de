"""Placement of processes on hosts, decided from the configuration alone. Pure.

Workers fill the hosts' slots in the order of `cluster.hosts`, as Horovod's launcher numbers its ranks; servers are
spread over the hosts in turn, or packed on the first. The coordinator runs beside the launcher, never on this list.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gbactl.errors import ConfigError

SPREAD = "spread"  # value of cluster.placement; the other one is "packed"
_HOST = re.compile(r"(?!-)([\w.-]+):([0-9]{1,4})")  # Horovod's own pattern of a host and its slots; no option of ssh


@dataclass(frozen=True)
class Host:
    """Host with its name for ssh and its number of worker slots."""

    name: str
    slots: int


def hosts_of(given: Sequence[str]) -> tuple[Host, ...]:
    """Parse a list of hosts such as `["a:4", "b:2"]`. Raises ConfigError that says what to type."""
    if not given:
        raise ConfigError("No machines are named; type cluster.hosts='[a:4,b:4]', each with its worker slots.")
    found = []
    for text in given:
        match = _HOST.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"cluster.hosts has {text!r}, which is no NAME:SLOTS; type for instance a:4.")
        found.append(Host(match[1], int(match[2])))
    names = [host.name for host in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"cluster.hosts names {', '.join(twice)} twice; add up its slots.")
    return tuple(found)


def slots(hosts: Sequence[Host]) -> int:
    """Count the worker slots of all hosts."""
    return sum(host.slots for host in hosts)


def place(hosts: Sequence[Host], workers: int, servers: int, placement: str = SPREAD) -> dict[str, str]:
    """Choose the host of each worker and server; returns hosts by process name.

    Raises ConfigError where the slots do not suffice for the workers."""
    if workers > slots(hosts):
        raise ConfigError(
            f"cluster.workers={workers} do not fit into the {slots(hosts)} slots of cluster.hosts; give more slots, or "
            f"type cluster.workers={slots(hosts)}."
        )
    seats = [host.name for host in hosts for _ in range(host.slots)]
    found = {f"W{index}": seats[index] for index in range(workers)}
    for index in range(servers):
        found[f"S{index}"] = hosts[index % len(hosts) if placement == SPREAD else 0].name
    return found


def successor(process: str, placed: Mapping[str, str], hosts: Sequence[Host], live: Collection[str]) -> str | None:
    """Choose a host for a failed process's replacement: its own if live, else the least loaded live one, or None.

    Load: processes of the same kind, with the replacement; for workers, per slot."""
    if placed[process] in live:
        return placed[process]

    def load(host: Host) -> float:
        placed_there = [p for p, name in placed.items() if name == host.name and p[0] == process[0] and p != process]
        return (len(placed_there) + 1) / max(host.slots, 1) if process[0] == "W" else float(len(placed_there))

    rest = [host for host in hosts if host.name in live]
    return min(rest, key=load).name if rest else None
