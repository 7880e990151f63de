"""CPU time a sample of the virtual backend, relative to a plain loop on one core.

    python experiments/performance/virtual_cost.py [--mode async] data=synthetic ...

Both run in one process and alternate in blocks: at each progress event of the virtual run, the plain loop
takes some batches. Both thus have the same caches and the same background load. Prints the ratio of the medians, then
the microseconds a sample of both.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_lines import Line, Tell
from process_group import one_thread_each
from ratio_sides import Bench

BLOCK = 15  # batches of the plain loop
ENDS = (3, 2)  # blocks left out: the first are cold, the last contain the evaluation
LEAST = 5


class Alternating:
    """Listener of the virtual run that measures each side's CPU seconds a sample, one entry a block."""

    def __init__(self, step: Any, batch: int) -> None:
        self.step, self.batch, self.steps = step, batch, 0
        self.virtual: list[float] = []
        self.plain: list[float] = []
        self._last: tuple[float, int] | None = None

    def __call__(self, event: Any) -> None:
        """Handle an event of the virtual launcher."""
        if event.name != "progress":
            return
        now, samples = time.process_time(), int(event.fields["samples"])
        if self._last is not None and samples > self._last[1]:
            self.virtual.append((now - self._last[0]) / (samples - self._last[1]))
            self.plain.append(self._block())
        self._last = (time.process_time(), samples)

    def _block(self) -> float:
        self._plain(1)  # refills the caches after the virtual run
        began = time.process_time()
        self._plain(BLOCK)
        return (time.process_time() - began) / (BLOCK * self.batch)

    def _plain(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.steps)
            self.steps += 1


def inner(values: list[float]) -> float:
    """Median without the blocks at both ends. Raises SystemExit where too few are left."""
    kept = values[ENDS[0] : len(values) - ENDS[1]]
    if len(kept) < LEAST:
        raise SystemExit("The virtual run is too short to measure; give more --rows.")
    return statistics.median(kept)


def measure(overrides: list[str], mode: str) -> tuple[float, float]:
    """Measure microseconds of CPU a sample: (virtual, plain)."""
    import torch
    from plain_loop import PlainLoop, Trainee, prepared

    from gbactl.data.dataset import open_dataset
    from gbactl.launch.hydra_config import compose
    from gbactl.simulation.simulated_run import run_virtual

    path = prepared(overrides)
    me = Trainee(path, overrides, 0, 1)
    torch.set_flush_denormal(True)
    sides = Alternating(PlainLoop(me).step, me.batch)
    cfg = compose(["cluster=virtual", f"mode={mode}", *overrides, "train.max_eval_samples=4096"])
    with tempfile.TemporaryDirectory(prefix="gbactl-virtual-") as folder:
        run_virtual(cfg, open_dataset(Path(path)), Path(folder), sides)
    return 1e6 * inner(sides.virtual), 1e6 * inner(sides.plain)


def line(bench: Bench, batch: int, rounds: int, tell: Tell) -> Line:
    """Measure the table's line, CPU of the virtual cluster / plain loop, each round in a new process."""
    values, told = [], ""
    for number in range(rounds):
        arguments = [str(Path(__file__)), *bench.overrides(4, batch)]
        ratio, told = bench.command("virtual_cost.py", arguments).split(" ", 1)
        values.append(float(ratio))
        tell(f"virtual-{batch} {number + 1}/{rounds}: {ratio} ({told})")
    what = f"CPU a sample, cluster=virtual mode=async / plain loop, batch {batch}"
    return Line(f"virtual-{batch}", what, values, 1.15, at_least=False, note=f"last round: {told}")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="async")
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    one_thread_each()
    virtual, plain = measure(given.overrides, given.mode)
    print(f"{virtual / plain:.4f} {virtual:.2f} / {plain:.2f} us")


if __name__ == "__main__":
    sys.exit(main())
