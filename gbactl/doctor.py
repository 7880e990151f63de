"""`gbactl doctor`: check whether this machine, or an engine's hosts, have what a run needs, one line for each check.

This machine's checks cost about two seconds, nearly all of it importing torch and Horovod, and write nothing. An
engine's hosts are checked by agents, started as a run starts them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gbactl import shared_memory_names
from gbactl.errors import GbactlError, first_line

if TYPE_CHECKING:
    from gbactl.config import RunConfig
    from gbactl.engine.host_agents import HostFindings
    from gbactl.engine.host_placement import Host
    from gbactl.engine.hosts import HostsEngine
    from gbactl.engine.preflight import HostReport

MEBI = 1 << 20
ENOUGH_SHARED = 256 * MEBI
ENOUGH_DISK = 2048 * MEBI
HOST_SECONDS = 60.0  # for a host's first answer; of silence
THREAD_SETTINGS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY")


@dataclass(frozen=True)
class Check:
    """Result of one check; only `essential` checks decide the exit code; `advice` says what to do if not ok."""

    name: str
    found: str
    ok: bool = True
    essential: bool = False
    advice: str = ""


def check_python() -> Check:
    """Check that Python is 3.11 or later."""
    found = platform.python_version()
    return Check("Python", found, sys.version_info >= (3, 11), True, "install Python 3.11")


def check_torch() -> Check:
    """Check that torch can be imported, and show which build it is."""
    try:
        import torch
    except Exception as error:
        return Check("torch", first_line(error), False, True, "type make install, or pip install torch==2.13.0")
    return Check("torch", f"{torch.__version__}, {'CUDA' if torch.version.cuda else 'CPU'} build")


def check_horovod() -> Check:
    """Check that Horovod can be imported and was built with Gloo."""
    from gbactl.collective.horovod import import_horovod
    from gbactl.install import version

    try:
        hvd = import_horovod()
    except GbactlError as error:
        advice = "type make install or python -m gbactl.install.horovod; or use collective=gloo"
        return Check("Horovod", first_line(error.__cause__ or error), False, False, advice)
    parts = {"Gloo": hvd.gloo_built(), "MPI": hvd.mpi_built(), "NCCL": bool(hvd.nccl_built())}
    found = f"{version('horovod')}, built with {', '.join(k for k, v in parts.items() if v) or 'nothing'}"
    advice = "build it again: python -m gbactl.install.horovod"
    return Check("Horovod", found, parts["Gloo"], False, advice)


def check_kernels() -> Check:
    """Check whether the compiled row kernels or their slower torch twin are used."""
    from gbactl.kernels import load

    native = load().name == "native"
    advice = "install a C++ compiler and type python -m gbactl.kernels.build (5x faster servers)"
    return Check("row kernels", "native (compiled)" if native else "torch twin", native, False, advice)


def check_cores() -> Check:
    """Show how many cores this process may use."""
    from gbactl.host_limits import usable_cores

    usable = usable_cores()
    return Check("cores", f"{usable} usable of {os.cpu_count()}", usable >= 2, False, "2 or more are better")


def check_bf16() -> Check:
    """Check whether the processor has instructions for bf16 matrix products."""
    from gbactl.cpu import lacks_bf16, widest

    found = f"{widest() or 'not told'}{', nothing for bf16' if lacks_bf16() else ''}"
    return Check("processor", found, not lacks_bf16(), False, "train with precision=fp32: it is faster here")


def check_threads() -> Check:
    """Show the thread settings in the environment; the launcher sets its workers' own."""
    found = ", ".join(f"{key}={os.environ.get(key, '-')}" for key in THREAD_SETTINGS)
    return Check("threads", f"{found} (train sets them for its workers)")


