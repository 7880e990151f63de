"""`gbactl` commands in processes forked from one that has already imported what they import: of most commands, starting
Python with PyTorch and MLflow would be the longest part."""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path
from unittest import mock

import gbactl
from gbactl.tracking.mlflow_store import quiet_mlflow
from tests.support import forked_server, stores

ROOT = str(Path(gbactl.__file__).parents[1])
MODULES = ("training", "commands_after_training", "commands_before_training")
IMPORTED = (
    "torch", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store", "alembic.command",
    "gbactl.launch.training_run", "gbactl.tracking.tracked_run", "gbactl.simulation",
    *(f"gbactl.cli.{name}" for name in MODULES), *forked_server.IMPORTED,
)  # fmt: skip
quiet_mlflow()  # importing it starts its telemetry otherwise
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(list(IMPORTED))


@atexit.register
def _end() -> None:
    """Kill what a failed test has left running: multiprocessing would wait for it."""
    for child in multiprocessing.active_children():
        child.kill()


def gbactl_main() -> None:
    """Run the command line as installed."""
    from gbactl.cli import main

    main()


def script_main() -> None:
    """Run a script as `python SCRIPT ARGUMENTS` does."""
    del sys.argv[0]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _run(
    body: Callable[[], None], arguments: tuple[str, ...], cwd: str, environment: dict[str, str],
    paths: tuple[str, str], store: Path,
) -> None:  # fmt: skip
    """Start of a command's process."""
    gc.freeze()  # otherwise garbage collections go through, and copy, the memory shared with the other commands
    atexit.unregister(_end)
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    first, *more = environment.get("PYTHONPATH", ROOT).split(os.pathsep)
    if first == ROOT:
        sys.path[:0] = more
        forked_server.install()
        stores.copy_from(store)
    else:  # another copy of gbactl
        for name in [name for name in sys.modules if name.partition(".")[0] == "gbactl"]:
            del sys.modules[name]
        sys.path[:0] = [first, *more]
    for number, path in enumerate(paths, start=1):
        file = os.open(path, os.O_WRONLY)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["gbactl", *arguments]
    try:
        body()
    finally:
        sys.stdout.flush()
        # as at an interpreter's end, which multiprocessing leaves out; joblib's idle workers live on for 5 minutes else
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


class Command:
    """A running command, or another `body` that reads sys.argv, with the methods of subprocess.Popen."""

    def __init__(
        self, arguments: tuple[str, ...], cwd: Path, environment: Mapping[str, str],
        body: Callable[[], None] = gbactl_main,
    ) -> None:  # fmt: skip
        self.args = ("gbactl", *arguments)
        self._files = [tempfile.NamedTemporaryFile(prefix="gbactl-test-") for _ in range(2)]  # noqa: SIM115
        paths = (self._files[0].name, self._files[1].name)
        given = (body, arguments, str(cwd), dict(environment), paths, stores.template)
        self._process = _forks.Process(target=_run, args=given)
        with mock.patch.dict(os.environ, forked_server.ENVIRONMENT):  # of the process that forks commands
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        connection.wait([self._process.sentinel], timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Standard output and error, after the end."""
        self.wait(timeout)
        out, err = (Path(file.name).read_text(errors="replace") for file in self._files)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str, cwd: Path, environment: Mapping[str, str], seconds: float = 120
) -> subprocess.CompletedProcess[str]:
    """`gbactl ARGUMENTS`, to its end."""
    command = Command(arguments, cwd, environment)
    try:
        out, err = command.communicate(seconds)
    except BaseException:
        command.kill()
        raise
    return subprocess.CompletedProcess(command.args, command.wait(), out, err)
