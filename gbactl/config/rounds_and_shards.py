"""Rounds, shards and shared-memory sizes of a run, from its configuration and data.

A round is a day with next-day evaluation, or an epoch with validation.
"""

from __future__ import annotations

from dataclasses import dataclass

from gbactl.config import RunConfig, TrainConfig
from gbactl.data.dataset import Dataset
from gbactl.errors import ConfigError
from gbactl.kernels.base import Floats
from gbactl.models import row_width
from gbactl.store.dense import Cut, DenseBlock, DenseSpec, dense_range
from gbactl.store.optimizers import MOMENTS, OptimizerSpec
from gbactl.store.shard import ShardSpec


@dataclass(frozen=True)
class Round:
    """Round of a run: train on one split, then evaluate on others. Early stopping uses the score on `judged_by`."""

    split: int
    epoch: int
    label: str
    evaluate: tuple[int, ...]
    judged_by: int


def rounds(dataset: Dataset, train: TrainConfig) -> list[Round]:
    """List the rounds of a run. Raises ConfigError if a round would have no data for its evaluation."""
    if dataset.kind == "splits":
        return [Round(0, epoch, f"epoch {epoch}", (1, 2), 1) for epoch in range(train.epochs)]
    if train.epochs != 1:
        raise ConfigError("train.epochs is for data with a validation set; days are passed once: type train.epochs=1.")
    days = len(dataset.splits) - 1
    if days < 1:
        raise ConfigError("One day cannot be judged by the next; give two days or more, or type data.days=2.")
    if train.days is not None:
        if not 1 <= train.days <= days:
            raise ConfigError(f"train.days={train.days} is not possible with {days + 1} days; type 1 to {days}.")
        days = train.days
    judged_by = [len(dataset.splits) - 1 if dataset.kind == "parts" else day + 1 for day in range(days)]
    return [Round(day, 0, f"day {day}", (judge,), judge) for day, judge in enumerate(judged_by)]


def samples_of(dataset: Dataset, train: TrainConfig) -> int:
    """Count the training samples in all rounds of a run."""
    return sum(dataset.splits[part.split].rows for part in rounds(dataset, train))


def optimizer(cfg: RunConfig, lr: float, weight_decay: float) -> OptimizerSpec:
    """Return the specification of the configured optimizer with this learning rate and weight decay."""
    o = cfg.optim
    return OptimizerSpec(o.name, lr, (o.beta1, o.beta2), o.eps, weight_decay, o.initial_accumulator)


def dense_block(cfg: RunConfig, value: Floats, spec: DenseSpec) -> DenseBlock:
    """Make the whole dense vector `value` float32[n], which is held, with the configured optimizer."""
    return DenseBlock(value, spec, optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay))


def shard_spec(cfg: RunConfig, rows: int, shard: int) -> ShardSpec:
    """Return the specification of a server's shard of a table with `rows` rows, without a dense slice."""
    row_lr = cfg.optim.lr if cfg.optim.row_lr is None else cfg.optim.row_lr
    return ShardSpec(
        shard, cfg.cluster.servers, rows, row_width(cfg.model), cfg.seed, cfg.model.init_scale,
        optimizer(cfg, row_lr, 0.0), cfg.optim.row_l2, cfg.optim.row_weight_decay,
        dense_optimizer=optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay),
        sparse_divisor=cfg.mode.sparse_divisor,
        row_staleness=cfg.row_staleness,
        dense_shards=cfg.cluster.dense_holders,
    )  # fmt: skip


def row_bytes(cfg: RunConfig) -> int:
    """Return the size of one row with its optimizer state in bytes, including Adam's count of the row's steps."""
    name = cfg.optim.name
    moments = 0 if name == "rowwise_adagrad" else len(MOMENTS[name])
    return row_width(cfg.model) * 4 * (1 + moments) + (4 if name in ("adam", "rowwise_adagrad") else 0)


def dense_cuts(cfg: RunConfig, size: int) -> list[Cut]:
    """Divide a dense vector of `size` values among the servers; returns each server's slice [low, high).

    Servers that hold rows alone have an empty one."""
    cluster = cfg.cluster
    return [dense_range(size, shard, cluster.dense_holders) for shard in range(cluster.servers)]


def segment_bytes(cfg: RunConfig, dataset: Dataset, dense: int) -> tuple[int, int]:
    """Compute the sizes of the shared-memory slots between one worker and one server.

    They are the largest push and the largest answer, in bytes; (0, 0) over TCP. The server holds `dense` values of the
    dense vector."""
    if cfg.cluster.transport != "shm":
        return 0, 0
    ids, width = dataset.ids_of_sample, row_width(cfg.model)
    # ids are spread by a modulo: only in unusual data a shard's slice exceeds twice its share; it then goes by wire
    share = 1.0 if cfg.cluster.servers == 1 else min(1.0, 2.0 / cfg.cluster.servers)
    local_batch = max(phase.local_batch for phase in cfg.possible)
    push = int(local_batch * ids * share) * 4 * (width + 1) + 4 * dense
    answer = int(max(local_batch, cfg.train.eval_batch) * ids * share) * 4 * width + 4 * dense
    return push, answer
