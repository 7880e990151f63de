"""Sweep as a parent run in MLflow, made by a Hydra callback, which updates its comparison after each run.

The callback travels to the jobs of every Hydra launcher, also to other processes and hosts. A job's process finds the
parent in the environment variable GBACTL_PARENT_RUN, which any script may set to group the runs that it starts.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from gbactl.config import TrackingConfig
from gbactl.errors import UsageError, require
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.progress import after_runs
from gbactl.launch.resume import named, overridden_key
from gbactl.tracking.metrics_and_tags import RUN_DIR, tags_of
from gbactl.tracking.mlflow_store import (
    COMMAND,
    NOTE,
    PARENT,
    RUN_KIND,
    SWEEP,
    TAKEN,
    connect,
    read_children,
    sweep_note,
    tracking_uri,
)
from gbactl.tracking.run_description import rounded, short
from gbactl.tracking.tracked_run import TrackedRun

PARENT_RUN = "GBACTL_PARENT_RUN"
STORE_SECONDS, END_SECONDS = 60.0, 30.0  # time-outs for the tracking store
SHORT_SECONDS = 30.0
SEARCH_PATH = "hydra.searchpath="

OBJECTIVES = {
    "auc": "maximize", "gauc": "maximize", "eps": "maximize", "logloss": "minimize", "ne": "minimize",
    "wall_seconds": "minimize", "virtual_seconds": "minimize",
}  # fmt: skip
BEST = "optimization_results.yaml"  # file of the Optuna sweeper


@dataclass(frozen=True)
class SweepOptions:
    """Options of a sweep, which are no part of its runs' configurations."""

    objective: list[str] = field(default_factory=lambda: ["auc"])
    rerun: bool = False

    def values_of(self, result: Mapping[str, Any]) -> float | list[float]:
        """Return a finished run's objective values, which a sweeper optimizes. Raises UsageError if one is missing."""
        if absent := [name for name in self.objective if result.get(name) is None]:
            raise UsageError(f"{result['run_dir']} has no {absent[0]}; type objective= and what its result.json has.")
        values = [float(result[name]) for name in self.objective]
        return values[0] if len(values) == 1 else values


def with_tuning(arguments: list[str]) -> list[str]:
    """Return `arguments` with `objective=` as one list, which Hydra does not sweep, and gbactl's defaults for Optuna.

    They differ from the plugin's defaults: the better direction of each objective, trials one by one, none of which
    ends the sweep by diverging, and a seed, so that a sweep that was stopped suggests the same trials when it goes on.
    Raises ConfigError for an unknown objective."""
    typed = [text for text in arguments if text.startswith("objective=")]
    names = typed[-1].partition("=")[2].strip("[] ").split(",") if typed else SweepOptions().objective
    names = [name.strip() for name in names]
    for name in names:
        require(name in OBJECTIVES, f"objective={name} is not known; type one or more of: {', '.join(OBJECTIVES)}.")
    given = [f"objective=[{','.join(names)}]" if text in typed else text for text in arguments]
    if "hydra/sweeper=optuna" not in arguments:
        return given
    options = [f"direction=[{','.join(OBJECTIVES[name] for name in names)}]", "n_jobs=1", "max_failure_rate=1.0"]
    options += [] if "hydra/sweeper/sampler=grid" in arguments else ["sampler.seed=0"]
    return before_overrides([f"hydra.sweeper.{option}" for option in options], given)


def before_overrides(more: list[str], arguments: list[str]) -> list[str]:
    """Insert `more` before the first override in `arguments`, as Hydra allows no option between overrides."""
    first = next((n for n, text in enumerate(arguments) if not text.startswith("-") and "=" in text), len(arguments))
    return [*arguments[:first], *more, *arguments[first:]]


