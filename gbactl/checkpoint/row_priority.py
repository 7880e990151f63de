"""Priority of rows in a save: most changed (scar), most used (mfu), or a sample of the recently used (ssu).

The priorities follow the idea of CPR. They are pure (numpy alone) and seeded. For each row of the shard, scar takes 4 x
width bytes, mfu 4, and ssu 1 (and 4 for each row in its sample). A step costs scar nothing, mfu an addition for each
row that a gradient carries, and ssu half of that and a random number. A choice costs a pass over the rows of `spans`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gbactl.errors import ConfigError

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Spans = Sequence[tuple[int, int]]
CHUNK = 1 << 14


class RowPriority(Protocol):
    """Priority by which a save chooses rows among the ranges `spans` of a shard's local rows."""

    def count_updates(self, index: Ints) -> None:
        """Record that a gradient was applied to the rows `index` (int32[n], distinct)."""

    def choose(self, count: int, table: Floats) -> Ints:
        """Choose at most `count` rows to save now and return them, int32 ascending.

        `table` f32[rows, W] has the values with which they are saved."""

    def record_save(self, table: Floats) -> None:
        """Record that all rows were saved with their values in `table`."""

    @property
    def nbytes(self) -> int:
        """Memory used by the priority's counters or copies, in bytes."""


def make(name: str, table: Floats, spans: Spans, share: float, seed: int) -> RowPriority:
    """Create the priority named scar, mfu or ssu (of checkpoint=cpr_NAME). Raises ConfigError for another name."""
    if name == "scar":
        return Scar(table, spans)
    if name == "mfu":
        return Mfu(len(table), spans)
    if name == "ssu":
        return Ssu(len(table), spans, max(1, round(share * size(spans))), seed)
    raise ConfigError(f"There is no priority {name}; there are scar, mfu and ssu.")


def size(spans: Spans) -> int:
    """Count the rows in all ranges."""
    return sum(high - low for low, high in spans)


