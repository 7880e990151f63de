"""Peer of `sync`: the plain script of a torch DDP user, with 26 x nn.Embedding(sparse=True), Adam, Gloo.

    python experiments/performance/peers/ddp_peer.py --processes 2 --seconds 6 data=synthetic ...

One module of gbactl's dense model and 26 tables under DistributedDataParallel, which overlaps its buckets with
the backward pass. The tables' sparse gradients go through Gloo's sparse all-reduce, and every rank holds and
updates whole tables. torch.optim.Adam (fused) for the dense parameters, torch.optim.SparseAdam for the tables. Prints
the samples per second of all processes together.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from process_group import peer_command  # noqa: E402  (a script of the parent folder, not a package)


def one(
    path: str, overrides: list[str], rank: int, size: int, seconds: float, meeting: str, barrier: Any, out: Any
) -> None:
    """Train as one rank and put its samples per second into `out`."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist
    from plain_loop import Feed
    from torch_model import FieldTables, Plain, stepping, timed

    from gbactl.data.dataset import open_dataset
    from gbactl.launch.hydra_config import compose

    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    cfg, dataset = compose(overrides), open_dataset(Path(path))
    module = Plain(cfg, dataset.schema, FieldTables)
    model = torch.nn.parallel.DistributedDataParallel(module)
    optimizers = [
        torch.optim.Adam(module.model.parameters(), cfg.optim.lr, fused=True),
        torch.optim.SparseAdam(list(module.tables.parameters()), cfg.optim.lr),
    ]
    step = stepping(model, optimizers, Feed(dataset, cfg.local_batch, rank, size))

    def agreed(steps: int) -> int:
        told = torch.tensor([steps])
        dist.broadcast(told, 0)
        return int(told)

    out.put(timed(step, seconds, cfg.local_batch, barrier, agreed))
    dist.barrier()  # a rank that leaves early cuts off messages of the others
    dist.destroy_process_group()


if __name__ == "__main__":
    peer_command(__doc__, one, 2)