class OpenSweep:
    """Sweep that this process has begun: its parent run, which is None without tracking, and its best trials."""

    def __init__(
        self, tracking: TrackingConfig, tracked: TrackedRun | None = None, lock: FileLock | None = None
    ) -> None:
        self.tracking, self.tracked, self.lock, self.before = tracking, tracked, lock, os.environ.get(PARENT_RUN)
        self.best: list[tuple[str, str]] = []

    def close(self, status: str) -> None:
        """End the parent run as FINISHED, FAILED or KILLED, and update its comparison a last time.

        Jobs that ended at the same time may have missed each other's results; short ones have drawn no figures."""
        os.environ.pop(PARENT_RUN, None)
        if self.before is not None:
            os.environ[PARENT_RUN] = self.before
        unsent = "" if self.tracked is None else self.tracked.finish(status, END_SECONDS)
        if self.lock is not None:
            self.lock.release()
        if unsent:
            _say(unsent)
        if self.tracked is not None:
            _renew(tracking_uri(self.tracking.uri), self.tracked.opened(0.0) or "", figures=True)

    def delete(self) -> bool:
        """Delete the parent run, which has ended, and its folder if the run has no children; return whether it did."""
        with suppress(Exception):  # the parent run stays
            if self.tracked is not None and self.lock is not None and (run_id := self.tracked.opened(0.0)):
                uri = tracking_uri(self.tracking.uri)
                if not read_children(uri, run_id):
                    connect(uri).delete_run(run_id)
                    shutil.rmtree(Path(self.lock.lock_file).parent)
                    return True
        return False

    def tuned(self, best: list[tuple[str, str]]) -> None:
        """Store the best trials, with the command that repeats the first, and tag the parent run with them."""
        self.best = best
        if self.tracked is not None:
            self.tracked.tag({"gbactl.best": "\n".join(text for _, text in best)})

    def show(self, finished: Sequence[Path]) -> None:
        """Print the comparison of the sweep's runs, and what to type next, on standard output.

        Without tracking, the runs are those in the directories `finished`."""
        commands = list(self.best)
        if found := self._comparison(finished):
            print(f"\n{found}")
        if self.tracked is not None:
            commands += after_runs(self.tracking, self.tracked.opened(0.0) or "")
        if commands:
            print("\n".join(f"{f'{purpose}:':<14} {text}" for purpose, text in commands), flush=True)

    def _comparison(self, finished: Sequence[Path]) -> str:
        from gbactl.report.report_command import directories_table, sweep_table

        try:
            if self.tracked is None:
                once = list(dict.fromkeys(finished))  # a repeated trial has the directory of the first
                return directories_table(once)
            return sweep_table(tracking_uri(self.tracking.uri), self.tracked.opened(END_SECONDS) or "")
        except Exception as error:  # the runs are finished all the same
            _say(f"The sweep's runs could not be compared: {error}")
            return ""


_open: list[OpenSweep] = []


def close_sweeps(status: str, show: bool = False, discard: bool = False, finished: Sequence[Path] = ()) -> None:
    """End the parent run of the sweep that this process has begun, if any; `show`: also print its comparison.

    `finished`: directories of the runs that have finished in this process. `discard`: delete the parent run instead,
    if it has no runs."""
    while _open:
        sweep = _open.pop()
        sweep.close(status)
        if not (discard and sweep.delete()) and show:
            sweep.show(finished)


def parent_tags() -> dict[str, str]:
    """Return the tag that makes a run a child of the run in GBACTL_PARENT_RUN; {} if that is not set."""
    found = os.environ.get(PARENT_RUN)
    return {PARENT: found} if found else {}


