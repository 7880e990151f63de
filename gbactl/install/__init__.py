"""Installation of a checkout (virtual environment, libraries, Horovod), and versions of packages and of the code.

It imports the standard library alone. Each command that it runs costs one thread; the command's output goes to a log
file, whose end is shown when the command fails.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from gbactl.errors import GbactlError

HEARTBEAT_SECONDS = 15.0
TAIL_LINES = 25
PACKAGE = Path(__file__).resolve().parents[1]
NUMBERS_DO_NOT_DEPEND_ON = ("advise", "calibration", "cli", "report", "tracking", "install", "doctor.py", "__pycache__")


class InstallError(GbactlError):
    """Failure of an installation step; the sentence names the step, and the reason or where it stands."""


def version(package: str) -> str:
    """Return an installed package's version without importing it; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def code_version(package: Path = PACKAGE) -> str:
    """Hash (12 hex digits) every source file on which a run's numbers can depend."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")) or [package]:
        parts = path.relative_to(package).parts
        if path.suffix in (".py", ".cpp") and not set(parts) & set(NUMBERS_DO_NOT_DEPEND_ON):
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def running_code() -> str:
    """Return the hash of the code that this process runs: as of the first call, before any later edits."""
    return code_version()


def say(text: str) -> None:
    """Print a progress line on standard error, unbuffered."""
    print(f"[install] {text}", file=sys.stderr, flush=True)


@contextmanager
def heartbeat(what: str, about: str = "", every: float = HEARTBEAT_SECONDS) -> Iterator[None]:
    """Print that the step `what` begins, every 15 s that it still runs, and at the end how long it took."""
    hint = f" (about {about})" if about else ""
    say(f"{what}{hint} ...")
    started, done = time.monotonic(), threading.Event()

    def beat() -> None:
        while not done.wait(every):
            say(f"{what}: {time.monotonic() - started:.0f} s{hint} ...")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    say(f"{what}: done in {time.monotonic() - started:.1f} s")


def run(what: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, about: str = "") -> None:
    """Run a command with its output in the file `log`. Raises InstallError with the log's last lines."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with heartbeat(what, about), log.open("wb") as out:
        code = subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=env, check=False).returncode
        if code == 0:
            return
    tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
    print("\n".join(f"    {line}" for line in tail), file=sys.stderr)
    raise InstallError(f"{what} failed with exit code {code}; the whole output is in {log}.")
