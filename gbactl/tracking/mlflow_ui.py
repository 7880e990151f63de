"""MLflow UI as a child process: serves one store on loopback and ends with this process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import IO

from gbactl.errors import TrackingError, UsageError
from gbactl.tracking.mlflow_store import ensure_store, sqlite_path, start_page, tracking_uri

HOST = "127.0.0.1"
_START_SECONDS = 90.0


def command_line(uri: str, port: int) -> list[str]:
    """Return the command line that starts the MLflow UI."""
    return [
        *(sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", uri),
        *("--host", HOST, "--port", str(port), "--workers", "1"),
    ]


def serve(uri: str | None, port: int, say: Callable[[str], None]) -> None:
    """Run the MLflow UI until Ctrl-C, then end it. Raises UsageError if the port is in use."""
    where = tracking_uri(uri=uri)
    if where.startswith(("http://", "https://")):
        say(f"The tracking store is a server with a UI of its own; open {where}")
        return
    _check_port(port)
    ensure_store(where)
    page = start_page(where)
    say(f"Starting the MLflow UI on {sqlite_path(where) or where} ...")
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    # SIGINT, too: a shell may have set it to be ignored, and a library may restart system calls after it.
    for ends in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ends, signal.default_int_handler)
    with tempfile.TemporaryFile() as log:
        # Its own session, so that Ctrl-C reaches this process alone and one signal then ends all processes of the UI.
        process = subprocess.Popen(
            command_line(where, port), env=environment, start_new_session=True, stdout=log, stderr=log
        )
        try:
            _wait_until_up(process, port, log)
            say(f"Open http://{HOST}:{port}{page} (Ctrl-C ends it)")
            process.wait()
        except KeyboardInterrupt:
            say("stopped.")
        finally:
            _end(process)


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(f"Port {port} cannot be used ({error.strerror}); type --port with another.") from error


def _wait_until_up(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()
            raise TrackingError(f"The MLflow UI did not start: {said[-1] if said else 'it said nothing'}")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.2)
    raise TrackingError(f"The MLflow UI did not answer within {_START_SECONDS:.0f} s.")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the UI's process session: SIGTERM first, then SIGKILL."""
    for how, wait in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        try:
            os.killpg(process.pid, how)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and _alive(process):
            time.sleep(0.05)


def _alive(process: subprocess.Popen[bytes]) -> bool:
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True
