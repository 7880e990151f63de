"""Peer of one process: a training loop in plain torch in the manner of facebookresearch/dlrm.

    python experiments/performance/peers/dlrm_peer.py --seconds 6 data=synthetic ...

The tables are 26 x nn.EmbeddingBag(mode="sum", sparse=True) with torch.optim.Adagrad on their sparse gradients. The
dense model is gbactl's, with its own torch.optim.Adagrad, fused (facebookresearch/dlrm has one optimizer for
everything, which would be slower). fp32. Prints the samples per second of all processes together.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from process_group import peer_command  # noqa: E402  (a script of the parent folder, not a package)


def one(path: str, overrides: list[str], rank: int, size: int, seconds: float, _: str, barrier: Any, out: Any) -> None:
    """Train independently and put the samples per second into `out`."""
    import torch
    from plain_loop import Feed
    from torch_model import FieldBags, Plain, stepping, timed

    from gbactl.data.dataset import open_dataset
    from gbactl.launch.hydra_config import compose

    cfg, dataset = compose(overrides), open_dataset(Path(path))
    model = Plain(cfg, dataset.schema, FieldBags)
    optimizers = [
        torch.optim.Adagrad(model.model.parameters(), cfg.optim.lr, fused=True),
        torch.optim.Adagrad(model.tables.parameters(), cfg.optim.lr),
    ]
    step = stepping(model, optimizers, Feed(dataset, cfg.local_batch, rank, size))
    out.put(timed(step, seconds, cfg.local_batch, barrier))


if __name__ == "__main__":
    peer_command(__doc__, one, 1)