def check_shared_memory() -> Check:
    """Check the free space in /dev/shm, through which payloads travel on one host."""
    advice = "enlarge /dev/shm, or train with cluster.transport=tcp"
    if not shared_memory_names.available():
        return Check("shared memory", "no /dev/shm, or read-only", False, False, "do not train with collective=shm")
    free = shutil.disk_usage(shared_memory_names.DIRECTORY).free
    return Check("shared memory", f"{free // MEBI:,} MiB free", free >= ENOUGH_SHARED, False, advice)


def check_own_name() -> Check:
    """Check that this machine's host name resolves to an address, on which Horovod's ring listens."""
    from gbactl.collective.gloo import address_of_own_name

    name, address = socket.gethostname(), address_of_own_name()
    advice = f"put the line `127.0.0.1 {name}` into /etc/hosts, or train with collective=shm"
    return Check("own name", f"{name}: {address or 'no address'}", bool(address), False, advice)


def check_cache() -> Check:
    """Check the free disk space in the folder of prepared data."""
    from gbactl.data.cache import cache_root

    path = cache_root({})
    existing = _existing(path)
    free = shutil.disk_usage(existing).free
    ok = free >= ENOUGH_DISK and os.access(existing, os.W_OK)
    return Check("data cache", f"{path}: {free // MEBI:,} MiB free", ok, False, "set GBACTL_CACHE=FOLDER")


def check_tracking() -> Check:
    """Check that the MLflow store can be opened, created, or reached."""
    from gbactl.tracking.mlflow_store import sqlite_path, tracking_uri

    advice = "set MLFLOW_TRACKING_URI, for instance to sqlite:///mlflow.db"
    try:
        uri = tracking_uri()
        path = sqlite_path(uri)
        found = f"{_without_password(uri)}: {_sqlite(path) if path else _server(uri)}"
    except (GbactlError, OSError, sqlite3.Error, ValueError) as error:
        return Check("tracking store", first_line(error), False, True, advice)
    return Check("tracking store", found)


def check_compiler() -> Check:
    """Check for a C++ compiler, which is needed only at installation."""
    from gbactl.install.horovod import find_compiler

    compiler = find_compiler()
    advice = "install g++, which builds Horovod and the row kernels"
    return Check("C++ compiler", " ".join(compiler) or "none", bool(compiler), False, advice)


def check_cmake() -> Check:
    """Check for cmake, which is needed only to build Horovod."""
    from gbactl.install.horovod import OLDEST_CMAKE, cmake_version

    version = cmake_version("cmake")
    found = ".".join(map(str, version)) or "none"
    advice = "install cmake 3.13 or later, which builds Horovod"
    return Check("cmake", found, version >= OLDEST_CMAKE, False, advice)


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python, check_torch, check_horovod, check_kernels, check_cores, check_bf16, check_threads,
    check_shared_memory, check_own_name, check_cache, check_tracking, check_compiler, check_cmake,
)  # fmt: skip


def examine() -> list[Check]:
    """Run all checks; an unexpected exception becomes the line of its check."""
    return [_guarded(check) for check in CHECKS]


def examine_hosts(cfg: RunConfig, engine: HostsEngine, measure: bool) -> tuple[list[Check], HostFindings]:
    """Check the hosts of a run's engine by starting agents there; `measure`: also measure the connections.

    A folder where run directories are made shows whether the hosts share it. Raises GbactlError where nothing can be
    checked."""
    from gbactl.engine.host_agents import HostAgents, HostFindings
    from gbactl.engine.host_placement import hosts_of, slots
    from gbactl.engine.preflight import forwarded_environment, named_classes

    cluster, hosts = cfg.cluster, hosts_of(cfg.cluster.hosts)
    runs, names = _existing(Path(cfg.run_dir or "runs/new").parent), [host.name for host in hosts]
    with tempfile.TemporaryDirectory(prefix=".gbactl-doctor-", dir=runs) as folder:
        agents = HostAgents(names, functools.partial(engine.agent, cluster), Path(folder), HOST_SECONDS)
        try:
            agents.connect()
            agents.send_setup(cluster.bind, HOST_SECONDS, Path(folder), forwarded_environment(cfg))
            agents.check_imports(named_classes(cfg))
            agents.lines(measure)
        finally:
            agents.close()
    found = HostFindings(agents.reports)
    checks = [Check("slots", f"{slots(hosts)} for {cluster.workers} workers: {', '.join(cluster.hosts)}")]
    for host in hosts:
        report = found.reports[host.name]
        checks += [failure(f"host {host.name}", sentence) for sentence in report.faults]
        if report.ok:
            checks.append(_host(host, report))
    if any(report.facts for report in found.reports.values()):
        unseen = [host for host, report in found.reports.items() if not report.shared]
        seen = f"not seen by {', '.join(unseen)}" if unseen else "seen by every host that answers"
        advice = "for runs with checkpoint=, type run_dir= on a file system that all hosts share"
        essential = cfg.checkpoint.name != "none"
        checks.append(Check("run directory", f"{runs.resolve()}: {seen}", not unseen, essential, advice))
    more = [*found.advice, *filter(None, [engine.warning(cluster)])]
    return [*checks, *(failure("note", sentence, essential=False) for sentence in more)], found


