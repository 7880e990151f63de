"""Writer of a server's checkpoint files: copies rows piece by piece between messages; a thread writes the files.

A piece (1 MiB, about 0.2 ms) is copied after each message, and one after the other while there is no message. A row
that changes before its piece is copied must be copied by itself first, which costs more: so pieces are copied soon. The
memory is 4 bytes per row, and `max_copied_bytes` for pieces that wait for the disk and rows that changed before they
were copied. Where those rows take more than half of it, the thread writes as fast as it can; where they take more than
all of it, the server finishes copying before it serves again. A step costs a look at 4 bytes for each row that it
touches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.checkpoint import row_priority
from gbactl.checkpoint.costs_and_interval import save_schedule_of
from gbactl.checkpoint.folder import CHECKPOINTS, CUT
from gbactl.checkpoint.row_priority import RowPriority
from gbactl.checkpoint.tensor_file_writer import FileWriterThread, Layout, layout_of, with_bf16
from gbactl.config import RunConfig
from gbactl.data.dataset import Schema
from gbactl.errors import WireError
from gbactl.kernels.base import Ints, RowPart
from gbactl.store.shard import Shard
from gbactl.wire.messages import Save, Saved

FORMAT = "1"
LEAST_WAIT, MOST_WAIT = 0.005, 0.03  # seconds
COPY = 1 << 20
PIECES_AHEAD = 4  # pieces that may wait for the disk in any case
KINDS = ("whole", "rest", "chosen")


class RowChooser:
    """Choice of the rows that a checkpoint saves.

    A `share` (r) of the rows of the large tables, whose local rows are `spans`, is chosen by priority. 4 bytes per row
    count the updates that a failure would undo. Without a priority every save is whole."""

    def __init__(
        self, shard: Shard, priority: RowPriority | None, spans: Sequence[tuple[int, int]], share: float
    ) -> None:
        self.table, self.priority, self.spans, self.share = shard.rows.table, priority, spans, share
        self._unsaved: NDArray[Any] = np.zeros(0 if priority is None else len(self.table), np.uint32)

    def count_updates(self, parts: Sequence[RowPart]) -> None:
        """Count updates of the rows that a step with these gradients changes; nothing without a priority."""
        if self.priority is None:
            return
        for index, _, _ in parts:
            self.priority.count_updates(index)
            self._unsaved[index] += np.uint32(1)

    def mark_saved(self, index: Ints | None) -> int:
        """Mark rows as saved (None: all rows). Returns the number of their unsaved updates; 0 if not counted."""
        if self.priority is None:
            return 0
        rows: Any = slice(None) if index is None else index
        saved = int(self._unsaved[rows].sum(dtype=np.uint64))
        self._unsaved[rows] = 0
        return saved

    def rows(self, kind: str) -> Ints | None:
        """Choose the rows that a checkpoint of this kind saves: int32[n] ascending; None: all rows."""
        if self.priority is None:
            return None
        if kind == "whole":
            self.priority.record_save(self.table)
            return None
        chosen = self.priority.choose(round(self.share * row_priority.size(self.spans)), self.table)
        return chosen if kind == "chosen" else np.union1d(chosen, self._small()).astype(np.int32)

    def largest_fraction(self, kind: str) -> float:
        """Largest fraction of a shard's rows that a checkpoint of this kind saves."""
        large = row_priority.size(self.spans)
        if self.priority is None or kind == "whole" or not len(self.table):
            return 1.0
        small = 0 if kind == "chosen" else len(self.table) - large
        return (round(self.share * large) + small) / len(self.table)

    def _small(self) -> Ints:
        small = np.ones(len(self.table), bool)
        for low, high in self.spans:
            small[low:high] = False
        return np.flatnonzero(small).astype(np.int32)


