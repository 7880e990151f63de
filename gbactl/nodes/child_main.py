"""Entry point of every child process: `python -m gbactl.nodes.child_main`, with its start-up document on stdin.

The process logs to logs/<node>.log in the run directory, each line prefixed with the node's name, and dies with its
launcher. With `fork-server` as first argument it imports what nodes need and forks them (see engine/fork_server.py).
`cpu-hog LAUNCHER CORE BEGIN END` takes one core's CPU time for a window of seconds, for the fault plan: nice 0, pinned.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from gbactl.wire.startup_document import StartupDocument

PR_SET_PDEATHSIG = 1
FORK_SERVER, READY = "fork-server", b"ready"
CPU_HOG = "cpu-hog"
# exit codes: a failure; that of another process, which this one noticed; one that a replacement would repeat
FAILED, NOTICED, ENDS_RUN = 1, 3, 4
IMPORTED = (
    "gbactl.nodes.worker_process",
    "gbactl.coordinator.event_routing",
    "gbactl.server.shard_server",
    "sklearn.metrics",
)
MOST_BYTES, MOST_FDS = 1 << 20, 16  # limits of a request to fork


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the launcher dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


@contextlib.contextmanager
def node_log(run_dir: Path, node: str) -> Iterator[None]:
    """Context in which gbactl's loggers write to logs/<node>.log of a run, created when the first line is logged."""
    handler = logging.FileHandler(run_dir / "logs" / f"{node}.log", delay=True)
    handler.setFormatter(logging.Formatter(f"%(asctime)s.%(msecs)03d {node} %(levelname)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("gbactl")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
        with contextlib.suppress(OSError):  # a full disk must not hide the error with which the run ends
            handler.close()


def serve_forks(launcher: int) -> None:
    """Fork a node at each request on standard input until the launcher is gone. Returns in each forked process.

    A fork copies only one thread: exits at once if an import has started another one. A request with a model is
    answered with its size."""
    line = socket.socket(fileno=os.dup(0))
    gc.disable()  # collecting garbage takes a tenth of the imports' CPU time
    for module in IMPORTED:
        importlib.import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        sys.exit(1)
    gc.freeze()  # otherwise each node's garbage collections copy the memory that it shares with the others
    gc.enable()
    line.send(READY)
    while True:
        data, fds, *_ = socket.recv_fds(line, MOST_BYTES, MOST_FDS)
        if not data:
            sys.exit(0)
        asked = json.loads(data)
        if "model" in asked:
            line.send(json.dumps(_size_of(**asked)).encode())
            continue
        pid = _fork_orphan(launcher)
        if pid == 0:
            line.detach()
            _set_up_fork(launcher, asked, fds)
            return
        line.send(str(pid).encode())
        for fd in fds:
            os.close(fd)


def _size_of(model: dict[str, Any], shape: list[Any]) -> int | str:
    """Count a model's dense values; return the error message instead if the model cannot be built."""
    from gbactl.errors import ConfigError
    from gbactl.models import ModelConfig, dense_size

    try:
        return dense_size(ModelConfig(**model), *shape)
    except ConfigError as error:
        return str(error)


def _fork_orphan(launcher: int) -> int:
    """Fork a process that becomes the launcher's child. Returns its pid, and 0 in the new process."""
    read, write = os.pipe()
    between = os.fork()
    if between:
        os.close(write)
        os.waitpid(between, 0)
        with os.fdopen(read) as pipe:
            return int(pipe.read())
    own = os.getpid()
    node = os.fork()
    if node:
        os.write(write, str(node).encode())
        os._exit(0)
    while os.getppid() == own:
        time.sleep(0.001)
    die_with_parent(launcher)
    return 0


def _set_up_fork(launcher: int, asked: dict[str, Any], fds: list[int]) -> None:
    """Give a forked process the folder, environment, file descriptors and arguments that the fork request names.

    `asked` is the fork request. All other file descriptors are closed."""
    os.setsid()
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    wanted = [0, 1, 2, *asked["fds"]]
    for fd, number in zip([fcntl.fcntl(fd, fcntl.F_DUPFD, max(wanted) + 1) for fd in fds], wanted, strict=True):
        os.dup2(fd, number)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in wanted:
            with contextlib.suppress(OSError):  # the descriptor by which the folder was listed
                os.close(number)
    sys.argv[1:] = [str(launcher), asked["name"]]
    _show_arguments(f"{FORK_SERVER}\0{launcher}\0", f"{launcher}\0{asked['name']}\0")


def _show_arguments(before: str, after: str) -> None:
    """Change this process's arguments as ps and py-spy show them, if the kernel tells where they are."""
    shown = Path("/proc/self/cmdline").read_bytes()
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if end - start == len(shown):
        changed = shown.replace(before.encode(), after.encode())
        ctypes.memmove(start, changed[: len(shown)].ljust(len(shown), b"\0"), len(shown))


def use_core(core: str, begin: str, end: str) -> None:
    """Occupy a core by computing from `begin` to `end`, in seconds from now; an empty end means forever."""
    began = time.monotonic()
    os.sched_setaffinity(0, {int(core)})
    time.sleep(float(begin))
    last = began + float(end) if end else float("inf")
    while time.monotonic() < last:
        for _ in range(100_000):
            pass


def main() -> None:
    """Run the node of the start-up document; exit 0 or, after a failure, with the code of its kind."""
    special = sys.argv[1] in (FORK_SERVER, CPU_HOG)
    parent = int(sys.argv[2 if special else 1])
    die_with_parent(parent)
    if sys.argv[1] == FORK_SERVER:
        serve_forks(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.argv[1] == CPU_HOG:
        use_core(*sys.argv[3:])
        return
    line = sys.stdin.buffer.readline()
    from gbactl.wire.startup_document import StartupDocument

    boot = StartupDocument.loads(line)
    with node_log(Path(boot.run_dir), boot.log_name):
        _run_role(boot)


def _run_role(boot: StartupDocument) -> NoReturn:
    """Run a node and exit; after a failure, the last CRITICAL line of its log tells the reason.

    The exit waits for no other thread and for no teardown of torch and Horovod: nothing is left to save."""
    from gbactl.configured_classes import own_code_told
    from gbactl.errors import GbactlError, OwnCodeError, PeerGoneError, UsageError
    from gbactl.nodes import role_setup
    from gbactl.wire.node_measurements import NodeTimes, Trace

    log = logging.getLogger("gbactl.process")
    log.info("pid %d, threads %s", os.getpid(), os.environ.get("OMP_NUM_THREADS"))
    run = role_setup.run_coordinator if boot.role == "coordinator" else role_setup.run_node
    NodeTimes.trace = Trace.of_process(Path(boot.run_dir), boot.log_name)
    failure: Exception | None = None
    try:
        with own_code_told(OwnCodeError):
            run(boot)
        log.info("done")
    except GbactlError as error:
        failure = error
        log.critical("%s", error, exc_info=error.__cause__)
    except Exception as error:
        failure = error
        log.critical("%s: %s", type(error).__name__, error, exc_info=error)
    if NodeTimes.trace is not None:
        NodeTimes.trace.write()
    for stream in (sys.stdout, sys.stderr):  # what a user's code has printed
        with contextlib.suppress(OSError):
            stream.flush()
    # the frames of `failure` keep the node's connections open until now: nobody takes it for lost and kills it before
    repeated = isinstance(failure, OwnCodeError | UsageError)
    noticed = isinstance(failure, PeerGoneError)
    os._exit(0 if failure is None else NOTICED if noticed else ENDS_RUN if repeated else FAILED)


if __name__ == "__main__":
    main()
