"""Small runs on the in-memory cluster, recorded for a replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, OptimConfig, RunConfig, ScheduleConfig, TrainConfig
from gbactl.config import check as checked
from gbactl.data.cache import prepare
from tests.support.memory_cluster import run_in_memory
from tests.support.samples import libfm


def splits(folder: Path, rows: int = 730) -> dict[str, Any]:
    """The `data` section of a set with train, validation and test, which epochs need; 3 fields of 20 ids."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(5), {}
    for name, count in (("train", rows), ("validation", 60), ("test", 60)):
        path = folder / f"{name}.libfm"
        path.write_text(libfm(rng, count))
        paths[name] = str(path)
    return {"name": "libfm", "cache": str(folder / "cache"), **paths}


def config(mode: str, data: dict[str, Any], servers: int = 3, **options: Any) -> RunConfig:
    """Two epochs, four workers, prefetch, batch norm, dropout, a schedule, a short last batch."""
    common = {key: options.pop(key) for key in ("prefetch", "sparse_divisor", "local_batch") if key in options}
    return checked(
        RunConfig(
            mode=ModeConfig(name=mode, options=options, **{"prefetch": "rows", "local_batch": 16, **common}),
            data=data,
            model=ModelConfig(dim=4, hidden=[8], dropout=0.3, batch_norm=True),
            optim=OptimConfig(lr=0.01, schedule=ScheduleConfig("cosine", 2, 20, 0.1)),
            cluster=ClusterConfig(workers=4, servers=servers, threads=1),
            train=TrainConfig(global_batch=64, eval_batch=60, epochs=2, shuffle=True, checksum_every=5),
            seed=3,
        )
    )


def record(cfg: RunConfig, run_dir: Path) -> dict[str, Any]:
    """Run it; the log is in `run_dir`."""
    return run_in_memory(cfg, prepare(cfg.data), run_dir)
