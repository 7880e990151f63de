"""Leftovers of a training on this machine: processes, shared memory, sockets, unfinished files. Linux."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from gbactl.collective.shared_memory import is_alive

PROC, SHM = Path("/proc"), Path("/dev/shm")
GRACE_SECONDS = 10.0
UNFINISHED = ("*.partial", "*.tmp", "control.json", "rendezvous/*", "checkpoints/.gone-*")


def processes() -> Iterator[str]:
    """Live processes of any run."""
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if b"gbactl.nodes.child_main" in (entry / "cmdline").read_bytes() and is_alive(int(entry.name)):
                yield f"process {entry.name}"
        except OSError:  # the process has ended meanwhile
            continue


def running() -> set[str]:
    """Processes, and the sockets they listen on; both disappear when no run is active."""
    sockets = {
        f"socket {line.split()[-1]}" for line in (PROC / "net" / "unix").read_text().splitlines() if "@gbactl-" in line
    }
    return {*processes(), *sockets}


def torn(run_dir: Path) -> Iterator[Path]:
    """Checkpoints that were neither completed nor removed."""
    return (path for path in run_dir.glob("checkpoints/cut-*") if not (path / "manifest.json").exists())


def found(run_dir: Path) -> set[str]:
    """All leftovers that exist now."""
    memory = {f"shared memory {path.name}" for path in SHM.glob("gbactl-*")} if SHM.exists() else set()
    files = {f"file {path}" for pattern in UNFINISHED for path in run_dir.rglob(pattern)}
    return {*running(), *memory, *files, *(f"checkpoint {path}" for path in torn(run_dir))}


def wait(look: Callable[[], set[str]], before: set[str]) -> set[str]:
    """Leftovers that `look` finds beyond those `before`, after a grace period."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := look() - before) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
