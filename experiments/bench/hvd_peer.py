"""The peer of `sync`: the plain script a Horovod user writes, 26 x nn.Embedding(sparse=True) and Adam.

    python experiments/bench/hvd_peer.py --processes 2 --seconds 6 data=synthetic ...

The dense part is gbactl's model under hvd.DistributedOptimizer(torch.optim.Adam). The tables are
nn.Embedding(sparse=True) under hvd.DistributedOptimizer(torch.optim.SparseAdam): for sparse gradients
Horovod gathers every rank's (index, value) pairs, and every rank holds and updates whole tables. Horovod has
its own defaults (tensor fusion on, a cycle of 1 ms) unless `--cycle-ms` says otherwise. Prints the samples
per second of all processes together.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from crew import rates

DEFAULTS = {"HOROVOD_FUSION_THRESHOLD": str(128 << 20)}


def one(
    path: str, overrides: list[str], rank: int, size: int, options: argparse.Namespace,
    environment: dict[str, str], barrier: Any, out: Any,
) -> None:  # fmt: skip
    """One rank; puts samples per second."""
    os.environ.update(environment)
    import horovod.torch as hvd
    import torch
    from alone import WARM_UP, Feed

    from gbactl.compose import compose
    from gbactl.data.dataset import open_dataset
    from gbactl.models import build, row_width

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    hvd.init()
    cfg, dataset = compose(overrides), open_dataset(Path(path))
    schema, width = dataset.schema, row_width(cfg.model)
    torch.manual_seed(cfg.seed)
    model = build(cfg.model, schema.numeric, schema.fields, cfg.seed)
    tables = torch.nn.ModuleList(torch.nn.Embedding(n, width, sparse=True) for n in schema.cardinalities)
    for table in tables:
        torch.nn.init.uniform_(table.weight, -cfg.model.init_scale, cfg.model.init_scale)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(tables.state_dict(), root_rank=0)
    optimizers = [
        hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), cfg.optim.lr, fused=True),
            named_parameters=[(f"model.{n}", p) for n, p in model.named_parameters()],
        ),
        hvd.DistributedOptimizer(
            torch.optim.SparseAdam(list(tables.parameters()), cfg.optim.lr),
            named_parameters=[(f"tables.{n}", p) for n, p in tables.named_parameters()],
        ),
    ]
    feed, criterion = Feed(dataset, cfg.local_batch, rank, size), torch.nn.BCEWithLogitsLoss()

    def step(i: int) -> None:
        data = feed(i)
        ids, numeric = torch.tensor(data.ids), torch.tensor(data.numeric)
        labels = torch.tensor(data.labels, dtype=torch.float32)
        for each in optimizers:
            each.zero_grad()
        emb = torch.stack([table(ids[:, f]) for f, table in enumerate(tables)], dim=1)
        criterion(model(numeric, emb), labels).backward()
        for each in optimizers:
            each.step()

    began = time.perf_counter()
    for i in range(WARM_UP):
        if i == WARM_UP // 2:
            began = time.perf_counter()
        step(i)
    each = (time.perf_counter() - began) / (WARM_UP - WARM_UP // 2)
    steps = max(5, int(hvd.broadcast_object(options.seconds / each, root_rank=0)))
    barrier.wait()
    began = time.perf_counter()
    for i in range(steps):
        step(WARM_UP + i)
    out.put(steps * cfg.local_batch / (time.perf_counter() - began))
    hvd.shutdown()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--cycle-ms", type=float, default=1.0)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    from alone import prepared

    from gbactl.collective import open_rendezvous

    path, size = prepared(options.overrides), options.processes
    with (
        tempfile.TemporaryDirectory(prefix="gbactl-hvd-") as folder,
        open_rendezvous("horovod", size, Path(folder), cycle_time_ms=options.cycle_ms) as meeting,
    ):
        given = [
            (path, options.overrides, r, size, options, {**meeting.environment(r), **DEFAULTS}) for r in range(size)
        ]
        print(f"{sum(rates(one, given, options.seconds)):.0f}")


if __name__ == "__main__":
    sys.exit(main())
