"""Bytes that a training sent, counted from its event log: rows, dense slices, all-reduces, replicas' exchanges.

Counts payloads of training only: a message's header of 120 bytes and evaluation are left out. A batch's distinct rows
are deduplicated again as its worker did: half a second a day of 200,000 samples, once for all modes.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig, from_dict
from gbactl.config.shard_layout import dense_cuts
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, InfoRecord, OrderRecord
from gbactl.data.dataset import open_dataset
from gbactl.data.source_cache import prepare
from gbactl.kernels import load
from gbactl.models import build, row_width
from gbactl.models.flat_parameters import FlatModel
from gbactl.policies.policy import policy_class
from gbactl.wire.messages import BeginPhase, Granted
from gbactl.worker.loop import MappedBatchSource


class Count:
    """Byte counter of one run: `bytes`, by kind."""

    def __init__(self, cfg: RunConfig, data: Path) -> None:
        self.cfg, self.data = cfg, data
        schema = open_dataset(data).schema
        self.dense = FlatModel(build(cfg.model, schema.numeric, schema.fields, cfg.seed)).size
        self.width = row_width(cfg.model)
        self._slices = [high - low for low, high in dense_cuts(cfg, self.dense)]
        self._home = ""
        self._distinct: tuple[int, ...] = ()
        self._held: dict[tuple[int, int], int] = {}
        self._pulled: Counter[int] = Counter()
        self.bytes: Counter[str] = Counter()

    def see(self, record: Any) -> None:
        """Count the log's next record."""
        if isinstance(record, InfoRecord) and record.kind == event_log.PHASE and record.fields["training"]:
            self._begin(BeginPhase(**record.fields))
        elif isinstance(record, AnnounceRecord):
            self._gradient(record)
        elif isinstance(record, OrderRecord) and self._home == "workers":
            self.bytes["all-reduce"] += 8 * self.dense * (self.cfg.cluster.workers - 1)

    def _begin(self, phase: BeginPhase) -> None:
        self._home = policy_class(phase.mode).home
        where = phase._replace(number=0, mode="", first_step=0, served_dense=False, prefetch_rows=False)
        self._distinct = distinct(self.data, self.cfg.seed, self.cfg.train.shuffle, tuple(map(_hashable, where)))

    def _gradient(self, record: AnnounceRecord) -> None:
        """Count a gradient: row indices sent and rows returned, indices and rows' gradients sent.

        Dense values if on servers.
        """
        self.bytes["rows"] += 8 * (1 + self.width) * self._distinct[record.batch]
        if self._home != "servers":
            return
        self.bytes["dense"] += 4 * self.dense
        self._pulled[record.worker] += 1
        early = self._pulled[record.worker] <= 1 + (
            self.cfg.mode.prefetch == "rows"
        )  # asked for before the worker held a slice
        for shard, version in enumerate(record.dense_versions):
            if early or self._held.get((record.worker, shard)) != version:  # a slice is sent only where it has changed
                self._held[record.worker, shard] = version
                self.bytes["dense"] += 4 * self._slices[shard]


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.cache
def distinct(data: Path, seed: int, shuffle: bool, phase: tuple[Any, ...]) -> tuple[int, ...]:
    """Number of distinct rows of every batch of a phase."""
    begun = BeginPhase(*phase)
    source = MappedBatchSource(open_dataset(data), load(), 1, seed, shuffle)
    source.begin(begun._replace(ranges=list(begun.ranges)))
    starts = range(0, begun.samples, begun.local_batch)
    grants = (
        Granted(0, batch, 0, start, min(begun.local_batch, begun.samples - start), 0, 1.0, 1.0)
        for batch, start in enumerate(starts)
    )
    return tuple(len(source.prepare(grant)[1].index) for grant in grants)


def sent(records: Iterable[Any], data: Path | None = None) -> Counter[str]:
    """Bytes by kind of one run's log, header first; `data`: the prepared data, else the data named in its header."""
    count: Count | None = None
    for record in records:
        if count is None:
            cfg = from_dict(record.fields["config"])
            count = Count(cfg, data or prepare(cfg.data))
        count.see(record)
    return Counter() if count is None else count.bytes


def megabytes(folder: Path, result: dict[str, Any]) -> float:
    """Megabytes that the run in `folder` sent in all."""
    replicas = (result.get("replicas") or {}).get("bytes_exchanged", 0)
    return (sum(sent(event_log.read(folder / "events.log")).values()) + replicas) / 1e6
