"""The launcher's side of the agents of all hosts, for a run or `gbactl doctor`: start, checks, data, report.

`gbactl doctor --out` measures pairs of hosts one after the other, about a second each way; nothing else should use the
network during the measurement.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from gbactl.collective.gloo import address_of_own_name
from gbactl.engine import preflight
from gbactl.engine.agent import FILES, mark
from gbactl.engine.agent_connection import PIECE, AgentConnection, address_of_host, is_here
from gbactl.engine.host_and_network_facts import LinkMeasurement, ReachabilityProbe, dial, facts, route_to
from gbactl.engine.preflight import BIND, LAUNCHER, HostReport, ring
from gbactl.errors import ClusterError, GbactlError, UsageError
from gbactl.wire.listener import allow_descriptors
from gbactl.wire.node_measurements import TRACE_DIR

ANSWER_SECONDS, IMPORT_SECONDS, MEASURE_SECONDS, LOOK_SECONDS = 20.0, 120.0, 120.0, 0.1
LOOPBACK = "127.0.0.1"


class HostAgents:
    """Connections of the launcher to the agents on all hosts of a run.

    `start` gives the command that starts a host's agent, its input and output being the agent's. `patience`: seconds
    for a host's first answer. `folder` keeps the commands' error output."""

    def __init__(self, hosts: Sequence[str], start: Callable[[str], str], folder: Path, patience: float) -> None:
        self.start, self.folder, self.patience = start, folder, patience
        self.links: dict[str, AgentConnection] = {}
        self.reports = {host: HostReport(host) for host in hosts}
        self.token = secrets.token_bytes(32)
        self.bind = ""

    def connect(self) -> None:
        """Start all agents and collect facts about their hosts; record a fault for a host that does not answer."""
        allow_descriptors()
        for host in self.reports:
            log, command = self.folder / f"host-{host}.log", self.start(host)
            program = shlex.split(command)[0]
            if shutil.which(program) is None:
                self.reports[host].faults.append(preflight.not_installed(program, host))
            else:
                self.links[host] = AgentConnection(host, command, log, self.patience)
        self.each(self._read_facts)

    def _read_facts(self, link: AgentConnection) -> None:
        report = self.reports[link.host]
        try:
            report.facts = link.request("facts", self.patience)
        except ClusterError as error:
            report.faults.append(
                preflight.unreachable(
                    link.host, link.last_error(), link.lost_reason or str(error), self.start(link.host)
                )
            )
            return
        report.faults += preflight.versions(link.host, report.facts, facts())

    def send_setup(
        self, bind: str, hang_seconds: float, run_dir: Path, environment: Mapping[str, str], paths: Sequence[str] = ()
    ) -> None:
        """Send every agent the launcher's address, run directory and token, and the `paths` that it looks for.

        `bind`: the launcher's address, or "auto". A marker file in `run_dir` shows the hosts whether they share it.
        Raises ClusterError where hosts see the launcher at addresses that are not one of its own."""
        self.bind = self._own_address() if bind == "auto" else bind

        def ask(link: AgentConnection) -> None:
            answer = link.request(
                "settle", ANSWER_SECONDS, hang_seconds=float(hang_seconds), token=self.token.hex(), launcher=self.bind,
                run_dir=str(run_dir), paths=list(paths), environment=dict(environment),
                traced=(run_dir / TRACE_DIR).is_dir(),
            )  # fmt: skip
            report = self.reports[link.host]
            report.address, report.interface = str(answer["address"]), str(answer["interface"])
            report.shared, report.sees = answer["shared"], answer["sees"]
            link.patience = hang_seconds

        marker = run_dir / mark(self.token.hex())
        marker.touch()
        try:
            self.each(ask)
        finally:
            marker.unlink()

    def check_imports(self, targets: Mapping[str, str]) -> None:
        """Have every host import the classes that a configuration names by key; record a fault for those it cannot."""
        if not targets:
            return

        def ask(link: AgentConnection) -> None:
            errors = link.request("import", IMPORT_SECONDS, targets=sorted(set(targets.values())))["errors"]
            failed = [(key, target, str(errors[target])) for key, target in targets.items() if errors[target]]
            self.reports[link.host].faults += [preflight.import_failure(link.host, *failure) for failure in failed]

        self.each(ask)

    def _own_address(self) -> str:
        """Return the address at which the hosts see the launcher. Raises ClusterError if they see several.

        Where only the engine knows the hosts' addresses it is that of this machine's own name, as in a pod."""
        remote = [host for host, report in self.reports.items() if report.facts and not is_here(host)]
        seen: dict[str, str] = {}
        for host in remote:
            seen_as = self.reports[host].facts.get("client")
            address = address_of_host(host)
            if isinstance(seen_as, str) and seen_as:
                seen[host] = seen_as
            elif address is not None:
                seen[host] = route_to(address)
        if len(set(seen.values())) > 1:
            addresses = ", ".join(f"{host} at {address}" for host, address in seen.items())
            raise ClusterError(f"The hosts see this machine at different addresses ({addresses}); {BIND}.")
        return next(iter(seen.values()), (remote and address_of_own_name()) or LOOPBACK)

    def lines(self, measure: bool = False) -> None:
        """Test the network connections among all hosts, and from the launcher to each host.

        `measure`: measure the speed too, one connection after the other. Raises ClusterError where the launcher cannot
        listen."""
        targets: dict[str, str] = {}
        self.each(lambda link: targets.update({link.host: str(link.request("listen", ANSWER_SECONDS)["address"])}))
        try:
            probe = ReachabilityProbe(self.bind, self.token)
        except OSError as error:
            raise ClusterError(f"This machine cannot listen at {self.bind} ({error.strerror}); {BIND}.") from error
        targets[LAUNCHER] = probe.address
        one_by_one, names = threading.Lock(), list(targets)

        def ask(link: AgentConnection) -> None:
            after = names.index(link.host) + 1  # each begins with the next: one probe does not serve all hosts at once
            others = {name: targets[name] for name in (*names[after:], *names[: after - 1])}
            seconds = ANSWER_SECONDS
            if measure:
                seconds = MEASURE_SECONDS
                others.pop(LAUNCHER)
            with one_by_one if measure else contextlib.nullcontext():
                answer = link.request("dial", seconds * len(others), targets=others, measure=measure)
            report = self.reports[link.host]
            report.lines = {name: LinkMeasurement(**line) for name, line in answer["lines"].items()}
            for name, line in report.lines.items():
                report.faults += preflight.connection(f"Host {link.host}", name, targets[name], line)

        with contextlib.closing(probe):
            self.each(ask)
            for host, where in targets.items():
                if host != LAUNCHER:
                    line = dial(where, self.token, False)
                    self.reports[host].faults += preflight.connection("This machine", f"host {host}", where, line)
        self.each(lambda link: link.request("unlisten", ANSWER_SECONDS))

    def give_data(
        self, path: Path, fingerprint: str, cache: str | None, progress: Callable[[str, float], None]
    ) -> None:
        """Send the prepared data to every host that does not have them."""

        def give(link: AgentConnection) -> None:
            report = self.reports[link.host]
            answer = link.request("find", ANSWER_SECONDS * 5, path=str(path), fingerprint=fingerprint, cache=cache)
            report.data = "the same"
            if not answer["found"]:
                self._send(link, path, progress)
                report.data = "sent"

        self.each(give)

    def _send(self, link: AgentConnection, path: Path, progress: Callable[[str, float], None]) -> None:
        sizes = {name: (path / name).stat().st_size for name in FILES if (path / name).exists()}
        total, done = max(1, sum(sizes.values())), 0
        for name in sizes:
            with (path / name).open("rb") as file:
                first = True
                while (data := file.read(PIECE)) or first:
                    link.send("piece", name=name, data=data, first=first)
                    first, done = False, done + len(data)
                    progress(f"data to {link.host}", done / total)
                    if link.lost_reason is not None:
                        raise ClusterError(f"Host {link.host} is gone: {link.lost_reason}.")
        link.request("whole", ANSWER_SECONDS + total / 20e6)

    def each(self, work: Callable[[AgentConnection], object]) -> None:
        """Call `work` for every host without a fault, in parallel; an error becomes that host's fault."""
        links = [link for host, link in self.links.items() if self.reports[host].ok]

        def guarded(link: AgentConnection) -> None:
            try:
                work(link)
            except (GbactlError, OSError) as error:
                self.reports[link.host].faults.append(_sentence(link.host, error))

        if links:
            with ThreadPoolExecutor(len(links)) as pool:
                futures = [pool.submit(guarded, link) for link in links]
                try:
                    while wait(futures, LOOK_SECONDS).not_done:
                        pass  # short waits: Python handles signals between them
                    for future in futures:
                        future.result()
                except BaseException:  # Ctrl-C: else the pool would wait for its threads, and these for their hosts
                    for link in links:
                        link.mark_lost("the launcher was stopped")
                    raise

    @property
    def faults(self) -> list[str]:
        """Why hosts cannot be used, in the order of the hosts."""
        return [sentence for report in self.reports.values() for sentence in report.faults]

    def close(self) -> None:
        """End all agents and the processes that they have started, in parallel."""
        for link in self.links.values():
            link.end()
        if self.links:
            with ThreadPoolExecutor(len(self.links)) as pool:
                list(pool.map(AgentConnection.close, self.links.values()))


