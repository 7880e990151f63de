"""Source files: finding them, and reading them in blocks of whole lines whatever their compression.

Plain, gzip, zstd and xz files are recognised by their first bytes. Memory is one block (16 MiB of text) and one read
of 256 KiB. A truncated or damaged file is an error that names the line reached.
"""

from __future__ import annotations

import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gbactl.errors import ConfigError, DataError

Progress = Callable[[str, float], None]
BLOCK = 16 << 20
PIECE = 1 << 18
LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class LineBlock:
    """Block of whole lines of one file, each ended by a newline; `first_line` counts from 1."""

    path: Path
    first_line: int
    data: bytes

    @property
    def lines(self) -> int:
        """Number of lines in the block."""
        return self.data.count(b"\n")


def _natural(path: Path) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", path.name)]


def find(path: str | list[str] | None, patterns: list[str], key: str = "data.path") -> list[Path]:
    """Find the files of a path, a glob, a directory (files that match `patterns`) or a list of these.

    Day_2 before day_10.

    Raises ConfigError without a path and DataError where nothing is found.
    """
    if not path:
        raise ConfigError(f"{key} is not set; type {key}=FILE (or a directory, or a glob).")
    if isinstance(path, list):
        return [found for item in path for found in find(item, patterns, key)]
    target = Path(path).expanduser()
    if target.is_dir():
        matches = {f for pattern in patterns for f in target.glob(pattern) if f.is_file()}
        if not matches:
            raise DataError(f"{target} has no file that matches {' '.join(patterns)}; set {key} to the file itself.")
    elif target.exists():
        return [target]
    else:
        matches = {f for f in target.parent.glob(target.name) if f.is_file()}
        if not matches:
            raise DataError(f"{target} does not exist; set {key} to a file, a directory or a glob.")
    return sorted(matches, key=_natural)


def _decompressor(head: bytes) -> tuple[str, Callable[[], Any]] | None:
    import zstandard

    if head.startswith(b"\x1f\x8b"):
        return "gzip", lambda: zlib.decompressobj(wbits=31)
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return "zstd", lambda: zstandard.ZstdDecompressor().decompressobj()
    if head.startswith(b"\xfd7zXZ\x00"):
        return "xz", lzma.LZMADecompressor
    return None


class _Damaged(Exception):
    pass


def _inflate(raw: BinaryIO, kind: str, make: Callable[[], Any]) -> Iterator[bytes]:
    import zstandard

    stream = make()
    try:
        while piece := raw.read(PIECE):
            while piece:
                if stream.eof:
                    piece = piece.lstrip(b"\0")
                    if not piece:
                        break
                    stream = make()
                yield stream.decompress(piece)
                piece = stream.unused_data if stream.eof else b""
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise _Damaged(f"the {kind} data is damaged ({error})") from None
    if not stream.eof:
        raise _Damaged(f"the {kind} data ends too early, the file is truncated")


def _pieces(raw: BinaryIO) -> Iterator[bytes]:
    head = raw.read(6)
    raw.seek(0)
    found = _decompressor(head)
    if found:
        yield from _inflate(raw, *found)
    else:
        while piece := raw.read(PIECE):
            yield piece


def _cut(path: Path, raw: BinaryIO) -> Iterator[LineBlock]:
    line, parts, size = 1, list[bytes](), 0
    try:
        for piece in _pieces(raw):
            parts.append(piece)
            size += len(piece)
            if size < BLOCK:
                continue
            whole, newline, rest = b"".join(parts).rpartition(b"\n")
            if len(rest) > LONGEST_LINE:
                number = line + whole.count(b"\n") + (1 if newline else 0)
                raise DataError(f"{path}, line {number}: longer than {LONGEST_LINE >> 20} MiB; is this text?")
            block = LineBlock(path, line, whole + newline)
            parts, size, line = [rest], len(rest), line + block.lines
            yield block
    except _Damaged as error:
        reached = line + sum(part.count(b"\n") for part in parts)
        raise DataError(f"{path}, line {reached}: {error}; fetch the file again.") from None
    last = b"".join(parts)
    if last:
        yield LineBlock(path, line, last if last.endswith(b"\n") else last + b"\n")
    elif line == 1:
        raise DataError(f"{path}, line 1: the file is empty.")


def read_blocks(path: Path) -> Iterator[tuple[int, LineBlock]]:
    """Iterate over (bytes of the file read so far, block of whole lines). Raises DataError."""
    try:
        with path.open("rb") as raw:
            for block in _cut(path, raw):
                yield raw.tell(), block
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def read_all(paths: list[Path], progress: Progress) -> Iterator[tuple[int, LineBlock]]:
    """Iterate over (number of the file, block) of all files in order; progress is one fraction over all of them."""
    sizes = [path.stat().st_size for path in paths]
    total = max(1, sum(sizes))
    for i, path in enumerate(paths):
        before = sum(sizes[:i])
        for done, block in read_blocks(path):
            progress(f"reading {path.name}", (before + done) / total)
            yield i, block
