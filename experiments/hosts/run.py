"""EPS of modes over slow links, measured between network namespaces and predicted by the virtual cluster.

    sudo .venv/bin/python experiments/hosts/run.py [--rates 10gbit,1gbit,100mbit] [--seconds 8] [--repeat 3]

Two hosts, each a namespace that keeps to one core, with a worker and a server each; `tc tbf` on both ends of both
links. For every rate `gbactl doctor` measures the line; the prices of work are those of `gbactl calibrate` on this
machine, on hosts of one core. Writes results.md. Nothing else should run meanwhile. Takes about 10 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from gbactl.hosts import network  # noqa: E402
from tests.support.netns import LAUNCHER, Hosts, hosts, obstacle  # noqa: E402

MODES = ("sync", "async", "gba")
NAMES = ("a", "b")
COMMON = (
    "data=synthetic", "data.days=2", "data.rows_per_day=200000", "cluster.workers=2", "cluster.servers=2",
    "train.global_batch=1024", "train.max_eval_samples=4096", "tracking.enabled=false", "cluster.threads=1",
)  # fmt: skip
MODEL = Path("runs/studies/hosts/cost.yaml")


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def gbactl(*arguments: str, before: tuple[str, ...] = ()) -> str:
    """One command's output. Raises SystemExit with what it said where it fails."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "gbactl", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"gbactl {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


def train(*overrides: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """A training's result."""
    result: dict[str, Any] = json.loads(gbactl("train", *COMMON, *overrides, before=before).splitlines()[-1])
    return result


def calibrate(seconds: float) -> None:
    """This machine's prices, once."""
    if not MODEL.exists():
        MODEL.parent.mkdir(parents=True, exist_ok=True)
        say("calibrating")
        gbactl("calibrate", "--out", str(MODEL), "--workers", "2,4", "--seconds", str(seconds), "cluster.servers=2")


def line_of(machines: Hosts, folder: Path) -> dict[str, float]:
    """What the doctor says of the line between the hosts."""
    out = folder / "network.yaml"
    asked = ("doctor", "--hosts", ",".join(NAMES), "--ssh", machines.ssh, "--out", str(out))
    gbactl(*asked, before=machines.inside(LAUNCHER))
    return network.read(out)


def measured(machines: Hosts, mode: str, repeat: int) -> list[float]:
    """EPS of real runs."""
    found = []
    for seed in range(repeat):
        result = train(
            f"mode={mode}", f"seed={seed}", "cluster=hosts", "cluster.hosts=[a:1,b:1]", f"cluster.ssh='{machines.ssh}'",
            before=machines.inside(LAUNCHER),
        )  # fmt: skip
        found.append(float(result["eps"]))
    return found


def predicted(mode: str, line: dict[str, float]) -> float:
    """EPS of the virtual cluster's run."""
    lines = [f"cost.{key}={value}" for key, value in line.items()]
    shape = ("cost.cores=1", "cost.workers_per_host=1", "cost.servers_on=workers")
    found = train(f"mode={mode}", "cluster=virtual", f"cost={MODEL}", *shape, *lines)
    return float(found["eps"])


def rows_at(rate: str, repeat: int) -> list[str]:
    """The lines of the table for one rate."""
    folder = tempfile.TemporaryDirectory(prefix="gbactl-hosts-")
    with folder as name, hosts(Path(name), NAMES, cores={"a": 0, "b": 1}) as at:
        for host in NAMES:
            at.limit(host, rate)
        line = line_of(at, Path(name))
        told = f"{line['bandwidth_gbit']:.3g} Gbit/s, {line['latency_us']:.0f} us"
        rows = []
        for mode in MODES:
            eps, foreseen = measured(at, mode, repeat), predicted(mode, line)
            middle = statistics.median(eps)
            spread = f"{min(eps):,.0f} - {max(eps):,.0f}"
            error = f"{100 * (foreseen / middle - 1):+.0f} %"
            rows.append(f"| {rate} | {told} | `{mode}` | {middle:,.0f} ({spread}) | {foreseen:,.0f} | {error} |")
            say(rows[-1])
    return rows


def main() -> None:
    """Measure, predict, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="10gbit,1gbit,100mbit")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    why = obstacle()
    if why is not None:
        raise SystemExit(f"{why}.")
    if (os.cpu_count() or 1) < len(NAMES):
        raise SystemExit("Two hosts need two cores.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # the namespaces go, however this ends
    os.chdir(ROOT)
    calibrate(given.seconds)
    rows = [row for rate in given.rates.split(",") for row in rows_at(rate, given.repeat)]
    head = ["| link | as measured | mode | EPS (least - most) | predicted | error |", "|---|---|---|---:|---:|---:|"]
    text = ["# Results", "", "Written by experiments/hosts/run.py.", "", *head, *rows, ""]
    (HERE / "results.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
