"""CPU time of a run's processes during training: a server's milliseconds per push + pull, each role's share.

Samples /proc every 50 ms during the run (under 1 % of a core) and counts the gradients that the event log had
ordered at the first and last sample within the training.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_lines import Line, Tell
from ratio_sides import Bench, Side, SideError

from gbactl.calibration.short_local_runs import cpu_by_role, machine_cpu

EVERY_SECONDS = 0.05
LEAST = 20


@dataclass(frozen=True)
class Sample:
    """CPU seconds by role and of the whole machine, and bytes of the event log, at one moment."""

    at: float
    used: dict[str, float]
    log: int
    machine: float = 0.0


@dataclass(frozen=True)
class Usage:
    """CPU time used by the run's processes, and by all others together, between two moments of the training."""

    seconds: float
    gradients: int
    used: dict[str, float]
    others: float = 0.0

    @property
    def server_ms(self) -> float:
        """Milliseconds of all servers' CPU for a gradient: one push + pull."""
        return 1e3 * self.used["S"] / self.gradients


class Sampler:
    """Sampler of a run directory in a background thread."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.samples = run_dir, list[Sample]()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        log = self.run_dir / "events.log"
        while not self._stop.wait(EVERY_SECONDS):
            size = log.stat().st_size if log.exists() else 0
            if size:
                self.samples.append(Sample(time.monotonic(), cpu_by_role(self.run_dir), size, machine_cpu()))


def gradients_in(log: bytes, scratch: Path) -> int:
    """Count the gradients ordered in a prefix of an event log; a truncated record does not count."""
    from gbactl.coordinator.event_log import OrderRecord, read
    from gbactl.errors import GbactlError

    scratch.write_bytes(log)
    count = 0
    try:
        for record in read(scratch):
            count += len(record.members) if isinstance(record, OrderRecord) else 0
    except GbactlError:
        pass
    return count


def usage(samples: list[Sample], log: bytes, scratch: Path) -> Usage:
    """Usage between the first and the last sample within the training. Raises SideError when it was too short."""
    total = gradients_in(log, scratch)
    counted = [(gradients_in(log[: sample.log], scratch), sample) for sample in samples]
    inside = [(count, sample) for count, sample in counted if 0 < count < total and "S" in sample.used]
    if not inside or inside[-1][0] - inside[0][0] < LEAST:
        raise SideError("a run was too short to see its processes' CPU time; give more --rows")
    (first, before), (last, after) = inside[0], inside[-1]
    used = {role: after.used[role] - before.used.get(role, 0.0) for role in after.used}
    others = after.machine - before.machine - sum(used.values())
    return Usage(after.at - before.at, last - first, used, max(0.0, others))


def watched(bench: Bench, mode: str, workers: int, batch: int, *extra: str, rows: int | None = None) -> Any:
    """Run a training and return (result.json, Usage)."""
    folder = bench.scratch / f"watched-{time.monotonic_ns()}"
    with Sampler(folder) as sampler:
        result = bench.train(mode, workers, batch, *extra, f"run_dir={folder}", rows=rows)
    return result, usage(sampler.samples, (folder / "events.log").read_bytes(), bench.scratch / "prefix.log")


def server_cpu(bench: Bench, *extra: str) -> Side:
    """Side that measures milliseconds of the servers' CPU per push + pull."""
    return lambda: {"rate": watched(bench, "async", 4, 512, *extra)[1].server_ms}


def line(bench: Bench, transport: str, target: float, rounds: int, tell: Tell) -> Line:
    """Measure the line of one server's CPU milliseconds."""
    side, values = server_cpu(bench, f"cluster.transport={transport}"), []
    for number in range(rounds):
        values.append(side()["rate"])
        tell(f"server-cpu-{transport} {number + 1}/{rounds}: {values[-1]:.2f} ms")
    what = f"ms of a server's CPU per push + pull, async 4+1, {transport}, batch 512"
    return Line(f"server-cpu-{transport}", what, values, target, at_least=False)
