"""Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd with their own ports and folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.processes import collective, wait_for
from tests.support.sockets import free_port

NODES = ("n1", "n2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "salloc")


def obstacle() -> str | None:
    """Return why there can be no Slurm cluster here; None if there can."""
    if os.geteuid() != 0:
        return "slurmd needs root"
    if any(shutil.which(program) is None for program in PROGRAMS):
        return "a Slurm cluster needs the Debian packages slurmctld, slurmd, slurm-client and munge"
    return None if collective() == "horovod" else "cluster=slurm needs Horovod's launcher"


class SlurmCluster:
    """Slurm cluster in a folder; `environment` selects it for Slurm's commands."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        folder, host = self.folder, socket.gethostname().split(".")[0]
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        own = [f"--{name}={folder / file}" for name, file in MUNGE.items()]
        self._begin("munged", "--foreground", "--force", *own)
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 State=UNKNOWN\n"
            for name in NODES
        ]
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        text = CONF.format(folder=folder, host=host, port=free_port()) + "".join(nodes)
        (folder / "slurm.conf").write_text(text + f"PartitionName=p Nodes={','.join(NODES)} Default=YES State=UP\n")
        wait_for(lambda: (folder / "munge.socket").exists(), 20)
        self._begin("slurmctld", "-D")
        for node in NODES:
            self._begin("slurmd", "-D", "-N", node)
        wait_for(lambda: self.ask("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"], 40)

    def _begin(self, *command: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self.started.append(
                subprocess.Popen(
                    command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,
                )
            )  # fmt: skip

    def ask(self, *command: str) -> str:
        """Return the output of one of Slurm's commands; "" where it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""

    def lose(self, node: str) -> None:
        """Kill a node's slurmd and all that Slurm has started there, as its power failure would."""
        self.started[2 + NODES.index(node)].send_signal(signal.SIGKILL)
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if f"SLURMD_NODENAME={node}".encode() in entry.read_bytes().split(b"\0"):
                    os.kill(int(entry.parent.name), signal.SIGKILL)

    def stop(self) -> None:
        """Cancel all jobs, and end the daemons."""
        self.ask("scancel", "--user=root")
        time.sleep(0.2)
        for daemon in reversed(self.started):
            daemon.send_signal(signal.SIGTERM)
        for daemon in reversed(self.started):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


MUNGE = {
    "key-file": "munge.key", "socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log",
    "seed-file": "munge.seed",
}  # fmt: skip
CONF = """ClusterName=gbactl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
"""
