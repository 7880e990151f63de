"""Slurm cluster of two nodes on this machine: munged, slurmctld and two slurmd with their own ports and folder.

`python -m tests.support.slurm_cluster` (`make slurm-cluster`) runs one until Ctrl-C; docs/how-to/run-on-a-scheduler.md
uses it. The partition `urgent` preempts jobs of the default one, `p`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
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
        self.started: dict[str, subprocess.Popen[bytes]] = {}  # by daemon or node, in the order of their start

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        folder, host = self.folder, socket.gethostname().split(".")[0]
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o400)
        own = [f"--{name}={folder / file}" for name, file in MUNGE.items()]
        self.begin("munged", "munged", "--foreground", "--force", *own)
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs=2 State=UNKNOWN\n"
            for name in NODES
        ]
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (folder / name).mkdir()
        text = CONF.format(folder=folder, host=host, port=free_port(), nodes=",".join(NODES), lines="".join(nodes))
        (folder / "slurm.conf").write_text(text)
        wait_for(lambda: (folder / "munge.socket").exists(), 20)
        self.controller()
        for node in NODES:
            self.node(node)
        self.idle()

    def begin(self, name: str, *command: str) -> None:
        """Start a daemon under a name, in place of the one that had it."""
        with (self.folder / "daemons.log").open("ab") as log:
            self.started[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def controller(self) -> None:
        """Start slurmctld."""
        self.begin("slurmctld", "slurmctld", "-D")

    def node(self, name: str) -> None:
        """Start a node's slurmd."""
        self.begin(name, "slurmd", "-D", "-N", name)

    def idle(self) -> None:
        """Wait until both nodes are idle."""
        wait_for(lambda: self.ask("sinfo", "-h", "-p", "p", "-o", "%T %D").split() == ["idle", "2"], 40)

    def ask(self, *command: str) -> str:
        """Return the output of one of Slurm's commands; "" where it fails."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=30)
        return done.stdout.strip() if done.returncode == 0 else ""

    def lose(self, node: str) -> None:
        """Kill a node's slurmd and all that Slurm has started there, as its power failure would; Slurm sees it down."""
        sockets = {
            line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if f"spool-{node}/" in line
        }
        mark = f"SLURMD_NODENAME={node}".encode()
        self.kill(node)
        steps, tasks = [], []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if b"slurmstepd" in (process / "cmdline").read_bytes():
                    open_files = {os.readlink(file) for file in (process / "fd").iterdir()}
                    steps += [int(process.name)] * any(f"socket:[{each}]" in open_files for each in sockets)
                elif mark in (process / "environ").read_bytes().split(b"\0"):
                    tasks.append(int(process.name))
        for pid in (*steps, *tasks):  # a slurmstepd would report the end of its tasks
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.ask("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def recover(self, node: str) -> None:
        """Start the slurmd of a lost node again."""
        self.node(node)
        self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def kill(self, name: str) -> None:
        """Kill a daemon: slurmctld, or a node's slurmd."""
        self.started[name].kill()
        self.started[name].wait()

    def stop(self) -> None:
        """Cancel all jobs, and end the daemons."""
        self.ask("scancel", "--user=root")
        time.sleep(0.2)
        daemons = list(reversed(self.started.values()))
        for daemon in daemons:
            daemon.send_signal(signal.SIGTERM)
        for daemon in daemons:
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
AuthInfo=socket={folder}/munge.socket,cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=30
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
{lines}PartitionName=p Nodes={nodes} Default=YES State=UP PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes={nodes} State=UP PriorityTier=2 PreemptMode=OFF
"""


def main() -> None:
    """Run a cluster until Ctrl-C or SIGTERM, and say how to use it."""
    if why := obstacle():
        raise SystemExit(f"There can be no Slurm cluster here: {why}.")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="gbactl-slurm-") as folder:
        cluster = SlurmCluster(Path(folder))
        try:
            cluster.start()
            print(f"Nodes {' and '.join(NODES)} are idle until Ctrl-C; type in another terminal:", flush=True)
            print(f"export SLURM_CONF={folder}/slurm.conf", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
