"""Cost of each priority for a server, in bytes a row, microseconds a step, milliseconds a choice, and EPS.

    .venv/bin/python experiments/cpr/priorities.py [--rows 1000000] [--batch 512] [--steps 40] [--rounds 15]

One real shard with Adam takes steps of single gradients, with log-uniform (Zipf) ids, watched by each priority in turn.
Rounds alternate, and medians of ratios are reported. EPS: a worker and its server on one core, with the worker's batch
measured separately, so that no cost is hidden behind other work. Costs a minute on an otherwise idle machine; writes
runs/studies/cpr/priorities.json, which write_cpr.py includes in results.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gbactl.checkpoint import row_priority
from gbactl.kernels.native import flushed
from gbactl.server.checkpoint_writer import RowChooser
from gbactl.store.gradient_slice import GradientSlice, StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec

WIDTH, FIELDS, NUMERIC, HIDDEN, SHARE = 17, 26, 13, [400, 400, 400], 0.125
NAMES = ("none", "scar", "mfu", "ssu")
OUT = Path("runs/studies/cpr/priorities.json")


class Bench:
    """Benchmark of a shard f32[rows, WIDTH] with gradients of `batch` samples."""

    def __init__(self, rows: int, batch: int) -> None:
        self.shard = Shard(ShardSpec(0, 1, rows, WIDTH, row_optimizer=OptimizerSpec("adam", 1e-3)))
        self.rng, self.rows, self.ids = np.random.default_rng(0), rows, batch * FIELDS
        self.turn = 0
        spans = [(0, rows)]
        self.choosers = {
            name: RowChooser(self.shard, row_priority.make(name, self.shard.table, spans, SHARE, 1), spans, SHARE)
            for name in NAMES[1:]
        }

    def parts(self, count: int) -> list[GradientSlice]:
        """Draw gradients with new rows."""
        found = []
        for _ in range(count):
            drawn = np.exp(self.rng.random(self.ids) * np.log(self.rows)).astype(np.int64) - 1
            index = np.unique(drawn).astype(np.int32)
            found.append(GradientSlice(index, self.rng.normal(0, 1e-3, (len(index), WIDTH)).astype(np.float32)))
        return found

    def step(self, name: str, parts: Sequence[GradientSlice]) -> float:
        """Measure the mean seconds of a step while a priority watches the shard."""
        self.shard.watcher = None if name == "none" else self.choosers[name].count_updates
        first = self.turn
        for place, part in enumerate(parts):
            self.shard.stage(first + place, part)
        began = time.perf_counter()
        for place in range(len(parts)):
            batch = first + place
            self.shard.apply(StepOrder(self.shard.version, ((batch, 1.0),), 1.0, 1.0))
        self.turn += len(parts)
        return (time.perf_counter() - began) / len(parts)

    def choice(self, name: str) -> tuple[float, int]:
        """Measure the seconds of a choice of rows, and count the rows chosen."""
        began = time.perf_counter()
        rows = self.choosers[name].rows("chosen")
        assert rows is not None
        return time.perf_counter() - began, len(rows)


def worker_seconds(batch: int, rounds: int) -> float:
    """Median seconds of a worker's gradient."""
    import torch

    from gbactl.config import ModelConfig
    from gbactl.models import build
    from gbactl.models.gradient_computer import GradientComputer

    torch.set_num_threads(1)
    computer = GradientComputer(build(ModelConfig(dim=WIDTH - 1, hidden=HIDDEN), NUMERIC, FIELDS, 0))
    rng = np.random.default_rng(0)
    numeric = rng.normal(size=(batch, NUMERIC)).astype(np.float32)
    rows = rng.normal(0, 0.01, (batch, FIELDS, WIDTH)).astype(np.float32)
    labels = rng.integers(0, 2, batch).astype(np.float32)
    found = []
    for turn in range(rounds + 2):
        began = time.perf_counter()
        computer.gradient(numeric, labels, rows, turn)
        found.append(time.perf_counter() - began)
    return statistics.median(found[2:])


def measure(rows: int, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    """Measure the times of a step, a choice of rows and a worker's gradient, and the memory of each priority."""
    with flushed():
        return _measured(rows, batch, steps, rounds)


def _measured(rows: int, batch: int, steps: int, rounds: int) -> dict[str, Any]:
    bench = Bench(rows, batch)
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    choices: dict[str, list[tuple[float, int]]] = {name: [] for name in NAMES[1:]}
    for name in NAMES:
        bench.step(name, bench.parts(2))
    for _ in range(rounds):
        for name in NAMES:
            seconds[name].append(bench.step(name, bench.parts(steps)))
            if name != "none":
                choices[name].append(bench.choice(name))
    nbytes = {name: 0 if c.priority is None else c.priority.nbytes for name, c in bench.choosers.items()}
    return {
        "rows": rows, "batch": batch, "rounds": rounds, "worker": worker_seconds(batch, rounds), "seconds": seconds,
        "choices": choices, "bytes_a_row": {name: count / rows for name, count in nbytes.items()},
        "table_bytes_a_row": sum(bench.shard.rows.nbytes[kind] for kind in ("table", "moments", "counts")) / rows,
    }  # fmt: skip


def table(found: Mapping[str, Any]) -> str:
    """Markdown table, one line a priority."""
    heads = ("bytes a row", "% of the row", "us more a step", "% of a step", "ms a choice", "rows chosen", "% EPS")
    lines = [f"| priority | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(heads)}"]
    plain = found["seconds"]["none"]
    for name in NAMES[1:]:
        more = [mine - without for mine, without in zip(found["seconds"][name], plain, strict=True)]
        share = statistics.median(extra / without for extra, without in zip(more, plain, strict=True))
        eps = statistics.median(extra / (found["worker"] + without) for extra, without in zip(more, plain, strict=True))
        bytes_, chosen = found["bytes_a_row"][name], found["choices"][name]
        lines.append(
            f"| {name} | {bytes_:.2f} | {100 * bytes_ / found['table_bytes_a_row']:.1f} "
            f"| {1e6 * statistics.median(more):.1f} | {100 * share:.1f} "
            f"| {1e3 * statistics.median(seconds for seconds, _ in chosen):.2f} | {chosen[-1][1]:,} | {100 * eps:.2f} |"
        )
    notes = (
        f"{found['rows']:,} rows of one server, {WIDTH} wide, Adam; a step is one gradient of {found['batch']} samples,"
        f" {1e3 * statistics.median(plain):.2f} ms without a priority; a worker's batch takes "
        f"{1e3 * found['worker']:.1f} ms; medians of {found['rounds']} rounds.",
        "EPS: the loss of a worker and a server that share one core; with a core each they lose less.",
        "The server chooses rows 8 times in a save interval, and stands still for the time of a choice.",
    )
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]) + "\n"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1_000_000), ("batch", 512), ("steps", 40), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    found = measure(given.rows, given.batch, given.steps, given.rounds)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(found) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
