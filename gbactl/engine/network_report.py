"""Report of `gbactl doctor --hosts`: checks of hosts, and latency and bandwidth between them.

Pairs are measured one after the other, about a second each way; nothing else should use the network meanwhile.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gbactl.config.placement import hosts_of
from gbactl.engine.agents import HostAgents
from gbactl.engine.preflight import HEADINGS, HostReport, faults_of, ring
from gbactl.engine.ssh_command import HostAccess
from gbactl.errors import UsageError

REACH_SECONDS, SILENT_SECONDS = 60.0, 60.0
LINE_HEADINGS = ("from", "to", "one way, us", "Gbit/s")


@dataclass(frozen=True)
class NetworkParameters:
    """Network parameters of a virtual cluster: keys of `cost`."""

    latency_us: float
    bandwidth_gbit: float


@dataclass(frozen=True)
class HostFindings:
    """Findings on every host, in the order in which they were typed."""

    found: dict[str, HostReport]

    @property
    def faults(self) -> list[str]:
        """Faults of all hosts, a sentence each."""
        return faults_of(self.found)

    @property
    def advice(self) -> list[str]:
        """Faults that only affect modes with an all-reduce, a sentence each."""
        found = self.found.values()
        told = [sentence for each in found for sentence in ring(each.host, each.facts, each.address)]
        return [f"For an all-reduce: {sentence}" for sentence in told]

    @property
    def pairs(self) -> list[tuple[str, str, float, float]]:
        """Measurements of every connection: (from, to, microseconds one way, Gbit/s)."""
        lines = [(host, name, line) for host, found in self.found.items() for name, line in found.lines.items()]
        return [(host, name, line.latency_us, line.gbit) for host, name, line in lines if not line.error]

    @property
    def network(self) -> NetworkParameters | None:
        """Median latency and bandwidth over the measured pairs; None without any."""
        if not self.pairs:
            return None
        return NetworkParameters(
            statistics.median(pair[2] for pair in self.pairs), statistics.median(pair[3] for pair in self.pairs)
        )

    def plain(self) -> dict[str, Any]:
        """Encode the findings for JSON."""
        told = self.found.items()
        hosts = {host: {"address": found.address, "faults": found.faults, **found.facts} for host, found in told}
        names = ("from", "to", "latency_us", "bandwidth_gbit")
        pairs = [dict(zip(names, pair, strict=True)) for pair in self.pairs]
        return {"ok": not self.faults, "hosts": hosts, "pairs": pairs, "advice": self.advice}


def examine(hosts: Sequence[str], reach: HostAccess, bind: str = "auto") -> HostFindings:
    """Check hosts and measure their connections. Raises GbactlError."""
    names = [host.name for host in hosts_of([host if ":" in host else f"{host}:1" for host in hosts])]
    with tempfile.TemporaryDirectory(prefix="gbactl-doctor-") as folder:
        fleet = HostAgents(names, reach, Path(folder), REACH_SECONDS)
        try:
            fleet.connect()
            fleet.settle(bind, SILENT_SECONDS)
            fleet.lines(measure=True)
        finally:
            fleet.close()
    return HostFindings(fleet.found)


def text(examined: HostFindings) -> str:
    """Build the text of the file that `gbactl calibrate --network` reads. Raises UsageError without measurements."""
    from gbactl import __version__

    network = examined.network
    if network is None:
        raise UsageError("No line between two hosts was measured; name two hosts or more that reach each other.")
    lines = [
        f"# Measured by gbactl {__version__} doctor --hosts on {time.strftime('%Y-%m-%d')}; medians over the pairs.",
        "# Use: gbactl calibrate --network THIS_FILE",
        f"latency_us: {network.latency_us:.4g}        # between hosts, one way",
        f"bandwidth_gbit: {network.bandwidth_gbit:.4g}    # of a host's network interface, each way",
        *(f"# {a} -> {b}: {latency:.1f} us, {gbit:.3g} Gbit/s" for a, b, latency, gbit in examined.pairs),
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> dict[str, float]:
    """Read latency and bandwidth, keys of `cost`, from the file of `text`. Raises UsageError."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--network {path} cannot be read: {' '.join(str(error).split())}") from error
    names = [field.name for field in fields(NetworkParameters)]
    if not _complete(values, names):
        raise UsageError(f"--network {path} needs positive numbers {' and '.join(names)}; write it with gbactl doctor.")
    return {name: float(values[name]) for name in names}


def _complete(values: Any, names: Sequence[str]) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(values.get(name), int | float) and not isinstance(values.get(name), bool) and values[name] > 0
        for name in names
    )


def print_tables(examined: HostFindings) -> None:
    """Print the findings as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    table = Table(*HEADINGS, box=None, pad_edge=False, header_style="bold")
    for found in examined.found.values():
        table.add_row(*found.cells())
    console.print(table)
    if examined.pairs:
        lines = Table(*LINE_HEADINGS, box=None, pad_edge=False, header_style="bold")
        for a, b, latency, gbit in examined.pairs:
            lines.add_row(a, b, f"{latency:.1f}", f"{gbit:.3g}")
        console.print(lines)
    for sentence in [*examined.faults, *examined.advice]:
        console.print(sentence, markup=False, soft_wrap=True)
