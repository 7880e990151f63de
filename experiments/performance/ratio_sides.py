"""Sides of a ratio: each runs in its own processes and returns one rate in samples per second.

Nothing is left behind: every training and peer works in one scratch folder, under a time limit.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_path import measure
from process_group import apart

HERE = Path(__file__).resolve().parent
LIMIT_SECONDS = 300.0
MOST_TOLD = 4000  # characters shown of a failed side's output
Side = Callable[[], dict[str, float]]


class SideError(Exception):
    """Failure of a side to deliver; the sentence names the side and the reason."""


@dataclass(frozen=True)
class Bench:
    """Settings that all sides share: `rows` of the one training day, `seconds` for which a peer is measured."""

    scratch: Path
    rows: int
    seconds: float

    def overrides(self, workers: int, batch: int, rows: int | None = None) -> list[str]:
        """Hydra overrides of a run with `workers` workers of local batch `batch`."""
        return [
            "data=synthetic", "data.days=2", f"data.rows_per_day={rows or self.rows}",
            f"cluster.workers={workers}", "cluster.servers=1", f"train.global_batch={workers * batch}",
        ]  # fmt: skip

    def command(self, name: str, arguments: list[str]) -> str:
        """Run `python ARGUMENTS` and return its standard output. Raises SideError when it fails or takes too long."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.scratch, env=environment(), start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=LIMIT_SECONDS)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise SideError(f"{name} took more than {LIMIT_SECONDS:.0f} s.") from None
            raise
        if process.returncode != 0 or not out.strip():
            print(err[-MOST_TOLD:], file=sys.stderr)
            raise SideError(f"{name} failed: {(err.strip() or 'no output').splitlines()[-1]}")
        return out.strip().splitlines()[-1]

    def train(self, mode: str, workers: int, batch: int, *extra: str, rows: int | None = None) -> dict[str, Any]:
        """Run `gbactl train` and return its result.json."""
        arguments = [
            "-m", "gbactl", "train", "--json", *self.overrides(workers, batch, rows), f"mode={mode}",
            "tracking.enabled=false", "train.max_eval_samples=4096", *extra,
        ]  # fmt: skip
        result: dict[str, Any] = json.loads(self.command(f"gbactl train mode={mode}", arguments))
        return result

    def script(self, script: str, workers: int, batch: int, *options: str, extra: Sequence[str] = ()) -> float:
        """Run a script of this folder for a run of this shape with `extra` overrides.

        Return the figure that it prints.
        """
        given = [*options, *self.overrides(workers, batch), *extra]
        return float(self.command(script, [str(HERE / script), *given]))

    def peer(self, script: str, workers: int, batch: int, *options: str, extra: Sequence[str] = ()) -> dict[str, float]:
        """Run a script of peers/ and return the rate that it prints."""
        seconds = ("--seconds", str(self.seconds))
        return {"rate": self.script(f"peers/{script}", workers, batch, *options, *seconds, extra=extra)}


def environment() -> dict[str, str]:
    """Copy of this environment without variables that would affect a run."""
    return {k: v for k, v in os.environ.items() if k not in ("GBACTL_KERNELS", "MLFLOW_TRACKING_URI")}


def _end(process: subprocess.Popen[str]) -> None:
    """Stop a side with SIGTERM, so that it ends its children, then with SIGKILL."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.communicate(timeout=10)
            return
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def steady(result: dict[str, Any]) -> dict[str, float]:
    """Steady rate of a result: samples between its first and its last progress note within the phase.

    `eps`, first hand-out to last announced gradient, includes the beginning and the end, when not every worker is
    busy; it is kept beside the rate.
    """
    notes = result["curve"][:-1]
    if len(notes) < 3:
        raise SideError(f"a run of {result['wall_seconds']:.1f} s is too short to measure; give more --rows")
    first, last = notes[0], notes[-1]
    rate = (last["samples"] - first["samples"]) / (last["seconds"] - first["seconds"])
    return {"rate": rate, "eps": result["eps"]}


def gbactl(bench: Bench, mode: str, workers: int, batch: int, *extra: str) -> Side:
    """Side that trains with gbactl."""
    return lambda: steady(bench.train(mode, workers, batch, *extra))


def reference(bench: Bench, workers: int, batch: int, *extra: str, processes: int = 2) -> Side:
    """Side of independent trainings with the same local batch."""
    return lambda: bench.peer("reference.py", workers, batch, "--processes", str(processes), extra=extra)


def rpc_peer(bench: Bench, workers: int, batch: int, *options: str) -> Side:
    """Side of the parameter server on torch.distributed.rpc."""
    return lambda: bench.peer("rpc_peer.py", workers, batch, "--workers", str(workers), *options)


def plain_peer(bench: Bench, script: str, workers: int, batch: int, *extra: str) -> Side:
    """Side of a plain script (hvd_peer.py, ddp_peer.py, dlrm_peer.py), one process a worker."""
    return lambda: bench.peer(script, workers, batch, "--processes", str(workers), extra=extra)


def data_path(bench: Bench, workers: int, batch: int, shuffle: bool) -> Side:
    """Side of slicing and deduplicating batches, without training."""
    return lambda: {"rate": apart(measure, bench.overrides(workers, batch), shuffle, bench.seconds)}
