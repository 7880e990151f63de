"""Ray cluster on this machine, in a process apart: its threads are none that a test's process could fork with.

Run as a module, it takes the commands `add NAME` and `remove NAME` on standard input, and answers each with a line.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from tests.support.commands import ROOT
from tests.support.processes import collective

OBJECTS = 80 << 20  # bytes of a node's object store, about the least that Ray takes


def obstacle() -> str | None:
    """Return why there can be no Ray cluster here; None if there can."""
    if importlib.util.find_spec("ray") is None:
        return "a Ray cluster needs the extra gbactl[ray]: pip install 'gbactl[ray]'"
    return None if collective() == "horovod" else "cluster=ray needs Horovod's launcher"


class RayCluster:
    """Ray cluster whose nodes have a CPU each; the first one is the head. `environment` selects it."""

    def __init__(self, *nodes: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}, start_new_session=True,
        )  # fmt: skip
        self.environment = {"RAY_ADDRESS": ""}
        for name in nodes:
            self.environment["RAY_ADDRESS"] = self.ask(f"add {name}")

    def ask(self, command: str) -> str:
        """Add or remove a node; returns the address of the head."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        assert answer, f"{command} failed"
        return answer

    def stop(self) -> None:
        """Remove all nodes."""
        self._process.communicate(timeout=60)


def main() -> None:
    """Keep a cluster until standard input ends."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cluster_utils = importlib.import_module("ray.cluster_utils")
    cluster, nodes = cluster_utils.Cluster(), {}
    try:
        for line in sys.stdin:
            command, name = line.split()
            if command == "add":
                nodes[name] = cluster.add_node(
                    node_name=name, num_cpus=1, object_store_memory=OBJECTS, include_dashboard=False
                )
            else:
                cluster.remove_node(nodes.pop(name), allow_graceful=False)
            print(cluster.address or "none", file=out, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