def largest(scores: NDArray[Any], count: int) -> NDArray[np.intp]:
    """Find the indexes of the `count` largest positive scores, ascending; the first of equal scores wins. O(n)."""
    positive = np.flatnonzero(scores > 0)
    if len(positive) <= count:
        return positive
    if count == 0:
        return positive[:0]
    values = scores[positive]
    edge = np.partition(values, len(values) - count)[len(values) - count]
    above = positive[values > edge]
    equal = positive[values == edge][: count - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _split(chosen: NDArray[np.intp], spans: Spans) -> list[NDArray[np.intp]]:
    """Convert ascending indexes into the concatenated ranges to indexes within each range."""
    edges = np.cumsum([0, *(high - low for low, high in spans)])
    cuts = np.searchsorted(chosen, edges)
    return [chosen[a:b] - first for a, b, first in zip(cuts, cuts[1:], edges, strict=False)]


class Scar(RowPriority):
    """Priority of rows whose values changed most (L2 distance) since they were saved."""

    def __init__(self, table: Floats, spans: Spans) -> None:
        self._spans = spans
        self._saved = [table[low:high].copy() for low, high in spans]

    def count_updates(self, index: Ints) -> None:
        pass  # nothing to record, as the values are compared

    def choose(self, count: int, table: Floats) -> Ints:
        if not self._spans:
            return np.empty(0, np.int32)
        parts = zip(self._spans, self._saved, strict=True)
        scores = np.concatenate([_distances(table[low:high], saved) for (low, high), saved in parts])
        rows = []
        places = _split(largest(scores, count), self._spans)
        for mine, (low, high), saved in zip(places, self._spans, self._saved, strict=True):
            saved[mine] = table[low:high][mine]
            rows.append(mine + low)
        return np.concatenate(rows).astype(np.int32)

    def record_save(self, table: Floats) -> None:
        for (low, high), saved in zip(self._spans, self._saved, strict=True):
            np.copyto(saved, table[low:high])

    @property
    def nbytes(self) -> int:
        return sum(saved.nbytes for saved in self._saved)


def _distances(now: Floats, before: Floats) -> Floats:
    """Compute the squared L2 distance between the old and new values of each row, f32[n]."""
    out = np.empty(len(now), np.float32)
    for low in range(0, len(now), CHUNK):
        difference = now[low : low + CHUNK] - before[low : low + CHUNK]
        out[low : low + CHUNK] = np.einsum("ij,ij->i", difference, difference)
    return out


class Mfu(RowPriority):
    """Priority of rows that were updated most often since they were saved; 4 bytes a row."""

    def __init__(self, rows: int, spans: Spans) -> None:
        self._spans = spans
        self.counts = np.zeros(rows, np.uint32)

    def count_updates(self, index: Ints) -> None:
        self.counts[index] += np.uint32(1)

    def choose(self, count: int, table: Floats) -> Ints:
        if not self._spans:
            return np.empty(0, np.int32)
        counts = np.concatenate([self.counts[low:high] for low, high in self._spans])
        places = _split(largest(counts, count), self._spans)
        rows = [mine + low for mine, (low, _) in zip(places, self._spans, strict=True)]
        chosen: Ints = np.concatenate(rows).astype(np.int32)
        self.counts[chosen] = 0
        return chosen

    def record_save(self, table: Floats) -> None:
        self.counts[:] = 0

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes


class Ssu(RowPriority):
    """Priority of recently updated rows: a random sample of them, emptied at each save.

    Every second row that a gradient carries enters a set of `room` rows; in a full set it replaces a random row."""

    def __init__(self, rows: int, spans: Spans, room: int, seed: int) -> None:
        self._within = np.zeros(rows, np.uint8)  # 0: row outside the spans, 1: not in the sample, 2: in the sample
        for low, high in spans:
            self._within[low:high] = 1
        self._members = np.empty(room, np.int32)
        self._count, self._skip = 0, 0
        self._random = np.random.default_rng(seed)

    def count_updates(self, index: Ints) -> None:
        second = index[self._skip :: 2]
        self._skip = (self._skip + len(index)) % 2
        new = second[self._within[second] == 1]
        free = min(len(new), len(self._members) - self._count)
        self._members[self._count : self._count + free] = new[:free]
        self._within[new[:free]] = 2
        self._count += free
        self._evict(new[free:])

    def _evict(self, new: Ints) -> None:
        """Replace a random member of the sample by each of the rows `new`, in order."""
        if not len(new):
            return
        places = self._random.integers(len(self._members), size=len(new))
        self._within[self._members[places]] = 1
        self._members[places] = new  # of two rows that drew the same place, the later one stays
        self._within[self._members[places]] = 2

    def choose(self, count: int, table: Floats) -> Ints:
        members = self._members[: self._count]
        kept = members if len(members) <= count else self._random.permutation(members)[:count]
        self._clear()
        return np.sort(kept).astype(np.int32)

    def record_save(self, table: Floats) -> None:
        self._clear()

    def _clear(self) -> None:
        self._within[self._members[: self._count]] = 1
        self._count = 0

    @property
    def nbytes(self) -> int:
        return self._within.nbytes + self._members.nbytes


def largest_tables(tables: Spans, share: float) -> list[tuple[int, int]]:
    """Choose the largest tables until they have at least `share` of all rows; a table is a range of global rows."""
    order = sorted(tables, key=lambda table: (table[0] - table[1], table[0]))
    chosen: list[tuple[int, int]] = []
    while order and size(chosen) < share * size(tables):
        chosen.append(order.pop(0))
    return sorted(chosen)


def local_spans(tables: Spans, shard: int, shards: int) -> list[tuple[int, int]]:
    """Convert ranges of global rows to ranges of a shard's local rows, ascending.

    Global row r is on shard r % shards, at local row r // shards."""

    def local(row: int) -> int:
        return max(0, -(-(row - shard) // shards))

    spans = [(local(low), local(high)) for low, high in sorted(tables)]
    return [span for span in spans if span[0] < span[1]]
