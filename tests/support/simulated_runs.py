"""Small virtual trainings: configurations, runs, and workers in lock-step."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gbactl.config import (
    ClusterConfig,
    FaultsConfig,
    ModeConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    SwitchConfig,
    TrainConfig,
    check,
)
from gbactl.config.groups import CostConfig
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.simulation.simulated_run import run_virtual
from gbactl.wire.messages import Event
from tests.support import small_data

DATA = small_data.options(1500)


def config(
    mode: str, *, workers: int = 4, servers: int = 2, global_batch: int = 128, seed: int = 3, every: int = 5,
    faults: list[dict[str, Any]] | None = None, cost: dict[str, Any] | None = None, hard: bool = True,
    switches: list[dict[str, Any]] | None = None, norms_every: int = 0, dense: int | None = None, **mode_options: Any,
) -> RunConfig:  # fmt: skip
    """`hard`: batch norm and dropout; `dense`: servers that hold some of the dense part."""
    model = {"dropout": 0.2, "batch_norm": True} if hard else {}
    cfg = RunConfig(
        mode=ModeConfig(name=mode, **{"prefetch": "none", **mode_options}),
        model=ModelConfig(dim=4, hidden=[8], **model),  # type: ignore[arg-type]
        cluster=ClusterConfig(name="virtual", workers=workers, servers=servers, dense_servers=dense),
        train=TrainConfig(global_batch=global_batch, eval_batch=200, checksum_every=every, norms_every=norms_every),
        optim=OptimConfig(),
        faults=FaultsConfig(plans=faults or []),
        switch=SwitchConfig(schedule=switches or []),
        cost=CostConfig(**(cost or {})),
        seed=seed,
    )
    return check(cfg)


def run(cfg: RunConfig, data: Path, run_dir: Path, events: list[Event] | None = None) -> dict[str, Any]:
    """The result's fields, whose accounts are checked; `events` gets all events."""
    run_dir.mkdir(parents=True, exist_ok=True)
    dataset = open_dataset(data)
    result = run_virtual(cfg, dataset, run_dir, ([] if events is None else events).append)
    adds_up(result, samples_of(cfg, dataset), refuses=any(plan["kind"] == "hang" for plan in cfg.faults.plans))
    return result


def model(result: dict[str, Any]) -> str:
    """The checksum that no sharding changes."""
    total = result["checksums"]["model"]
    assert isinstance(total, str)
    return total


def samples_of(cfg: RunConfig, dataset: Dataset) -> int:
    """How many samples a run reads: the training data once an epoch, or every day but the last."""
    rows = [split.rows for split in dataset.splits]
    return cfg.train.epochs * rows[0] if dataset.kind == "splits" else sum(rows[:-1])


def adds_up(result: dict[str, Any], samples: int, refuses: bool = False) -> None:
    """Every sample that was read has one fate. `refuses`: who has hung is refused when it wakes up."""
    counted = result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == samples
    assert math.isfinite(result["auc"]) and (refuses or result["refused_frames"] == 0)
