"""EPS of modes over slow and long links, measured between network namespaces and predicted by the virtual cluster.

    sudo .venv/bin/python experiments/hosts/run.py [--rates 10gbit,1gbit,100mbit] [--delays 0,0.1,5] [--modes ...]

Two hosts, each a namespace bound to one core, with a worker and a server each; `tc tbf` on both ends of both
links, and a relay (tests/support/relay.py) on one for the delay. For every link `gbactl doctor` measures latency and
bandwidth; the costs of computing are those of `gbactl calibrate` on this machine. Writes results.md after every link.
Nothing else should run meanwhile. A training is kept under runs/studies/hosts/ by rate, delay, mode, seed and version
of the code, and not run again: the command may be stopped and started again. Costs 10 to 60 s a training, 4 trainings a
mode and link.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

import networks  # noqa: E402  (scripts in the same folder, not a package)
import result_tables  # noqa: E402
import study  # noqa: E402  (a script of the parent folder)
from links import Kept, Link, Training, links, waiting  # noqa: E402
from networks import NAMES, ROOT, Network  # noqa: E402

from tests.support.netns import obstacle  # noqa: E402

FOLDER = ROOT / "runs" / "studies" / "hosts"
MODES = "sync,async,gba,shadow_ma"


class Study:
    """Study as requested on the command line, with the results so far."""

    def __init__(self, given: argparse.Namespace, kept: Kept) -> None:
        self.modes, self.repeat, self.kept = given.modes.split(","), given.repeat, kept
        self.links = links(given.rates.split(","), [float(delay) for delay in given.delays.split(",")])
        self.prices = kept.path("cost", "yaml")
        self.narrow = Link(given.rates.split(",")[-1], self.links[0].delay)
        self.rows: list[result_tables.Row] = []
        self.narrow_rows: list[result_tables.Row] = []

    def ceiling(self) -> None:
        """Measure the machine's own link, and one through a relay that adds no delay."""
        anything = Link("", 0)
        with Network(anything, None) as at:
            self.own = self.kept.get("own", at.line)
        with Network(anything, 0.0) as at:
            self.relayed = self.kept.get("relay", at.line)
        networks.say(result_tables.ceiling(self.own, self.relayed))

    def at(self, link: Link) -> None:
        """Measure every mode on one link."""
        with Network(link, waiting(link.delay, self.relayed["latency_us"])) as at:
            self.rows += [self._row(at, mode, "fp32") for mode in self.modes]
            if link == self.narrow:
                halves = [self._row(at, mode, "fp16") for mode in self.modes]
                self.narrow_rows = [*(row for row in self.rows if row.link == link), *halves]

    def _row(self, at: Network, mode: str, wire: str) -> result_tables.Row:
        line = self.kept.get(f"line-{at.link}", at.line)
        trainings = [Training(at.link, mode, seed, wire) for seed in range(self.repeat)]
        found = tuple(self.kept.get(f"eps-{each}", lambda each=each: at.trained(each)) for each in trainings)
        first = trainings[0]
        foreseen = self.kept.get(f"foreseen-{first}", lambda: networks.predicted(first, line, self.prices))
        row = result_tables.Row(at.link, line, mode, found, foreseen["eps"], wire)
        if row.taken:
            less = self.kept.get(
                f"less-{first}", lambda: networks.predicted(first, line, self.prices, row.taken / len(NAMES))
            )
            row = replace(row, less=less["eps"])
        networks.say(f"{first}: {row.eps:,.0f} ({row.spread}), predicted {row.foreseen:,.0f}, {row.error:+.0f} %")
        return row

    def text(self) -> str:
        """Text of results.md."""
        head = f"Written by experiments/hosts/run.py; {self.repeat} seeds, code version {self.kept.version}."
        weights = result_tables.weights(self.narrow_rows) if self.narrow_rows else "Not measured yet."
        parts = {
            "The ceiling": result_tables.ceiling(self.own, self.relayed),
            "EPS and its prediction": result_tables.measured(self.rows) + result_tables.kept_promise(self.rows),
            "Which mode pays on which network": result_tables.paying(self.rows),
            f"Bytes a step: {self.narrow.rate}, {self.narrow.delay:g} ms": weights,
        }
        sections = [f"## {title}\n\n{text.rstrip()}\n" for title, text in parts.items()]
        return "\n".join([f"# Results\n\n{head}\n", *sections])


def _given() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="10gbit,1gbit,100mbit", help="as tc writes them")
    parser.add_argument("--delays", default="0,0.1,5", help="ms one way; 0: the machine's own")
    parser.add_argument("--modes", default=MODES)
    parser.add_argument("--seconds", type=float, default=8.0, help="of every measurement of a price")
    parser.add_argument("--repeat", type=int, default=3, help="seeds")
    parser.add_argument("--out", type=Path, default=HERE / "results.md")
    return parser.parse_args()


def main() -> None:
    """Measure, predict, write results.md."""
    given = _given()
    why = obstacle()
    if why is not None:
        raise SystemExit(f"{why}.")
    if (os.cpu_count() or 1) < len(NAMES):
        raise SystemExit("Two hosts need two cores.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # removes the namespaces on SIGTERM, too
    given.out = given.out.resolve()
    os.chdir(ROOT)
    whole = Study(given, Kept(FOLDER, study.code_version()))
    whole.ceiling()
    networks.calibrate(whole.prices, given.seconds)
    for link in whole.links:
        whole.at(link)
        given.out.write_text(whole.text())


if __name__ == "__main__":
    main()
