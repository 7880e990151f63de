"""The fork server of a command in tests: forked from the command, which has imported what nodes import already.

Starting Python with PyTorch for it would be most of the work of a short run. A command with an environment of its own,
one typed to a shell, and tests/unit/engine/test_fork_server.py start it as users do.
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from gbactl.engine import fork_server
from gbactl.engine.fork_server import NO_THREAD, ForkedProcess, ForkServer, ProcessHandle, thread_environment
from gbactl.nodes import child_main

IMPORTED = child_main.IMPORTED
ENVIRONMENT = {**thread_environment(1), **NO_THREAD}  # read by what is imported


class ForkedServer(ForkServer):
    """Fork server without a Python of its own."""

    def _start(self, line: socket.socket) -> ProcessHandle:
        pid = os.fork()
        if pid == 0:
            _serve(line.fileno(), self.owner)
        return ForkedProcess(pid, io.BytesIO())


def install() -> None:
    """Have this process fork its fork server."""
    fork_server.ForkServer = ForkedServer  # type: ignore[misc]


def _serve(line: int, launcher: int) -> NoReturn:
    """Be a fork server, or a node that it forks, as a new process with these arguments would."""
    code = 1
    try:
        os.setsid()
        atexit._clear()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(line, 0)
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        os.closerange(3, 1 << 20)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        os.environ.update(ENVIRONMENT)
        sys.argv = ["child_main", child_main.FORK_SERVER, str(launcher)]
        told = "\0".join(["python", "-m", child_main.__name__, *sys.argv[1:], ""])
        child_main._show_arguments(Path("/proc/self/cmdline").read_text(), told)
        child_main.main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
