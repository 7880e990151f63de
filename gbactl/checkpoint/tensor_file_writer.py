"""Writing of a safetensors file piece by piece, also in a thread; the file is complete or absent.

The safetensors library writes whole tensors only. A shard is copied in pieces while it trains, so this module writes
each piece at its place in the file, the pieces of a tensor in order. It computes the SHA-256 (2 GB/s) and checks for
infinities and NaN (25 times as fast) as it writes. A file allocates its space before its first byte, and gets its name
only once it is complete and synced. It may store float32 as bf16, two bytes a value, with type U16 for readers that do
not know this. With the thread, training waits neither for the disk nor for checksums; memory is the pieces handed over
and not yet written, whose number `waiting` tells.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import queue
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gbactl.atomic_files import sync_to_disk, take_room
from gbactl.errors import NotFiniteError
from gbactl.kernels.half_precision import CODECS

Layout = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
NAMES = {"float32": "F32", "uint32": "U32", "int32": "I32", "int64": "I64", "uint16": "U16"}
PIECE = 4 << 20
HALVED = np.dtype(np.uint16)
_BF16_SIGNLESS, _BF16_INFINITY = np.uint16(0x7FFF), 0x7F80
Piece = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class WrittenFile:
    """Result of writing a file: its size, and the SHA-256 of its header and of each tensor."""

    bytes: int
    sums: dict[str, str]


def layout_of(tensors: Mapping[str, NDArray[Any]]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return the layout of a file for these arrays: type and shape by name."""
    return {name: (array.dtype, array.shape) for name, array in tensors.items()}


def with_bf16(layout: Layout, names: Iterable[str]) -> Layout:
    """Return a copy of the layout in which the float32 tensors among `names` are bf16."""
    small = {name for name in names if layout[name][0] == np.float32}
    return {name: (HALVED if name in small else kind, shape) for name, (kind, shape) in layout.items()}


def to_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Round float32 values to bf16; return the bits as uint16."""
    out = np.empty(values.shape, np.uint16)
    CODECS["bf16"].narrow(values, out)
    return out


def from_bf16(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert bf16 bits to float32, exactly."""
    out = np.empty(values.shape, np.float32)
    CODECS["bf16"].widen(values, out)
    return out


def finite(kind: str, data: NDArray[np.uint8] | bytes) -> bool:
    """Return whether all values in a piece of a tensor are finite; `kind`: the tensor's type as named in files.

    Integers always are, but for U16, the bits of bf16."""
    if kind == NAMES["uint16"]:
        return bool(np.max(np.frombuffer(data, np.uint16) & _BF16_SIGNLESS, initial=0) < _BF16_INFINITY)
    return kind != NAMES["float32"] or bool(np.isfinite(np.frombuffer(data, np.float32)).all())


def _header(layout: Layout, metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int], int]:
    """Build a file's header; returns (header, each tensor's offset, size of the file)."""
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    starts, end = {}, 0
    for name, (kind, shape) in layout.items():
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        entries[name] = {"dtype": NAMES[kind.name], "shape": list(shape), "data_offsets": [end, end + size]}
        starts[name], end = end, end + size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}, len(header) + end


