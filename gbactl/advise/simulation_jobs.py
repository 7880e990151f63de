"""Simulations of an advice, each a job for a process: train a base, go on from it in a mode, time a mode alone.

A job's configuration is that of a run on the virtual cluster. Its folder under the advice's directory keeps
configuration, event log and result.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gbactl import __version__
from gbactl.advise.sample import Sample
from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.checkpoint.planning import CheckpointConfig
from gbactl.config import RunConfig, check
from gbactl.data.dataset import Dataset
from gbactl.errors import DivergedError
from gbactl.faults.fault_plan import FaultsConfig
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.hydra_config import mode_file
from gbactl.simulation.cluster import run_virtual
from gbactl.simulation.timing_only import timed
from gbactl.wire.messages import Event


def on_virtual_cluster(cfg: RunConfig) -> RunConfig:
    """Return the configuration on the virtual cluster, whatever cluster was configured. Raises ConfigError.

    Checkpoints are left out unless the fault plan kills or stops processes."""
    checkpoint = cfg.checkpoint if cfg.fault_plan().fails else CheckpointConfig()
    cluster = replace(cfg.cluster, name="virtual", options={})
    return check(replace(cfg, cluster=cluster, checkpoint=checkpoint))


def in_mode(cfg: RunConfig, mode: str) -> RunConfig:
    """Return the configuration in another mode, with that mode's defaults. Raises ConfigError."""
    return cfg if mode == cfg.mode.name else check(cfg.in_mode({"name": mode, **mode_file(mode)}))


def base_config(cfg: RunConfig, folder: Path, parts: int) -> RunConfig:
    """Return the configuration of a base of `parts` parts, which is saved at its end; cfg is in the base's mode."""
    saved = CheckpointConfig(name="full", mb_per_second=0)
    train = replace(cfg.train, epochs=1, patience=0, days=parts, max_eval_samples=cfg.train.eval_batch)
    return replace(cfg, run_dir=str(folder), train=train, checkpoint=saved, faults=FaultsConfig())


def mode_config(cfg: RunConfig, folder: Path, base: Path | None) -> RunConfig:
    """Return the configuration of a simulation that goes on from the base in folder `base`, if any."""
    train = replace(cfg.train, epochs=1, patience=0, days=None, max_eval_samples=None)
    return replace(cfg, run_dir=str(folder), train=train, resume=None if base is None else str(newest(base)))


def newest(base: Path) -> Path:
    """Return the checkpoint at the end of a base."""
    folder = CheckpointFolder(base / CHECKPOINTS)
    return folder.path / folder.names()[-1]


@dataclass(frozen=True)
class Took:
    """CPU seconds of a simulation: to time the mode alone, to set up, and to train and evaluate.

    They hardly depend on what else the machine does. `wall`: all real seconds."""

    timing: float
    setting_up: float
    training: float
    wall: float = 0.0

    @property
    def total(self) -> float:
        """All seconds together."""
        return self.timing + self.setting_up + self.training


@dataclass(frozen=True)
class Outcome:
    """Outcome of one simulation: its mode and seed, predicted EPS, and the result's fields.

    `parts`: phases after the switch. `diverged`: why it has no result."""

    mode: str
    seed: int
    eps: float
    took: Took
    result: Mapping[str, Any]
    parts: tuple[Mapping[str, Any], ...] = ()
    diverged: str = ""


def train_base(cfg: RunConfig, sample: Sample, folder: Path) -> float:
    """Train the base of a seed, and save it in `folder`; return the CPU seconds. Raises GbactlError."""
    began, dataset = time.process_time(), sample.dataset()
    parts = len(dataset.splits) - 1 - sample.parts
    _run(base_config(cfg, folder, parts), dataset)
    return time.process_time() - began


def simulate(cfg: RunConfig, sample: Sample, folder: Path, base: Path | None) -> Outcome:
    """Predict the EPS of a mode, then train in it from a base; without a base, from nothing. Raises GbactlError."""
    clock, began = time.monotonic(), time.process_time()
    eps = predicted_eps(cfg, sample, folder)
    timing, began = time.process_time() - began, time.process_time()
    dataset = sample.dataset()
    own = mode_config(cfg, folder, base)
    try:
        result, setting_up = _run(own, dataset)
    except DivergedError as error:
        took = Took(timing, 0.0, time.process_time() - began, time.monotonic() - clock)
        return Outcome(cfg.mode.name, cfg.seed, eps, took, {}, diverged=str(error))
    took = Took(timing, setting_up, time.process_time() - began - setting_up, time.monotonic() - clock)
    return Outcome(cfg.mode.name, cfg.seed, eps, took, result, tuple(result["phases"][-sample.parts :]))


def predicted_eps(cfg: RunConfig, sample: Sample, folder: Path) -> float:
    """Predict the EPS of a configuration by a simulation without gradients."""
    scratch = folder / "timing"
    scratch.mkdir(parents=True, exist_ok=True)
    train = replace(cfg.train, epochs=1, patience=0, days=None, checksum_every=0)
    try:
        return float(timed(replace(cfg, train=train), sample.timed_dataset(), scratch)["eps"])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(cfg: RunConfig, dataset: Dataset) -> tuple[dict[str, Any], float]:
    """Run a simulation in its folder; return its result, and the CPU seconds until its first gradient."""
    began, clock, heard = time.process_time(), time.monotonic(), dict[str, Any]()

    def listen(event: Event) -> None:
        heard.setdefault(event.name, (event.fields, time.process_time() - began))

    run_dir = run_dirs.create(cfg)
    run_virtual(cfg, dataset, run_dir, listen)
    fields, _ = heard["result"]
    result = run_dirs.plain({
        **fields, "seed": cfg.seed, "status": "FINISHED", "clock": cfg.engine.clock, "run_dir": str(run_dir),
        "wall_seconds": time.monotonic() - clock, "gbactl": __version__,
    })  # fmt: skip
    run_dirs.write_result(run_dir, result)
    return result, heard["progress"][1]
