"""The saver of a server, as the configuration wants it. Costs what its priority costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from gbactl.checkpoint import folder as folders
from gbactl.checkpoint import priority
from gbactl.checkpoint.intervals import rhythm_of
from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.schedule import rounds
from gbactl.data.dataset import Dataset, Schema
from gbactl.server.checkpoint_writer import Chooser, Saver
from gbactl.store.shard import Shard
from gbactl.wire.messages import Saved

END_BYTES = 1 << 20  # what a run writes at its end: its result, four plots, what its tracking store has not taken yet


def saver_of(
    cfg: RunConfig, dataset: Dataset, run_dir: Path, shard: Shard, tell: Callable[[Saved], None], inline: bool = False
) -> Saver:
    """Also where nothing is saved but at a signal. `inline`: written within the calls, in no other thread."""
    c = cfg.checkpoint
    chooser = Chooser(shard, None, (), c.share)
    if rhythm_of(c, cfg.cluster.servers).parts > 1:
        large = priority.largest_tables(tables(dataset.schema), c.large_tables)
        spans = priority.local_spans(large, shard.spec.shard, shard.spec.shards)
        name, seed = c.name.removeprefix("cpr_"), cfg.seed * 1009 + shard.spec.shard
        order = priority.make(name, shard.rows.table, spans, c.share, seed)
        chooser = Chooser(shard, order, spans, c.share)
    samples = sum(dataset.splits[part.split].rows for part in rounds(dataset, cfg.train))
    spare = spare_bytes(cfg, samples)
    return Saver(shard, run_dir / folders.NAME, chooser, c.memory_mb << 20, tell, inline, c.dtype, spare)


def spare_bytes(cfg: RunConfig, samples: int) -> int:
    """Room on the disk that checkpoints leave: for the event log of a job of so many samples, and what it writes at its
    end."""
    gradients = -(-samples // min(phase.local_batch for phase in cfg.possible))
    return event_log.most_bytes(gradients, cfg.cluster.servers) + END_BYTES


def tables(schema: Schema) -> list[tuple[int, int]]:
    """Each field's rows in the fused table; one for all where they share their ids."""
    if schema.shared_ids:
        return [(0, schema.rows)]
    edges = [0, *itertools.accumulate(schema.cardinalities)]
    return list(itertools.pairwise(edges))
