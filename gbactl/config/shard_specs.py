"""Specifications of a server's shard, of the dense parameters and of their optimizers, from a run's configuration."""

from __future__ import annotations

from pathlib import Path

from gbactl.checkpoint.restore import chain_at, dense_state, load_dense
from gbactl.config import RunConfig
from gbactl.kernels.base import Floats
from gbactl.models import row_width
from gbactl.store.dense import Cut, DenseBlock, DenseSpec, dense_range
from gbactl.store.optimizer_settings import MOMENTS, OptimizerSpec
from gbactl.store.shard import ShardSpec


def optimizer(cfg: RunConfig, lr: float, weight_decay: float) -> OptimizerSpec:
    """Return the specification of the configured optimizer with this learning rate and weight decay."""
    o = cfg.optim
    return OptimizerSpec(o.name, lr, (o.beta1, o.beta2), o.eps, weight_decay, o.initial_accumulator)


def dense_block(cfg: RunConfig, value: Floats, spec: DenseSpec, resumed: bool = False) -> DenseBlock:
    """Make the dense block of the whole vector `value` float32[n] (not copied) with the configured optimizer.

    `resumed`: as in the checkpoint that the run resumes from, if any. Raises CheckpointError if it does not fit."""
    block = DenseBlock(value, spec, optimizer(cfg, cfg.optim.lr, cfg.optim.weight_decay))
    if resumed and cfg.resume is not None:
        load_dense(block, dense_state(chain_at(Path(cfg.resume))))
    return block


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
