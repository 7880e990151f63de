"""Processes of a run on several hosts: the coordinator beside the launcher, all others started by the hosts' agents."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbactl.collective.base import RankSlot
from gbactl.engine import preflight
from gbactl.engine.agent import NODE, files_of
from gbactl.engine.agent_connection import AgentConnection, horovod_launcher
from gbactl.engine.fork_server import ProcessHandle
from gbactl.engine.host_agents import HostAgents
from gbactl.engine.host_placement import Host, hosts_of, place, successor
from gbactl.engine.local_processes import ChildProcess, LaunchContext, RunProcesses
from gbactl.engine.stop_signals import resume_hint
from gbactl.errors import ClusterError
from gbactl.wire.startup_document import StartupDocument

START_SECONDS, WAIT_SECONDS, RESTORE_SECONDS = 20.0, 2.0, 5.0
FAILED = 1  # exit code of a process that could not be started


class RemoteProcess(ProcessHandle):
    """Process on another host; `name` is its log's name (W3, W3-1), by which its agent knows it."""

    pid: int = 0

    def __init__(self, link: AgentConnection, name: str) -> None:
        self.link, self.name = link, name
        self.start_error = ""  # reason why the process could not be started
        self._code: int | None = None
        self._stopped = threading.Event()

    def start(self, **request: Any) -> None:
        """Start the process through its host's agent; if that fails, it counts as failed."""
        try:
            self.pid = int(self.link.request("start", START_SECONDS, name=self.name, **request)["pid"])
        except ClusterError as error:
            self.start_error = str(error)
            self.ended(FAILED)

    def ended(self, code: int) -> None:
        """Record the exit code that the process's agent reports."""
        if self._code is None:
            self._code = code
            self._stopped.set()

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs; a process on a lost host counts as killed."""
        if self._code is None and self.link.lost_reason is not None:
            self.ended(-signal.SIGKILL)
        return self._code

    def send_signal(self, sig: int, /) -> None:
        if self.poll() is None:
            self.link.send("signal", name=self.name, number=int(sig))

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code.

        Without a `timeout`, a host that does not answer for some seconds counts as lost."""
        if self.poll() is None and not self._stopped.wait(WAIT_SECONDS if timeout is None else timeout):
            if timeout is not None:
                raise subprocess.TimeoutExpired(self.name, timeout)
            self.link.mark_lost("it does not say that its processes have ended")
        code = self.poll()
        assert code is not None
        return code


@dataclass
class StartedRemoteProcess(ChildProcess):
    """Started process on another host, with its name and log."""

    process: RemoteProcess

    def exit_sentence(self) -> str | None:
        """Describe why the process ended: by the loss of its host, or by its exit code."""
        process = self.process
        if process.start_error:
            return f"{self.name} could not be started: {process.start_error}"
        if process.link.lost_reason is not None and process.poll() == -signal.SIGKILL:
            return f"{self.name} was killed by the loss of host {process.link.host}: {process.link.lost_reason}."
        sentence = super().exit_sentence()
        pid = f"(pid {process.pid}"
        return None if sentence is None else sentence.replace(f"{pid})", f"{pid} on {process.link.host})", 1)


