"""Ray cluster on this machine, in a process apart: its threads are none that a test's process could fork with.

Run as a module, it takes the commands `add NAME` and `remove NAME` on standard input, and answers each with a line.
"""

from __future__ import annotations

import copy
import fcntl
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import psutil

from tests.support.commands import ROOT
from tests.support.processes import SECONDS, collective

OBJECTS = 80 << 20  # bytes of a node's object store, about the least that Ray takes
BIN = Path(sys.executable).parent
JOBS, AUTOSCALER = "jobs", "autoscaler"
LOCK = Path(tempfile.gettempdir()) / f"gbactl-tests-ray-{os.getuid()}"
# an autoscaler that looks every second, and whose nodes are processes of this machine
HEAD_KIND, HEAD_ID = "ray.head.default", {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": f"{'f' * 51}00000"}
FAKE = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
QUICK = {"RAY_worker_niceness": "0"}  # else 15, with which training hardly begins beside other tests


def obstacle(more: Collection[str] = ()) -> str | None:
    """Return why there can be no Ray cluster here; None if there can. `more`: what the head is to have."""
    needed = ("ray", "aiohttp_cors", "opencensus") if JOBS in more else ("ray",)
    if any(importlib.util.find_spec(name) is None for name in needed):
        return "a Ray cluster needs the extra gbactl[ray]: pip install 'gbactl[ray]'"
    return None if collective() == "horovod" else "cluster=ray needs Horovod's launcher"


class RayCluster:
    """Ray cluster whose nodes have a CPU each; the first one is the head. `environment` selects it.

    `more`: what the head has, of JOBS (a server of jobs) and AUTOSCALER (one that starts one node at most). With JOBS
    it waits until no other test has a cluster: Ray gives a job the address of the machine's newest cluster."""

    def __init__(self, *nodes: str, more: Collection[str] = ()) -> None:
        self._lock = LOCK.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX if JOBS in more else fcntl.LOCK_SH)
        path = f"{BIN}:{os.environ['PATH']}"  # jobs type gbactl
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, **FAKE, **QUICK, "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}, start_new_session=True,
        )  # fmt: skip
        self.environment, self._jobs = {"RAY_ADDRESS": ""}, ""
        for name in nodes:
            self.environment["RAY_ADDRESS"], self._jobs = self.ask(f"add {name}")

    def ask(self, command: str) -> list[str]:
        """Add or remove a node; returns the addresses of the head and of its server of jobs."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split()
        assert answer, f"{command} failed"
        return answer

    def job(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Type `ray job VERB`."""
        command = [str(BIN / "ray"), "job", verb, "--address", f"http://{self._jobs}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)

    def stop(self) -> None:
        """Remove all nodes."""
        self._process.communicate(timeout=60)
        self._lock.close()


def autoscaler(path: Path) -> dict[str, Any]:
    """Write an autoscaler's configuration, and return the options of a head that has it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"{importlib.import_module('ray').util.get_node_ip_address()}:{port}"
    config = copy.deepcopy(importlib.import_module("ray.autoscaler._private.monitor").BASE_READONLY_CONFIG)
    config["provider"] |= {"type": "fake_multinode", "disable_node_updaters": True, "gcs_address": address}
    kind = {"resources": {"CPU": 1, "object_store_memory": OBJECTS}, "node_config": {}}
    config["available_node_types"] = {HEAD_KIND: kind | {"max_workers": 0}, "another": kind | {"max_workers": 1}}
    path.write_text(json.dumps(config | {"max_workers": 1, "idle_timeout_minutes": 5}))
    return {"gcs_server_port": port, "autoscaling_config": str(path), "env_vars": HEAD_ID}


def serve(lines: Iterable[str], answer: Callable[[str], None], head: dict[str, Any], folder: Path) -> None:
    """Keep a cluster until there are no more commands. In one folder, nodes would replace each other's files."""
    cluster_utils = importlib.import_module("ray.cluster_utils")
    cluster, nodes, address = cluster_utils.Cluster(), {}, "none"
    try:
        for line in lines:
            command, name = line.split()
            if command == "add":
                options = {"include_dashboard": False, "temp_dir": str(folder / name)} if nodes else head
                nodes[name] = cluster.add_node(node_name=name, num_cpus=1, object_store_memory=OBJECTS, **options)
                address = cluster.address
            else:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
            answer(f"{address} {cluster.webui_url or 'none'}")
    finally:
        cluster.shutdown()
        for process in psutil.process_iter(["cmdline"]):  # nodes that the autoscaler has started
            if any(text.endswith(f"={address}") for text in process.info["cmdline"] or ()):
                process.kill()


def main() -> None:
    """Serve standard input, with what the head is to have as arguments."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    head: dict[str, Any] = {"include_dashboard": JOBS in sys.argv, "dashboard_agent_listen_port": 0}
    with tempfile.TemporaryDirectory() as folder:
        if AUTOSCALER in sys.argv:
            head |= autoscaler(Path(folder) / "autoscaler.yaml")
        serve(sys.stdin, lambda text: print(text, file=out, flush=True), head, Path(folder))


if __name__ == "__main__":
    main()
