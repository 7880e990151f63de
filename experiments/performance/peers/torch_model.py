"""Common parts of the plain torch scripts: gbactl's dense model over a table a field, batches as tensors, timing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from plain_loop import WARM_UP
from torch import Tensor

from gbactl.config import RunConfig
from gbactl.data.dataset import Batch, Schema
from gbactl.models import build, row_width

LEAST_STEPS = 5


class FieldTables(torch.nn.ModuleList):
    """Embedding tables, one nn.Embedding(sparse=True) a field."""

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__(torch.nn.Embedding(n, width, sparse=True) for n in schema.cardinalities)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids int64[B, F] as float32[B, F, W]."""
        return torch.stack([table(ids[:, f]) for f, table in enumerate(self)], dim=1)


class FieldBags(torch.nn.ModuleList):
    """Embedding bags, one nn.EmbeddingBag(mode="sum", sparse=True) a field, one id a bag, as in DLRM."""

    def __init__(self, schema: Schema, width: int) -> None:
        super().__init__(torch.nn.EmbeddingBag(n, width, mode="sum", sparse=True) for n in schema.cardinalities)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up ids int64[B, F] as float32[B, F, W]."""
        offsets = torch.arange(len(ids))
        of_fields = ids.t().contiguous()
        return torch.stack([bag(of_fields[f], offsets) for f, bag in enumerate(self)], dim=1)


class Plain(torch.nn.Module):
    """Model of embedding tables and gbactl's dense model, all as torch parameters; one thread, denormals flushed."""

    def __init__(self, cfg: RunConfig, schema: Schema, tables: Callable[[Schema, int], torch.nn.Module]) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        torch.manual_seed(cfg.seed)
        self.model = build(cfg.model, schema.numeric, schema.fields, cfg.seed)
        self.tables = tables(schema, row_width(cfg.model))
        for weight in self.tables.parameters():
            torch.nn.init.uniform_(weight, -cfg.model.init_scale, cfg.model.init_scale)

    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        """Compute logits float32[B]."""
        logits: Tensor = self.model(numeric, self.tables(ids))
        return logits


def batch_of(data: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Copy a batch out of the mapped data: (ids int64[B, F], numeric float32[B, N], labels float32[B])."""
    ids = torch.tensor(data.ids, dtype=torch.int64)
    return ids, torch.tensor(data.numeric), torch.tensor(data.labels, dtype=torch.float32)


def stepping(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], feed: Callable[[int], Batch]
) -> Callable[[int], None]:
    """Make the step of a plain loop: zero gradients, forward, backward, every optimizer."""
    criterion = torch.nn.BCEWithLogitsLoss()

    def step(i: int) -> None:
        ids, numeric, labels = batch_of(feed(i))
        for each in optimizers:
            each.zero_grad()
        criterion(model(numeric, ids), labels).backward()
        for each in optimizers:
            each.step()

    return step


def timed(
    step: Callable[[int], None], seconds: float, batch: int, barrier: Any, agreed: Callable[[int], int] = int
) -> float:
    """Measure samples per second of one rank. All ranks take the same number of steps: `agreed(own guess)`."""
    began = time.perf_counter()
    for i in range(WARM_UP):
        if i == WARM_UP // 2:
            began = time.perf_counter()
        step(i)
    each = (time.perf_counter() - began) / (WARM_UP - WARM_UP // 2)
    steps = max(LEAST_STEPS, agreed(int(seconds / each)))
    barrier.wait()
    began = time.perf_counter()
    for i in range(steps):
        step(WARM_UP + i)
    return steps * batch / (time.perf_counter() - began)
