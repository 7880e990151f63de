"""Runner of studies: a training on a virtual cluster in this process, untracked, without the seconds of a start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig, rounds
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.launch.hydra_config import compose
from gbactl.launch.resume import StartingPoint
from gbactl.simulation.simulated_run import run_virtual


def begun(overrides: Sequence[str], folder: Path) -> tuple[RunConfig, Dataset]:
    """Configuration of a run in a folder, and its data. Raises CheckpointError if nothing is left to train."""
    cfg = compose([*overrides, f"run_dir={folder}"])
    dataset = open_dataset(prepare(cfg.data))
    StartingPoint.of(cfg, dataset, len(rounds(dataset, cfg.train)))
    return cfg, dataset


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return its result."""
    return run_virtual(*begun(overrides, folder), folder)