class RemoteRunProcesses(RunProcesses):
    """Processes of one run on several hosts, started by agents.

    `start` gives the command that starts a host's agent; `replaces`: when it is started again for a lost host, it finds
    another machine in its place."""

    def __init__(self, launch: LaunchContext, start: Callable[[str], str], replaces: bool) -> None:
        super().__init__(launch)
        cluster, self.show = self.cfg.cluster, launch.show
        self.hosts = hosts_of(cluster.hosts)
        self.placed = place(self.hosts, self.cfg.processes, cluster.servers, cluster.placement)
        self._original_hosts = dict(self.placed)
        names, logs = [host.name for host in self.hosts], self.run_dir / "logs"
        self.agents = HostAgents(names, start, logs, cluster.start_timeout)
        self._restores = replaces and cluster.lost_worker == "replace"
        self._restoring: list[HostAgents] = []
        self._restorers: list[threading.Thread] = []
        self._stopped = threading.Event()
        self._remote: dict[str, RemoteProcess] = {}

    # -- before anything trains ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Start the agents, check every host and send it the data. Raises ClusterError with all faults."""
        agents, cluster = self.agents, self.cfg.cluster
        self._connect(agents)
        agents.lines()
        self._check_memory()
        self._send_data(agents)
        self.show.clear()
        self.show.show_hosts(preflight.HEADINGS, [report.cells() for report in agents.reports.values()])
        if agents.faults:
            raise ClusterError(" ".join(agents.faults))
        for link in agents.links.values():
            self._watch(link)
        interfaces = {host: report.interface for host, report in agents.reports.items()}
        self.rank_slots = rank_slots(self.hosts, self.cfg.processes, interfaces)
        known = dataclasses.replace(cluster, threads=cluster.threads or self._threads(), bind=agents.bind)
        self.cfg = dataclasses.replace(self.cfg, cluster=known)

    @property
    def save_obstacle(self) -> str:
        unseen = [host for host, report in self.agents.reports.items() if not report.shared]
        return f"the run directory is not seen by {', '.join(unseen)}" if unseen else ""

    def _connect(self, agents: HostAgents) -> None:
        """Start agents, and check what their hosts have and see."""
        cfg = self.cfg
        agents.connect()
        environment = preflight.forwarded_environment(cfg)
        paths = [] if cfg.resume is None else [cfg.resume]
        agents.send_setup(cfg.cluster.bind, cfg.cluster.hang_seconds, self.run_dir, environment, paths)
        for host, report in agents.reports.items():
            if cfg.checkpoint.name != "none" and not report.shared:
                folder, instead = str(self.run_dir), "checkpoint=none"
                report.faults.append(preflight.path_not_visible(host, "the run directory", folder, instead))
            for path in (path for path, visible in report.sees.items() if not visible):
                report.faults.append(preflight.path_not_visible(host, "the checkpoint", path, "another resume="))
        agents.check_imports(preflight.named_classes(cfg))

    def _send_data(self, agents: HostAgents) -> None:
        """Check that hosts can take part in an all-reduce, if there is one, and send them the data."""
        if self.cfg.collects and len(self.hosts) > 1:
            for host, report in agents.reports.items():
                report.faults += preflight.ring(host, report.facts, report.address)
        agents.give_data(self.dataset.path, self.dataset.fingerprint, self.cfg.data.get("cache"), self.show.show_step)

    def _check_memory(self) -> None:
        for host, count in preflight.bytes_on(self.cfg, self.dataset, self.placed).items():
            report = self.agents.reports[host]
            report.needs = count
            if report.facts:
                report.faults += preflight.memory(host, int(report.facts["memory"]), count)

    def _threads(self) -> int:
        """Return the number of threads per worker, determined by the host with the fewest cores per worker."""
        workers = [host for process, host in self.placed.items() if process[0] == "W"]
        cores = {host: int(report.facts["cores"]) for host, report in self.agents.reports.items()}
        return max(1, min(cores[host] // (workers.count(host) * self.cfg.compute_threads) for host in set(workers)))

    # -- hosts that are lost ------------------------------------------------------------------------

    def _watch(self, link: AgentConnection) -> None:
        link.on_report = self._on_report
        link.on_lost = lambda why: self._lost(link.host, why)

    def _lost(self, host: str, why: str) -> None:
        self.show.print_line(f"  Host {host} is gone: {why}.")
        if self._restores:
            self._restorers.append(threading.Thread(target=self._restore, args=(host,), daemon=True))
            self._restorers[-1].start()

    def _restore(self, host: str) -> None:
        """Start agents for a lost host until one can be used, and move the host's workers to it.

        Servers stay where they are: what they hold would be lost. Why an agent that answers cannot be used is printed,
        once for each reason."""
        printed = set[str]()
        while not self._stopped.wait(RESTORE_SECONDS):
            agents = HostAgents([host], self.agents.start, self.agents.folder, self.agents.patience)
            self._restoring.append(agents)
            self._connect(agents)
            self._send_data(agents)
            if not agents.faults and not self._stopped.is_set():
                break
            self._restoring.remove(agents)
            agents.close()
            why = " ".join(agents.faults)
            if agents.reports[host].facts and why not in printed and not self._stopped.is_set():
                printed.add(why)
                self.show.print_line(f"  Host {host} is there again, but cannot be used. {why}")
        else:
            return
        self._watch(agents.links[host])
        lost, self.agents.links[host] = self.agents.links[host], agents.links[host]
        lost.close()
        self.agents.reports[host] = agents.reports[host]
        moved = [
            child
            for child in list(self.running)
            if self._original_hosts.get(child.name) == host and child.name[0] == "W"
        ]
        self.show.print_line(
            f"  Host {host} is there again; it gets {', '.join(child.name for child in moved) or 'no worker'}."
        )
        for child in moved:
            self.placed[child.name] = host
            child.process.kill()

    # -- processes ----------------------------------------------------------------------------------

    def replace(self, name: str, again: bool = False) -> None:
        """Start a replacement, on another host if the process's own host is lost.

        With `again`, also where the own host may not reach all others."""
        live = [host for host, link in self.agents.links.items() if link.lost_reason is None]
        elsewhere = [host for host in live if host != self.placed[name]]
        where = successor(name, self.placed, self.hosts, (again and elsewhere) or live)
        if where is None:
            why = self.agents.links[self.placed[name]].lost_reason
            raise ClusterError(f"Every host is gone, {self.placed[name]} because {why}{resume_hint(self.run_dir)}.")
        if again:
            before = next(child for child in reversed(self.abandoned) if child.name == name)
            again_there = f"{name} is started again on host {where}."
            sentences = (before.exit_sentence(), self._broken_connection(before), again_there)
            self.show.print_line(f"  {' '.join(filter(None, sentences))}")
        self.placed[name] = where
        super().replace(name)

    def failure(self) -> tuple[str, bool] | None:
        """Return the failure that ends the run; a worker that lost a live server indicates a network failure."""
        found = super().failure()
        if found is None or found[1]:
            return found
        failed = {child.name for child in self.running if child.process.poll() not in (None, 0)}
        for child in self.running:
            broken = self._broken_connection(child, failed)
            if broken:
                return f"{child.exit_sentence()} {broken}", False
        return found

    def _broken_connection(self, child: ChildProcess, ended: Collection[str] = ()) -> str:
        """Describe the failed connection between hosts that ended a process; "" if its message names none."""
        addresses = {report.address: host for host, report in self.agents.reports.items()}
        places = {name: host for name, host in self.placed.items() if name not in ended}
        return preflight.broken_connection(
            self.placed.get(child.name, ""), child.exit_sentence() or "", {**addresses, **places}
        )

    def _begin(self, boot: StartupDocument, environment: dict[str, str], log: Path) -> None:
        if boot.role == "coordinator":
            super()._begin(boot, environment, log)
            return
        name = str(boot.peer)
        log.touch()
        process = RemoteProcess(self.agents.links[self.placed[name]], boot.log_name)
        self._remote[boot.log_name] = process  # its agent may report its end before it confirms its start
        seat = self._place_among_workers(name)
        process.start(boot=dataclasses.asdict(boot), environment=environment, seat=seat)
        self.running.append(StartedRemoteProcess(name, process, log))

    def _place_among_workers(self, name: str) -> list[int] | None:
        """Return [index of the worker on its host, number of workers there]; None if workers are not pinned."""
        if name[0] != "W" or self.cfg.cluster.pin != "auto":
            return None
        same_host = sorted(int(p[1:]) for p, host in self.placed.items() if p[0] == "W" and host == self.placed[name])
        return [same_host.index(int(name[1:])), len(same_host)]

    def _on_report(self, kind: str, fields: dict[str, object]) -> None:
        """Handle an agent's report: append to a process's log or trace, or record its exit code.

        Runs in the thread of the agent's connection."""
        name = fields.get("name")
        if not isinstance(name, str) or not NODE.fullmatch(name):
            return
        data, code = fields.get("data"), fields.get("code")
        files = files_of(self.run_dir, name)
        if kind in files and isinstance(data, bytes):
            with files[kind].open("ab") as file:
                file.write(data)
        elif kind == "exited" and isinstance(code, int) and name in self._remote:
            self._remote[name].ended(code)

    def stop(self) -> None:
        """Stop all processes, then all agents."""
        self._stopped.set()
        try:
            super().stop()
        finally:
            for agents in [self.agents, *self._restoring]:
                agents.close()
            for restorer in self._restorers:  # at the interpreter's end it could begin nothing more, and would fail
                restorer.join(WAIT_SECONDS)


def rank_slots(hosts: Sequence[Host], workers: int, interfaces: Mapping[str, str]) -> list[RankSlot]:
    """Return the RankSlot (host, local rank, interface) of each of `workers` ranks. Raises MissingDependencyError."""
    util = horovod_launcher()[2]
    infos = [util.HostInfo(host.name, host.slots) for host in hosts]
    found = util.get_host_assignments(infos, workers, workers)
    return [
        RankSlot(s.hostname, s.local_rank, s.local_size, s.cross_rank, s.cross_size, s.size, interfaces[s.hostname])
        for s in sorted(found, key=lambda slot: int(slot.rank))
    ]