class TensorFileWriter:
    """Writer of a safetensors file, piece by piece, within its context.

    Every method may raise OSError. What `finish` has not completed is removed at the end of the context. `spare`: bytes
    that must stay free on the disk. `not_finite`: the first tensor with an infinity or NaN, "" so far."""

    def __init__(self, path: Path, layout: Layout, metadata: Mapping[str, str], spare: int = 0) -> None:
        self.path, self._partial = path, path.with_name(f".{path.name}.partial")
        header, self._offsets, size = _header(layout, metadata)
        self.not_finite = ""
        self._kinds = {name: NAMES[kind.name] for name, (kind, _) in layout.items()}
        self._hashes = {name: hashlib.sha256() for name in layout}
        self._sums = {"": hashlib.sha256(header).hexdigest()}
        self.bytes = len(header)
        self._fd = os.open(self._partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
        try:
            _take_room(self._fd, size, spare)
            self._put(header, 0)
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._partial.unlink(missing_ok=True)

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Write the next piece of a tensor; float32 values are rounded if the file stores bf16."""
        if self._kinds[name] == NAMES[HALVED.name] and values.dtype == np.float32:
            values = to_bf16(values)
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        for low in range(0, len(data), PIECE):
            values = data[low : low + PIECE]
            if not self.not_finite and not finite(self._kinds[name], values):
                self.not_finite = name
            piece = values.data
            self._hashes[name].update(piece)
            self._put(piece, self._offsets[name])
            self._offsets[name] += len(piece)
            self.bytes += len(piece)

    def _put(self, data: bytes | memoryview, at: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def finish(self) -> WrittenFile:
        """Sync the file to disk and rename it to its final name."""
        os.fsync(self._fd)
        self._close()
        self._partial.replace(self.path)
        sync_to_disk(self.path.parent)
        return WrittenFile(
            self.bytes, {**self._sums, **{name: found.hexdigest() for name, found in self._hashes.items()}}
        )

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _take_room(fd: int, size: int, spare: int) -> None:
    """Allocate `size` bytes of disk for a file. Raises OSError if less than `spare` bytes would stay free."""
    free = shutil.disk_usage(fd).free
    if free >= size + spare:
        take_room(fd, size)
        if shutil.disk_usage(fd).free >= spare:  # another process may have taken space meanwhile
            return
    kept = f", of which {spare:,} are kept for the event log and the result" if spare else ""
    raise OSError(errno.ENOSPC, f"it needs {size:,} bytes; {free:,} are free there{kept}")


def not_finite(path: Path, tensor: str) -> NotFiniteError:
    """Build the error for a file in which a tensor has an infinity or NaN."""
    return NotFiniteError(f"{path} is not finite: {tensor} holds infinities or NaN.")


def write_tensors(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    needs_finite: bool = False,
    spare: int = 0,
) -> WrittenFile:
    """Write complete arrays to a file. Raises OSError; NotFiniteError if `needs_finite` and a value is not.

    After an error no file is left."""
    with TensorFileWriter(path, layout_of(tensors), metadata, spare) as file:
        for name, array in tensors.items():
            file.add(name, array)
        if needs_finite and file.not_finite:
            raise not_finite(path, file.not_finite)
        return file.finish()


class FileWriterThread:
    """Thread that writes one file; the constructor starts it.

    `pace`: bytes a second (0: unlimited). A failure is in `error` at the end; no file is left then. `finite`: whether
    no infinity and no NaN was found; with one, there is no file. `spare`: see TensorFileWriter."""

    def __init__(
        self, path: Path, layout: Layout, metadata: Mapping[str, str], pace: float = 0.0, spare: int = 0
    ) -> None:
        self.path, self._layout, self._metadata, self._spare = path, layout, metadata, spare
        self.pace = pace
        self.written: WrittenFile | None = None
        self.error = ""
        self.finite = True
        self._began = time.monotonic()
        self._given_up = self._ended = False
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        # notified when a piece is taken from the queue, or the limit on the pace is removed
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of pieces that are queued and not yet being written."""
        return self._pieces.qsize()

    def add(self, piece: Piece) -> None:
        """Queue a piece to be written."""
        self._pieces.put(piece)

    def wait(self, most: int) -> None:
        """Wait until at most `most` pieces are queued."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting <= most)

    def lift_rate_limit(self) -> None:
        """Write without the limit on bytes per second from now on."""
        with self._changed:
            self.pace = 0.0
            self._changed.notify_all()

    def end(self) -> None:
        """Let the thread complete the file once all pieces queued so far are written."""
        self._pieces.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended, by completing the file or by an error."""
        return self.written is not None or bool(self.error)

    def give_up(self) -> None:
        """Cancel writing and wait until the partial file is deleted."""
        with self._changed:
            self._given_up = True
            self._changed.notify_all()
        self._pieces.put(None)
        self.join()

    def _run(self) -> None:
        try:
            self._write()
        except Exception as error:  # reported to the coordinator; training continues
            for _ in self._queued_pieces():  # a caller that waits in `wait` must not wait for ever
                pass
            self.finite = not isinstance(error, NotFiniteError)
            why = f"{self.path} could not be written ({getattr(error, 'strerror', None) or error})"
            self.error = why if self.finite else str(error)

    def _queued_pieces(self) -> Iterator[Piece]:
        while not self._ended:
            piece = self._pieces.get()
            with self._changed:
                self._changed.notify_all()
            if piece is None:
                self._ended = True
            else:
                yield piece

    def _throttle(self, written: int) -> None:
        """Sleep as long as needed to keep the writing rate below the configured bytes per second."""
        with self._changed:
            if self.pace > 0:
                left = written / self.pace - (time.monotonic() - self._began)
                self._changed.wait_for(lambda: self._given_up or self.pace <= 0, max(0.0, left))

    def _write(self) -> None:
        with TensorFileWriter(self.path, self._layout, self._metadata, self._spare) as file:
            for piece in self._queued_pieces():
                if self._given_up:
                    break
                for name, values in piece.items():
                    file.add(name, values)
                if file.not_finite:
                    raise not_finite(self.path, file.not_finite)
                self._throttle(file.bytes)
            if self._given_up:
                raise OSError("it was given up")
            self.written = file.finish()
