"""Benchmark of the data path alone: batches sliced from the mapped cache and deduplicated, without a pull.

A worker does the same before its pull: arrays that training copies out of the map (numeric features, labels) are copied
here, too. One process, one thread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np


def measure(overrides: list[str], shuffle: bool, seconds: float) -> float:
    """Samples per second over day 0, repeated from its start when it ends."""
    from plain_loop import prepared, samples_per_second

    from gbactl.data.dataset import open_dataset
    from gbactl.launch.hydra_config import compose
    from gbactl.wire.messages import BeginPhase, Granted
    from gbactl.worker.loop import MappedBatchSource

    cfg = compose([*overrides, f"train.shuffle={str(shuffle).lower()}", "cluster.servers=1"])
    dataset = open_dataset(Path(prepared(overrides)))
    batch, rows = cfg.local_batch, dataset.splits[0].rows
    source = MappedBatchSource(cfg, dataset)
    source.begin(BeginPhase(1, True, "async", 0, 0, rows, batch, 0, True, True))

    def prepare(i: int) -> None:
        data, _ = source.prepare(Granted(1, i, 0, i * batch % (rows - batch + 1), batch, 0, 1.0, 1.0))
        np.array(data.numeric), np.array(data.labels, np.float32)

    return samples_per_second(prepare, batch, seconds)
