"""The saver of a server, as the configuration wants it. Costs what its priority costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

from gbactl.checkpoint import folder as folders
from gbactl.checkpoint import priority
from gbactl.checkpoint.plan import rhythm_of
from gbactl.config import RunConfig
from gbactl.data.dataset import Schema
from gbactl.server.checkpoint_writer import Chooser, Saver
from gbactl.store.shard import Shard
from gbactl.wire.messages import Saved


def saver_of(
    cfg: RunConfig, schema: Schema, run_dir: Path, shard: Shard, tell: Callable[[Saved], None], spare: int,
    inline: bool = False,
) -> Saver:  # fmt: skip
    """Also where nothing is saved but at a signal. `spare`: bytes that a save leaves free on the disk; `inline`:
    written within the calls, in no other thread."""
    c = cfg.checkpoint
    chooser = Chooser(shard, None, (), c.share)
    if rhythm_of(c, cfg.cluster.servers).parts > 1:
        large = priority.largest_tables(tables(schema), c.large_tables)
        spans = priority.local_spans(large, shard.spec.shard, shard.spec.shards)
        name, seed = c.name.removeprefix("cpr_"), cfg.seed * 1009 + shard.spec.shard
        order = priority.make(name, shard.rows.table, spans, c.share, seed)
        chooser = Chooser(shard, order, spans, c.share)
    return Saver(shard, run_dir / folders.NAME, chooser, c.memory_mb << 20, tell, inline, c.dtype, spare)


def tables(schema: Schema) -> list[tuple[int, int]]:
    """Each field's rows in the fused table; one for all where they share their ids."""
    if schema.shared_ids:
        return [(0, schema.rows)]
    edges = [0, *itertools.accumulate(schema.cardinalities)]
    return list(itertools.pairwise(edges))