def adopt(result: Mapping[str, Any], tracking: TrackingConfig) -> None:
    """Add a finished run, reused instead of trained again, to the present sweep's runs, with the sweep's tags.

    A run of a sweep that has finished stays that one's child."""
    run_id, parent = result.get("run_id"), os.environ.get(PARENT_RUN)
    if not (run_id and parent and tracking.enabled):
        return
    with suppress(Exception):  # the sweep goes on without it
        client = connect(tracking_uri(tracking.uri))
        before = client.get_run(run_id).data.tags.get(PARENT)
        stays = before is not None and client.get_run(before).info.status == "FINISHED"
        named = {f"{TAKEN}{parent}": "true"} if stays else {PARENT: parent}
        for key, value in {**tracking.tags, **named}.items():
            client.set_tag(run_id, key, value)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class SweepCallback(Callback):
    """Hydra callback that makes the parent run before the jobs, and renews its comparison after each.

    `command`: the command line as it was typed; Hydra's has more, such as the groups of a resumed run, `chosen`."""

    command = ""
    chosen: Sequence[str] = ()

    def __init__(self) -> None:
        self.uri, self.run_id, self.began = "", "", 0.0

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Begin the parent run. A store that does not answer leaves the runs without a parent."""
        (Path(config.hydra.sweep.dir) / BEST).unlink(missing_ok=True)
        if "n_trials" in config.hydra.sweeper:
            import optuna

            optuna.logging.set_verbosity(logging.WARNING)
        tracking = OmegaConf.to_container(config.tracking, resolve=True)
        assert isinstance(tracking, dict)
        of_runs = TrackingConfig(tracking["uri"], tracking["experiment"])
        if not tracking["enabled"]:
            _open.append(OpenSweep(of_runs))
            return
        self.uri = tracking_uri(tracking["uri"])
        overrides = _typed(config)
        folder = run_dirs.unused(SWEEP)
        folder.mkdir(parents=True)
        lock = run_dirs.lock(folder)
        tags = {
            **tags_of({"tracking": tracking, "overrides": overrides}, None, sys.argv[0]), **parent_tags(),
            RUN_KIND: SWEEP, RUN_DIR: str(folder.resolve()), NOTE: sweep_note(self.command),
            COMMAND: self.command,
        }  # fmt: skip
        name = tracking["run_name"] or sweep_name(overrides)
        tracked = TrackedRun(self.uri, tracking["experiment"], name, {}, tags, folder, warn=_say)
        _open.append(OpenSweep(of_runs, tracked, lock))
        self.run_id = tracked.opened(STORE_SECONDS) or ""
        if not self.run_id:
            _say("The tracking store has not answered; the sweep's runs have no parent run there and are not compared.")

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Pass the parent run's id to the job's run, in the environment."""
        if self.run_id:
            os.environ[PARENT_RUN] = self.run_id
        self.began = time.monotonic()

    def on_job_end(self, config: DictConfig, job_return: Any, **kwargs: Any) -> None:
        """Update the comparison of the runs that have ended; after a short job, do not redraw the figures."""
        _renew(self.uri, self.run_id, figures=time.monotonic() - self.began > SHORT_SECONDS)

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Store the best trials of a tuning sweep with its parent run."""
        found = Path(config.hydra.sweep.dir) / BEST
        if found.exists() and _open:
            typed = [text for text in config.hydra.overrides.hydra if text.startswith(SEARCH_PATH)]
            typed += [text for text in _typed(config) if text not in self.chosen]
            _open[-1].tuned(best_trials(yaml.safe_load(found.read_text()), typed, list(config.objective)))


def _renew(uri: str, run_id: str, figures: bool) -> None:
    """Update the comparison in a sweep's MLflow run; do nothing if `run_id` is "", as the store has not answered."""
    if not run_id:
        return
    from gbactl.report.report_command import renew_sweep

    try:
        renew_sweep(uri, run_id, figures)
    except Exception as error:  # the next job's end, or that of the sweep, tries again
        _say(f"The comparison in the sweep's MLflow run could not be renewed: {error}")


def _typed(config: DictConfig) -> list[str]:
    """List the sweep's overrides, with any ${KEY} unresolved, as only its jobs may have a value for it."""
    found = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)
    assert isinstance(found, list)
    return [str(text) for text in found]


def best_trials(found: Mapping[str, Any], overrides: Sequence[str], objective: Sequence[str]) -> list[tuple[str, str]]:
    """List the best trials that Optuna has `found`, and the command that trains the first of them again.

    There are several of two objectives: none of them is better in both. `overrides`: those of the sweep, of which
    run_dir= stays beside resume=: without it, the command would continue the other run in that one's directory."""
    one = [{"params": found["best_params"], "values": [found["best_value"]]}] if "best_params" in found else None
    trials = one or found["solutions"]
    typed = [[f"{key}={value}" for key, value in trial["params"].items()] for trial in trials]
    values = [
        ", ".join(f"{name} {value:.6g}" for name, value in zip(objective, trial["values"], strict=True))
        for trial in trials
    ]
    lines = [("best trial", f"{' '.join(keys)}: {reached}") for keys, reached in zip(typed, values, strict=True)]
    left_out = {*trials[0]["params"], "objective", "rerun"}
    if named(overrides) is None:
        left_out.add("run_dir")
    kept = [text for text in overrides if overridden_key(text) not in left_out]
    return [*lines, ("train it", shlex.join([*sys.argv[0].split(), *kept, *typed[0]]))]


def _values(override: Override) -> str:
    """Write the values that an override gives to its key: a,b,c, or low..high for an interval, or glob's patterns."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        return f"{value.start:g}..{value.end:g}"
    if isinstance(value, Glob):
        return ",".join(value.include)
    if override.is_discrete_sweep():
        return ",".join(short(rounded(each)) for each in override.sweep_string_iterator())
    return override.get_value_element_as_str()


def sweep_name(overrides: list[str]) -> str:
    """Name a sweep as its runs are named, by its modes and by what varies: sync,gba iota=3,4 s0,1,2."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    varied = {
        each.key_or_group: _values(each) for each in parsed if each.is_sweep_override() or each.key_or_group == "mode"
    }
    mode, seed = varied.pop("mode", ""), varied.pop("seed", "")
    parts = [mode, *(f"{key.rpartition('.')[2]}={value}" for key, value in varied.items()), f"s{seed}" if seed else ""]
    return " ".join(filter(None, parts))[:100] or SWEEP
