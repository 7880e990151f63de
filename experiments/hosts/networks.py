"""Measurements on one link between two hosts: trainings there, and the virtual cluster's predictions.

Host b is behind the delay; the launcher, and with it the coordinator, is beside host a, where the virtual cluster
places it, too. The relay uses CPU time of the same two cores as the hosts; its use is recorded with every training.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from links import Link, Training  # noqa: E402  a script in the same folder, not a package

from gbactl.engine import host_agents  # noqa: E402
from tests.support.netns import LAUNCHER, Hosts, hosts  # noqa: E402

NAMES = ("a", "b")
FAR = "b"
COMMON = (
    "data=synthetic", "data.days=2", "data.rows_per_day=200000", "cluster.workers=2", "cluster.servers=2",
    "train.global_batch=1024", "train.max_eval_samples=4096", "tracking.enabled=false",
)  # fmt: skip
# One of two buckets is summed during the backward pass, unless its bytes need CPU time, as calibrated ones do.
SHAPE = ("cost.cores=1", "cost.workers_per_host=1", "cost.servers_on=workers", "cost.overlap=0.5")


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def gbactl(*arguments: str, before: tuple[str, ...] = ()) -> str:
    """Run a gbactl command and return its output. Raises SystemExit with its error output where it fails."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "gbactl", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"gbactl {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def train(*overrides: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a training and return its result."""
    result: dict[str, Any] = json.loads(gbactl("train", "--json", *COMMON, *overrides, before=before).splitlines()[-1])
    return result


def calibrate(out: Path, seconds: float) -> None:
    """Measure this machine's cost model, once."""
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        say("calibrating")
        own = ("cluster.servers=2", "cluster.transport=tcp")  # as between hosts
        gbactl("calibrate", "--out", str(out), "--workers", "2,4", "--seconds", str(seconds), *own)


def predicted(training: Training, line: dict[str, float], prices: Path, taken: float = 0.0) -> dict[str, Any]:
    """Predict EPS with a run of the virtual cluster; `taken`: the share of all cores used by the relay."""
    lines = [f"cost.{key}={line[key]}" for key in ("latency_us", "bandwidth_gbit")]
    slower = f"cost.worker_scale=[{1 / (1 - taken):.4f}]"
    found = train(*training.overrides, "cluster=virtual", f"cost={prices}", *SHAPE, *lines, slower)
    return {"eps": found["eps"]}


class Network:
    """Link with its two hosts, which are started when first used. `wait`: see links.waiting."""

    def __init__(self, link: Link, wait: float | None) -> None:
        self.link, self.wait = link, wait
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def folder(self) -> Path:
        """Folder for the hosts' files."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="gbactl-hosts-")))

    @cached_property
    def machines(self) -> Hosts:
        """Hosts of this link."""
        delays = {} if self.wait is None else {FAR: self.wait}
        at = self._stack.enter_context(hosts(self.folder, NAMES, cores={"a": 0, "b": 1}, delays=delays))
        at.congestion("cubic")  # Linux's own default, the same wherever this is run
        for name in NAMES if self.link.rate else ():
            at.limit(name, self.link.rate)
        return at

    def line(self) -> dict[str, Any]:
        """Measure the link between the hosts with `gbactl doctor`."""
        out = self.folder / "network.yaml"
        where = f"cluster.hosts=[{','.join(f'{name}:1' for name in NAMES)}]"
        asked = ("doctor", "cluster=hosts", where, f"cluster.ssh='{self.machines.ssh}'", "--out", str(out))
        gbactl(*asked, before=self.machines.inside(LAUNCHER))
        return {**host_agents.read(out), **self.relay()}

    def relay(self) -> dict[str, float]:
        """Counters of the relay so far; empty where there is no relay."""
        return self.machines.relays[FAR].counts() if self.wait is not None else {}

    def trained(self, training: Training) -> dict[str, Any]:
        """Run a training on the hosts and return its measurements."""
        where = ("cluster=hosts", "cluster.hosts=[a:1,b:1]", "cluster.threads=1", f"cluster.ssh='{self.machines.ssh}'")
        before = self.relay()
        result = train(*training.overrides, *where, before=self.machines.inside(LAUNCHER))
        if result.get("lost_workers") or result.get("recovery"):
            raise SystemExit(f"{training}: somebody was lost, so that this is no measurement; type it again.")
        relay = {name: count - before[name] for name, count in self.relay().items()}
        seconds = result["samples"]["trained"] / result["eps"]
        return {"eps": result["eps"], "seconds": seconds, "bytes_per_step": result["wire"]["bytes_per_step"], **relay}