class ShardSaver:
    """Saver of one shard's checkpoints.

    `folder`: the checkpoints of the run; `tell` sends a message to the coordinator; `dtype` of rows and moments in
    files: fp32 or bf16; `spare`: bytes that a save leaves free on the disk."""

    def __init__(
        self, shard: Shard, folder: Path, chooser: RowChooser, max_copied_bytes: int, tell: Callable[[Saved], None],
        inline: bool = False, dtype: str = "fp32", spare: int = 0,
    ) -> None:  # fmt: skip
        self.shard, self.folder, self.chooser, self.max_copied_bytes = shard, folder, chooser, max_copied_bytes
        self.tell, self.inline, self.dtype, self.spare = tell, inline, dtype, spare
        self._save: Save | None = None
        self._snapshot: Snapshot | None = None
        self._writer: FileWriterThread | None = None
        self._rows = self._saved_updates = 0
        self._watch()

    @property
    def has_room(self) -> bool:
        """Whether another piece of rows may be copied to the writer now."""
        if self._writer is None or self._snapshot is None:
            return False
        waiting = self._writer.waiting
        return waiting < PIECES_AHEAD or waiting * COPY + self._snapshot.copied_bytes < self.max_copied_bytes

    @property
    def patience(self) -> float | None:
        """Longest time in seconds to wait for a message before copying the next piece of rows to the writer.

        None (no limit) where nothing is being saved, else half the time that the writing thread needs for its queue:
        shorter waits take the processor from the workers."""
        if self._writer is None:
            return None
        if self.has_room:
            return 0.0
        pace = self._writer.pace
        return LEAST_WAIT if pace <= 0 else min(MOST_WAIT, max(LEAST_WAIT, PIECES_AHEAD * COPY / pace / 2))

    def begin(self, save: Save) -> None:
        """Begin to save the shard's present state. Raises WireError for an invalid order."""
        valid = save.kind in KINDS and CUT.fullmatch(save.name) and save.step == self.shard.version
        if not valid:
            order = f"a {save.kind} checkpoint {save.name} of step {save.step}"
            raise WireError(f"{order} cannot be saved at version {self.shard.version}")
        self.give_up()
        index = self.chooser.rows(save.kind)
        self._saved_updates = self.chooser.mark_saved(index)
        arrays = self.shard.rows.arrays
        self._save, self._snapshot = save, Snapshot(arrays, index)
        self._rows = self._snapshot.rows
        whole: dict[str, NDArray[Any]] = {} if index is None else {"index": index}
        if save.dense:
            whole |= {f"dense.{name}": array for name, array in self.shard.dense_state().items()}
        layout: Layout = {name: (a.dtype, (self._rows, *a.shape[1:])) for name, a in arrays.items()}
        layout = {**(with_bf16(layout, arrays) if self.dtype == "bf16" else layout), **layout_of(whole)}
        path = self.folder / save.name / f"S{self.shard.spec.shard}.safetensors"
        pace = 0.0 if self.inline else save.pace
        self._writer = writer = FileWriterThread(path, layout, self._metadata(save), pace, self.spare)
        self._watch()
        writer.add(whole)
        if self.inline:
            self._copy_all()
            writer.join()
            self.advance()

    def _metadata(self, save: Save) -> dict[str, str]:
        spec = self.shard.spec
        numbers = {"shard": spec.shard, "shards": spec.shards, "table_rows": spec.rows, "step": save.step}
        return {"gbactl": FORMAT, **{name: str(number) for name, number in numbers.items()}}

    def _watch(self) -> None:
        """Subscribe to the shard's steps if a save in progress or the choice of rows depends on them."""
        needed = self._snapshot is not None or self.chooser.priority is not None
        self.shard.watcher = self._before_step if needed else None

    def _before_step(self, parts: Sequence[RowPart]) -> None:
        self.chooser.count_updates(parts)
        if self._snapshot is None:
            return
        if self.shard.spec.row_l2 == "all":
            self._snapshot.copy_before_change()
        else:
            for index, _, _ in parts:
                self._snapshot.copy_before_change(index)
        if self._writer is not None and self._snapshot.copied_bytes > self.max_copied_bytes // 2:
            self._writer.lift_rate_limit()
        if self._snapshot.copied_bytes > self.max_copied_bytes:
            self._copy_all()

    def advance(self) -> None:
        """Copy a piece of rows if the writer has room, and report a finished save. Called between two messages."""
        writer, snapshot = self._writer, self._snapshot
        if writer is None:
            return
        if snapshot is not None and self.has_room:
            self._copy(snapshot, writer)
        if writer.ended:
            self._finish(writer)

    def _copy_all(self) -> None:
        while self._snapshot is not None and self._writer is not None:
            self._copy(self._snapshot, self._writer)
            self._writer.wait(PIECES_AHEAD)

    def _copy(self, snapshot: Snapshot, writer: FileWriterThread) -> None:
        if not snapshot.done:
            writer.add(snapshot.next_piece(COPY // snapshot.row_bytes))
        if snapshot.done:
            self._snapshot = None
            self._watch()
            writer.end()

    def _finish(self, writer: FileWriterThread) -> None:
        save, self._writer, self._snapshot = self._save, None, None
        self._watch()
        assert save is not None
        written = writer.written
        size, sums = (0, {}) if written is None else (written.bytes, written.sums)
        fields = size, self._rows, sums, writer.error, self._saved_updates, writer.finite
        self.tell(Saved(self.shard.spec.shard, save.number, *fields))

    def give_up(self) -> None:
        """Give up the save in progress."""
        if self._writer is not None:
            self._writer.give_up()
        self._writer = self._snapshot = None
        self._watch()


def saver_of(
    cfg: RunConfig, schema: Schema, run_dir: Path, shard: Shard, tell: Callable[[Saved], None], spare: int,
    inline: bool = False,
) -> ShardSaver:  # fmt: skip
    """Make the saver of a shard, also for a run that saves only when a signal stops it.

    `spare`: bytes that a save leaves free on the disk; `inline`: a save ends before `begin` returns."""
    c = cfg.checkpoint
    chooser = RowChooser(shard, None, (), c.share)
    if save_schedule_of(c, cfg.cluster.servers).parts > 1:
        large = row_priority.largest_tables(schema.spans, c.large_tables)
        spans = row_priority.local_spans(large, shard.spec.shard, shard.spec.shards)
        name, seed = c.name.removeprefix("cpr_"), cfg.seed * 1009 + shard.spec.shard
        priority = row_priority.make(name, shard.rows.table, spans, c.share, seed)
        chooser = RowChooser(shard, priority, spans, c.share)
    return ShardSaver(shard, run_dir / CHECKPOINTS, chooser, c.memory_mb << 20, tell, inline, c.dtype, spare)


Arrays = Mapping[str, NDArray[Any]]
WANTED, DONE = -1, -2
FIRST_ROOM = 4096


class Snapshot:
    """Snapshot of the rows `index` int32[n], ascending (None: all), of `arrays` [rows, ...], copied piece by piece."""

    def __init__(self, arrays: Arrays, index: Ints | None = None) -> None:
        self.arrays, self.index = arrays, index
        rows = len(next(iter(arrays.values())))
        self.rows = rows if index is None else len(index)
        self._state = np.full(rows, WANTED if index is None else DONE, np.int32)
        if index is not None:
            self._state[index] = WANTED
        self._read_rows = self._copied_rows = 0
        self._copies = {name: array[:0].copy() for name, array in arrays.items()}

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in all arrays."""
        return sum(array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)) for array in self.arrays.values())

    @property
    def done(self) -> bool:
        """Whether all rows of the snapshot were read."""
        return self._read_rows >= self.rows

    @property
    def copied_bytes(self) -> int:
        """Bytes of the rows copied because they changed after the snapshot."""
        return self._copied_rows * self.row_bytes

    def copy_before_change(self, index: Ints | None = None) -> None:
        """Copy the rows `index`, distinct (None: all), because a step is about to change them."""
        wanted = self._state == WANTED if index is None else self._state[index] == WANTED
        rows = np.flatnonzero(wanted) if index is None else index[wanted]
        if not len(rows):
            return
        end = self._copied_rows + len(rows)
        for name, array in self.arrays.items():
            np.take(array, rows, axis=0, out=self._room(name, end)[self._copied_rows : end], mode="clip")
        self._state[rows] = np.arange(self._copied_rows, end, dtype=np.int32)
        self._copied_rows = end

    def _room(self, name: str, needed: int) -> NDArray[Any]:
        copies = self._copies[name]
        if len(copies) < needed:
            room = np.empty((max(needed, 2 * len(copies), FIRST_ROOM), *copies.shape[1:]), copies.dtype)
            room[: self._copied_rows] = copies[: self._copied_rows]
            copies = self._copies[name] = room
        return copies

    def next_piece(self, rows: int) -> dict[str, NDArray[Any]]:
        """Copy the next `rows` rows, or the remaining ones, as of the moment of the snapshot."""
        low, self._read_rows = self._read_rows, min(self.rows, self._read_rows + max(1, rows))
        rows_now: Any = slice(low, self._read_rows) if self.index is None else self.index[low : self._read_rows]
        state = self._state[rows_now]
        copied = np.flatnonzero(state >= 0)
        positions = state[copied]
        out = {}
        for name, array in self.arrays.items():
            values = array[rows_now].copy() if self.index is None else array[rows_now]
            values[copied] = self._copies[name][positions]
            out[name] = values
        self._state[rows_now] = DONE
        return out