def _sentence(host: str, error: Exception) -> str:
    text = str(error).rstrip(".")
    return f"{text}." if host in text else f"Host {host}: {text}."


Positive = Annotated[float, msgspec.Meta(gt=0)]
LINE_HEADINGS = ("from", "to", "one way, us", "Gbit/s")


@dataclass(frozen=True)
class NetworkParameters:
    """Latency and bandwidth of a virtual cluster's network, under their keys in `cost`."""

    latency_us: Positive
    bandwidth_gbit: Positive


@dataclass(frozen=True)
class HostFindings:
    """Results of `gbactl doctor` for every host, in the order in which the hosts were typed."""

    reports: dict[str, HostReport]

    @property
    def advice(self) -> list[str]:
        """Faults that only matter to an all-reduce of several hosts, one sentence each."""
        reports = list(self.reports.values()) if len(self.reports) > 1 else []
        sentences = [sentence for report in reports for sentence in ring(report.host, report.facts, report.address)]
        return [f"For an all-reduce: {sentence}" for sentence in sentences]

    @property
    def pairs(self) -> list[tuple[str, str, float, float]]:
        """Measurements of every connection: (from, to, one-way microseconds, Gbit/s)."""
        lines = [(host, name, line) for host, report in self.reports.items() for name, line in report.lines.items()]
        return [(host, name, line.latency_us, line.gbit) for host, name, line in lines if line.gbit]

    @property
    def network(self) -> NetworkParameters | None:
        """Median latency and bandwidth over all measured connections; None if there are none."""
        if not self.pairs:
            return None
        return NetworkParameters(
            statistics.median(pair[2] for pair in self.pairs), statistics.median(pair[3] for pair in self.pairs)
        )

    def plain(self) -> dict[str, Any]:
        """Encode the findings for JSON."""
        reports = self.reports.items()
        hosts = {host: {"address": report.address, "faults": report.faults, **report.facts} for host, report in reports}
        names = ("from", "to", "latency_us", "bandwidth_gbit")
        return {"hosts": hosts, "pairs": [dict(zip(names, pair, strict=True)) for pair in self.pairs]}


