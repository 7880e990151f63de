"""Three hosts (network namespaces) and a launcher on a fourth, from which trainings are started."""

from __future__ import annotations

import subprocess

from tests.support.netns import LAUNCHER, Hosts, obstacle
from tests.support.processes import Launched, Launcher, collective

OBSTACLE = obstacle() or (None if collective() == "horovod" else "cluster=hosts needs Horovod's launcher")
NAMES = ("a", "b", "c")
LONG = ("data.rows_per_day=60000",)


class Site:
    """Three hosts and a launcher on a fourth."""

    def __init__(self, machines: Hosts, launcher: Launcher) -> None:
        self.machines, self.launcher = machines, launcher
        launcher.before = machines.inside(LAUNCHER)

    def start(self, *overrides: str, on: str = "[a:2,b:1,c:1]", workers: int = 4, tracking: bool = False) -> Launched:
        """A training on all of them."""
        return self.launcher.start(
            "cluster=hosts", f"cluster.hosts={on}", f"cluster.workers={workers}", f"cluster.ssh='{self.machines.ssh}'",
            "cluster.forward=[GBACTL_CACHE]", *overrides, tracking=tracking,
        )  # fmt: skip

    def gbactl(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A command beside the launcher, at its end."""
        return self.launcher.gbactl(*arguments, seconds=seconds)

    def ours(self) -> list[str]:
        """What of gbactl runs on any of the hosts."""
        return [line for name in NAMES for line in self.machines.ours(name)]
