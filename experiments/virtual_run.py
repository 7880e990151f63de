"""Runner of studies: a training on a virtual cluster in this process, untracked, without the seconds of a start."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.launch.hydra_config import compose
from gbactl.simulation.simulated_run import VirtualCluster
from gbactl.wire.messages import Event


def begun(overrides: Sequence[str], folder: Path) -> tuple[RunConfig, Dataset]:
    """Configuration of a run in a folder, and its data."""
    cfg = compose([*overrides, f"run_dir={folder}"])
    return cfg, open_dataset(prepare(cfg.data))


def trained(
    cfg: RunConfig, dataset: Dataset, folder: Path, kind: type[VirtualCluster] = VirtualCluster
) -> tuple[dict[str, Any], VirtualCluster]:
    """Train on a cluster of some kind; return the result and the cluster. Raises GbactlError."""
    import torch

    from gbactl.kernels.native import flushed

    torch.set_num_threads(cfg.threads)
    events: list[Event] = []
    with flushed():
        cluster = kind(cfg, dataset, folder, events.append)
        cluster.run()
    [result] = [event.fields for event in events if event.name == "result"]
    return result, cluster


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return its result."""
    return trained(*begun(overrides, folder), folder)[0]