def text(examined: HostFindings) -> str:
    """Format the file that `gbactl calibrate --network` reads. Raises UsageError without measurements."""
    from gbactl import __version__

    network = examined.network
    if network is None:
        raise UsageError("No connection between two hosts was measured; name two hosts or more that reach each other.")
    lines = [
        f"# Measured by gbactl {__version__} doctor on {time.strftime('%Y-%m-%d')}; medians over the pairs.",
        "# Use: gbactl calibrate --network THIS_FILE",
        f"latency_us: {network.latency_us:.4g}        # between hosts, one way",
        f"bandwidth_gbit: {network.bandwidth_gbit:.4g}    # of a host's network interface, each way",
        *(f"# {a} -> {b}: {latency:.1f} us, {gbit:.3g} Gbit/s" for a, b, latency, gbit in examined.pairs),
    ]
    return "\n".join(lines) + "\n"


def read(path: Path) -> dict[str, float]:
    """Parse the file that `text` wrote into latency and bandwidth, as keys of `cost`. Raises UsageError."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UsageError(f"--network {path} cannot be read: {' '.join(str(error).split())}") from error
    try:
        return asdict(msgspec.convert(values, NetworkParameters))
    except msgspec.ValidationError as error:
        names = " and ".join(NetworkParameters.__annotations__)
        raise UsageError(f"--network {path} needs positive numbers {names}; write it with gbactl doctor.") from error


def print_lines(examined: HostFindings) -> None:
    """Print the measured connections as a table."""
    from rich.console import Console
    from rich.table import Column, Table

    columns = [Column(heading, overflow="fold") for heading in LINE_HEADINGS]
    lines = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for a, b, latency, gbit in examined.pairs:
        lines.add_row(a, b, f"{latency:.1f}", f"{gbit:.3g}")
    Console(highlight=False, width=None if sys.stdout.isatty() else 160).print(lines)
