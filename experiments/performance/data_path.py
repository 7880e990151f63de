"""Benchmark of the data path alone: batches sliced from the mapped cache and deduplicated, without a pull.

    python experiments/performance/data_path.py [--shuffle] --seconds 6 data=synthetic ...

A worker does the same before its pull: arrays that training copies out of the map (numeric features, labels) are copied
here, too. One process, one thread. Prints samples per second.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from process_group import one_thread_each


def measure(path: str, overrides: list[str], shuffle: bool, seconds: float) -> float:
    """Samples per second over day 0, repeated from its start when it ends."""
    from plain_loop import samples_per_second

    from gbactl.data.dataset import open_dataset
    from gbactl.launch.hydra_config import compose
    from gbactl.wire.messages import BeginPhase, Granted
    from gbactl.worker.loop import MappedBatchSource

    cfg = compose([*overrides, f"train.shuffle={str(shuffle).lower()}", "cluster.servers=1"])
    dataset = open_dataset(Path(path))
    batch, rows = cfg.local_batch, dataset.splits[0].rows
    source = MappedBatchSource(cfg, dataset)
    source.begin(BeginPhase(1, True, "async", 0, 0, rows, batch, 0, True, True))

    def prepare(i: int) -> None:
        data, _ = source.prepare(Granted(1, i, 0, i * batch % (rows - batch + 1), batch, 0, 1.0, 1.0))
        np.array(data.numeric), np.array(data.labels, np.float32)

    return samples_per_second(prepare, batch, seconds)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    one_thread_each()
    from plain_loop import prepared

    print(f"{measure(prepared(given.overrides), given.overrides, given.shuffle, given.seconds):.0f}")


if __name__ == "__main__":
    sys.exit(main())