def _host(host: Host, report: HostReport) -> Check:
    """Show what an answering host has."""
    facts = report.facts
    versions = f"gbactl {facts['gbactl']}, Python {facts['python']}, torch {facts['torch']}"
    has = f"{report.address}, {facts['cores']} cores for {host.slots} slots, {facts['memory'] // MEBI:,} MiB free"
    return Check(
        f"host {host.name}", f"{has}; {versions}", host.slots <= facts["cores"], False,
        f"type {host.name}:{facts['cores']} in cluster.hosts",
    )  # fmt: skip


def failure(name: str, sentence: str, essential: bool = True) -> Check:
    """Make a failed check from an error sentence, of which the part after the semicolon is the advice."""
    found, _, advice = sentence.rstrip(".").partition("; ")
    return Check(name, found, False, essential, advice or "see above")


def exit_code(checks: list[Check]) -> int:
    """Return the exit code: 1 if an essential check failed, else 0."""
    return int(any(check.essential and not check.ok for check in checks))


def as_json(checks: list[Check], more: Mapping[str, Any] | None = None) -> str:
    """Format the checks as a JSON object, with `more` fields."""
    rows = [dataclasses.asdict(check) for check in checks]
    return json.dumps({"ok": exit_code(checks) == 0, "checks": rows, **(more or {})}, indent=2)


def print_table(checks: list[Check]) -> None:
    """Print the checks as a table, 80 columns wide if the output is a pipe."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 80, highlight=False)
    table = Table("check", "found", "state", box=None, pad_edge=False, header_style="bold")
    table.columns[1].overflow = table.columns[2].overflow = "fold"
    for check in checks:
        colour = "green" if check.ok else "red" if check.essential else "yellow"
        state = "ok" if check.ok else f"{'MISSING' if check.essential else 'note'}: {check.advice}"
        table.add_row(check.name, escape(check.found), f"[{colour}]{escape(state)}[/]")
    console.print(table)


def _guarded(check: Callable[[], Check]) -> Check:
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        return check()
    except Exception as error:
        return Check(name, first_line(error), False, False, "see gbactl --debug")


def _existing(path: Path) -> Path:
    """Return the nearest existing folder at or above `path`."""
    return path if path.exists() else _existing(path.parent)


def _sqlite(path: Path) -> str:
    if not path.exists():
        if not os.access(_existing(path.parent), os.W_OK):
            raise PermissionError(f"{path.parent} cannot be written")
        return "will be made"
    with sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5) as store:
        store.execute("select count(*) from sqlite_master").fetchone()
    if not os.access(path, os.W_OK):
        raise PermissionError(f"{path} cannot be written")
    return "can be opened"


def _server(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https"):
        return "not tried"
    address = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
    with socket.create_connection(address, timeout=3):
        return "answers"


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    return uri.replace(f":{parts.password}@", ":***@") if parts.password else uri
