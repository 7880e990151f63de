"""Peer of `sync`: the plain script of a Horovod user, with 26 x nn.Embedding(sparse=True) and Adam.

    python experiments/performance/peers/hvd_peer.py --processes 2 --seconds 6 data=synthetic ...

The dense parameters are those of gbactl's model under hvd.DistributedOptimizer(torch.optim.Adam). The tables are
nn.Embedding(sparse=True) under hvd.DistributedOptimizer(torch.optim.SparseAdam): for sparse gradients
Horovod gathers every rank's (index, value) pairs, and every rank holds and updates whole tables. Horovod has
its own defaults (tensor fusion on, a cycle of 1 ms). Prints the samples per second of all processes together.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from process_group import rates  # noqa: E402  (a script of the parent folder, not a package)

DEFAULTS = {"HOROVOD_FUSION_THRESHOLD": str(128 << 20)}


def one(
    path: str, overrides: list[str], rank: int, size: int, options: argparse.Namespace,
    environment: dict[str, str], barrier: Any, out: Any,
) -> None:  # fmt: skip
    """Train as one rank and put its samples per second into `out`."""
    os.environ.update(environment)
    import horovod.torch as hvd
    import torch
    from plain_loop import Feed
    from torch_model import FieldTables, Plain, stepping, timed

    from gbactl.data.dataset import open_dataset
    from gbactl.launch.hydra_config import compose

    hvd.init()
    cfg, dataset = compose(overrides), open_dataset(Path(path))
    module = Plain(cfg, dataset.schema, FieldTables)
    hvd.broadcast_parameters(module.state_dict(), root_rank=0)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.Adam(module.model.parameters(), cfg.optim.lr, fused=True),
            named_parameters=[(f"model.{n}", p) for n, p in module.model.named_parameters()],
        ),
        hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(module.tables.parameters()), cfg.optim.lr),
            named_parameters=[(f"tables.{n}", p) for n, p in module.tables.named_parameters()],
        ),
    ]
    step = stepping(module, optimizers, Feed(dataset, cfg.local_batch, rank, size))

    def agreed(steps: int) -> int:
        return int(hvd.broadcast_object(steps, root_rank=0))

    out.put(timed(step, options.seconds, cfg.local_batch, barrier, agreed))
    hvd.shutdown()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    from plain_loop import prepared

    from gbactl.collective import open_rendezvous

    path, size = prepared(options.overrides), options.processes
    with (
        tempfile.TemporaryDirectory(prefix="gbactl-hvd-") as folder,
        open_rendezvous("horovod", size, Path(folder), cycle_time_ms=1.0) as meeting,
    ):
        given = [
            (path, options.overrides, r, size, options, {**meeting.environment(r), **DEFAULTS}) for r in range(size)
        ]
        print(f"{sum(rates(one, given, options.seconds)):.0f}")


if __name__ == "__main__":
    sys.exit(main())
