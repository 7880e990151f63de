"""Sweep as a parent run in MLflow: a Hydra callback makes it, and renews the comparison of its runs when one ends.

The callback travels to the jobs of every Hydra launcher, also to other processes and hosts. A job's process finds the
parent in the environment variable GBACTL_PARENT_RUN, which any script may set to group the runs that it starts.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from gbactl.config import TrackingConfig
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.progress import after_runs
from gbactl.tracking.final_metrics import tags_of
from gbactl.tracking.mlflow_connection import COMMAND, NOTE, PARENT, RUN_KIND, SWEEP, connect, sweep_note, tracking_uri
from gbactl.tracking.tracked_run import TrackedRun

PARENT_RUN = "GBACTL_PARENT_RUN"
STORE_SECONDS, END_SECONDS = 60.0, 30.0  # time-outs for the tracking store
SHORT_SECONDS = 30.0


class OpenSweep:
    """Sweep that this process has begun: its tracked parent run and the lock of its directory."""

    def __init__(self, tracked: TrackedRun, lock: FileLock, before: str | None, tracking: TrackingConfig) -> None:
        self.tracked, self.lock, self.before, self.tracking = tracked, lock, before, tracking

    def close(self, status: str) -> None:
        """End the parent run as FINISHED, FAILED or KILLED."""
        os.environ.pop(PARENT_RUN, None)
        if self.before is not None:
            os.environ[PARENT_RUN] = self.before
        if unsent := self.tracked.finish(status, END_SECONDS):
            _say(unsent)
        self.lock.release()

    def show(self) -> None:
        """Print the comparison of the sweep's runs, and what to type next, on standard output."""
        from gbactl.report.command import sweep_table

        terminal = sys.stdout.isatty()
        try:
            width = max(80, shutil.get_terminal_size().columns) if terminal else 80
            found = sweep_table(
                tracking_uri(self.tracking.uri), self.tracked.opened(END_SECONDS) or "", width, terminal
            )
        except Exception as error:  # the runs are finished all the same
            _say(f"The sweep's runs could not be compared: {error}")
            return
        if found:
            print(f"\n{found}")
        print("\n".join(f"{f'{purpose}:':<14} {text}" for purpose, text in after_runs(self.tracking)), flush=True)


_open: list[OpenSweep] = []


def close_sweeps(status: str, show: bool = False) -> None:
    """End the parent run of the sweep that this process has begun, if there is one; `show` its comparison."""
    while _open:
        sweep = _open.pop()
        sweep.close(status)
        if show:
            sweep.show()


def parent_tags() -> dict[str, str]:
    """Return the tag that makes a run a child of the run in GBACTL_PARENT_RUN; {} where that is not set."""
    found = os.environ.get(PARENT_RUN)
    return {PARENT: found} if found else {}


def adopt(path: Path, uri: str) -> None:
    """Make a finished run, which a sweep leaves as it is, a child of that sweep."""
    run_id, parent = run_dirs.tracked_as(path), os.environ.get(PARENT_RUN)
    if run_id and parent:
        with suppress(Exception):  # the sweep goes on without it
            connect(uri).set_tag(run_id, PARENT, parent)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class SweepCallback(Callback):
    """Hydra callback that makes the parent run before the jobs, and renews its comparison after each."""

    def __init__(self) -> None:
        self.uri, self.run_id, self.began = "", "", 0.0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Begin the parent run. A store that does not answer leaves the runs without a parent."""
        tracking = OmegaConf.to_container(config.tracking, resolve=True)
        assert isinstance(tracking, dict)
        if not tracking["enabled"]:
            return
        self.uri = tracking_uri(tracking["uri"])
        overrides = [str(text) for text in config.hydra.overrides.task]
        command = f"{sys.argv[0]} {shlex.join(sys.argv[1:])}"
        folder = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{SWEEP}-{secrets.token_hex(3)}"
        folder.mkdir(parents=True)
        lock, before = run_dirs.lock(folder), os.environ.get(PARENT_RUN)
        tags = {
            **tags_of({"tracking": tracking, "overrides": overrides}, None, source=sys.argv[0]), **parent_tags(),
            RUN_KIND: SWEEP, "gbactl.run_dir": str(folder.resolve()), NOTE: sweep_note(command),
            COMMAND: command,
        }  # fmt: skip
        name = tracking["run_name"] or sweep_name(overrides)
        tracked = TrackedRun(self.uri, tracking["experiment"], name, {}, tags, folder, warn=_say)
        _open.append(OpenSweep(tracked, lock, before, TrackingConfig(tracking["uri"], tracking["experiment"])))
        self.run_id = tracked.opened(STORE_SECONDS) or ""

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Tell the job's run its parent."""
        if self.run_id:
            os.environ[PARENT_RUN] = self.run_id
        self.began = time.monotonic()

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        """Renew the comparison of the runs that have ended; after a short job without figures."""
        self._renew(figures=time.monotonic() - self.began > SHORT_SECONDS)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Renew the comparison a last time: of two jobs that ended at once, one may have missed the other."""
        self._renew(figures=True)

    def _renew(self, figures: bool) -> None:
        if not self.run_id:
            return
        from gbactl.report.command import renew_sweep

        try:
            renew_sweep(self.uri, self.run_id, figures)
        except Exception as error:  # the next job's end tries again
            _say(f"The comparison in the sweep's MLflow run could not be renewed: {error}")


def sweep_name(overrides: list[str]) -> str:
    """Name a sweep as its runs are named, by what varies: sync,gba iota=3,4 s0,1,2."""
    varied = dict(text.split("=", 1) for text in overrides if "," in text and not any(mark in text for mark in "[{'\""))
    mode, seed = varied.pop("mode", ""), varied.pop("seed", "")
    told = [mode, *(f"{key.rpartition('.')[2]}={value}" for key, value in varied.items()), f"s{seed}" if seed else ""]
    return " ".join(filter(None, told))[:100] or SWEEP
