"""A small training, and a machine whose prices are known."""

from __future__ import annotations

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, TrainConfig, check
from gbactl.config.groups import CostConfig
from tests.support import small_data

DATA = small_data.options(20_000)

MACHINE = CostConfig(
    cores=2, batch_us=300.0, sample_us=20.0, server_message_us=50.0, row_pull_ns=60.0, row_apply_ns=200.0,
    dense_pull_ns=0.6, dense_apply_ns=0.4, dense_step_ns=1.4, coordinator_message_us=70.0, allreduce_us=900.0,
    allreduce_work_us=600.0, allreduce_message_us=100.0, allreduce_float_ns=400.0,
)  # fmt: skip


def config(mode: str, workers: int, local_batch: int = 64) -> RunConfig:
    """A run of the local backend, as a calibration would make it."""
    cfg = RunConfig(
        mode=ModeConfig(name=mode),
        data=dict(DATA),
        model=ModelConfig(dim=4, hidden=[16]),
        cluster=ClusterConfig(workers=workers, servers=2, threads=1),
        train=TrainConfig(global_batch=local_batch * workers, eval_batch=500, max_eval_samples=1000),
        seed=3,
    )
    return check(cfg)
