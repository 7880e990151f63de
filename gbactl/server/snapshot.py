"""Snapshot of a shard's rows at one moment, given out in pieces while training changes them.

Rows that are about to change are copied first, once. Memory: 4 bytes per row of the shard, and the rows that changed
before their piece was given out. Time: the copies, and a look at 4 bytes for each row that a step touches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]
Ints = NDArray[np.int32]
WANTED, DONE = -1, -2
FIRST_ROOM = 4096


class Snapshot:
    """Snapshot of the rows `index` int32[n], ascending (None: all), of `arrays` [rows, ...], which are not copied."""

    def __init__(self, arrays: Arrays, index: Ints | None = None) -> None:
        self.arrays, self.index = arrays, index
        rows = len(next(iter(arrays.values())))
        self.rows = rows if index is None else len(index)
        self._state = np.full(rows, WANTED if index is None else DONE, np.int32)
        if index is not None:
            self._state[index] = WANTED
        self._given = self._count = 0
        self._kept = {name: array[:0].copy() for name, array in arrays.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in all arrays."""
        return sum(array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)) for array in self.arrays.values())

    @property
    def done(self) -> bool:
        """Whether every piece was given out."""
        return self._given >= self.rows

    @property
    def kept_bytes(self) -> int:
        """Bytes of rows kept because they changed since."""
        return self._count * self.row_bytes

    def changing(self, index: Ints | None = None) -> None:
        """Keep copies of the rows `index`, distinct (None: all), which are about to change."""
        wanted = self._state == WANTED if index is None else self._state[index] == WANTED
        rows = np.flatnonzero(wanted) if index is None else index[wanted]
        if not len(rows):
            return
        end = self._count + len(rows)
        for name, array in self.arrays.items():
            np.take(array, rows, axis=0, out=self._room(name, end)[self._count : end], mode="clip")
        self._state[rows] = np.arange(self._count, end, dtype=np.int32)
        self._count = end

    def _room(self, name: str, needed: int) -> NDArray[Any]:
        kept = self._kept[name]
        if len(kept) < needed:
            room = np.empty((max(needed, 2 * len(kept), FIRST_ROOM), *kept.shape[1:]), kept.dtype)
            room[: self._count] = kept[: self._count]
            kept = self._kept[name] = room
        return kept

    def piece(self, rows: int) -> dict[str, NDArray[Any]]:
        """Copy the next `rows` rows, or the remaining ones, as of the moment of the snapshot."""
        low, self._given = self._given, min(self.rows, self._given + max(1, rows))
        which: Any = slice(low, self._given) if self.index is None else self.index[low : self._given]
        state = self._state[which]
        kept = np.flatnonzero(state >= 0)
        places = state[kept]
        out = {}
        for name, array in self.arrays.items():
            values = array[which].copy() if self.index is None else array[which]
            values[kept] = self._kept[name][places]
            out[name] = values
        self._state[which] = DONE
        return out
