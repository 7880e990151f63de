"""Reading of text source files: find them, decompress, read blocks of whole lines, parse these into arrays.

Plain, gzip, zstd and xz files are recognised by their first bytes. Memory is one block (16 MiB of text) and one read
of 256 KiB. A truncated or damaged file is an error that names the line reached.

Polars parses a whole block at once. A block with lines of another number of columns is scanned in Python (about 100 k
lines/s) to name such a line, or, where bad lines are tolerated, to drop and count them. Text columns become ids:
hexadecimal numbers directly (about 15 ns a value), other texts through a stable hash (a distinct one costs 1 us a
block).
"""

from __future__ import annotations

import glob
import lzma
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.data.dataset import Progress
from gbactl.data.remote_files import SourceFile, find_remote, is_remote, size_of
from gbactl.errors import ConfigError, DataError
from gbactl.hashes_and_random_numbers import bucket, text_value

BLOCK = 16 << 20
PIECE = 1 << 18
LONGEST_LINE = 1 << 20


@dataclass(frozen=True)
class LineBlock:
    """Block of whole lines of one file, each ended by a newline; `first_line`: number of its first line, from 1."""

    path: SourceFile
    first_line: int
    data: bytes

    @property
    def lines(self) -> int:
        """Number of lines in the block."""
        return self.data.count(b"\n")


def _natural(path: SourceFile) -> list[tuple[int, int | str]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", str(path))]


def find(path: str | list[str] | None, patterns: list[str], key: str = "data.path") -> list[SourceFile]:
    """Find the files that a path, glob or directory (with `patterns`), or a list of these, denotes.

    Day_2 before day_10, and all files of a folder before those of the next. A path may be a URL, such as
    s3://bucket/day_*.

    Raises ConfigError without a path and DataError where nothing is found.
    """
    if not path:
        raise ConfigError(f"{key} is not set; type {key}=FILE (or a directory, or a glob).")
    if isinstance(path, list):
        return [found for item in path for found in find(item, patterns, key)]
    if is_remote(path):
        return sorted(find_remote(path, patterns), key=_natural)
    target = Path(path).expanduser()
    if target.is_dir():
        matches = {f for pattern in patterns for f in target.glob(pattern) if f.is_file()}
        if not matches:
            hint = f"set {key} to another folder, or to the files."
            raise DataError(f"{target} has no file that matches {' '.join(patterns)}; {hint}")
    elif target.exists():
        return [target]
    else:
        matches = {f for f in map(Path, glob.glob(str(target), include_hidden=True)) if f.is_file()}
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
    """Iterate over a file's content, decompressed. Raises _Damaged."""
    head = raw.read(6)
    raw.seek(0)
    found = _decompressor(head)
    if found:
        yield from _inflate(raw, *found)
    else:
        while piece := raw.read(PIECE):
            yield piece


def _line_blocks(path: SourceFile, raw: BinaryIO) -> Iterator[LineBlock]:
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


def pieces(path: SourceFile, raw: BinaryIO) -> Iterator[bytes]:
    """Iterate over the content of a file that is open as `raw`, decompressed. Raises DataError if it is damaged."""
    try:
        yield from _pieces(raw)
    except _Damaged as error:
        raise DataError(f"{path}: {error}; fetch the file again.") from None


def read_blocks(path: SourceFile) -> Iterator[tuple[int, LineBlock]]:
    """Iterate over a file as (bytes of the file read so far, block of whole lines). Raises DataError."""
    try:
        with path.open("rb") as raw:
            for block in _line_blocks(path, raw):
                yield raw.tell(), block
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}).") from None


def read_all(paths: Sequence[SourceFile], progress: Progress) -> Iterator[tuple[int, LineBlock]]:
    """Iterate over all files in order as (index of the file, block); reports the progress over all files together."""
    sizes = [size_of(path) for path in paths]
    total = max(1, sum(sizes))
    for i, path in enumerate(paths):
        before = sum(sizes[:i])
        for done, block in read_blocks(path):
            progress(f"reading {path.name}", (before + done) / total)
            yield i, block


class BadLines:
    """Counter of unreadable lines, limited by `data.max_bad_lines`; `first`: description of the first such line."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count, self.first = 0, ""

    def add(self, where: str, reason: str) -> None:
        """Count an unreadable line. Raises DataError if there are more than `data.max_bad_lines`."""
        self.count, self.first = self.count + 1, self.first or f"{where}: {reason}"
        if self.count > self.limit:
            hint = f"fix it or type data.max_bad_lines={max(100, 10 * self.limit)} to skip such lines."
            raise DataError(f"{where}: {reason}; {hint}")


@dataclass
class Rows:
    """Chunk of a table: columns by name, and the numbers of its rows in the file, a text table's header being row 1."""

    frame: pl.DataFrame
    first: int
    skipped: Sequence[int] = field(default=())
    unit: str = "row"

    def number(self, place: int) -> int:
        """Return a row's number in the file, given its place in the chunk."""
        found = self.first + place
        for row in self.skipped:  # in order
            found += row <= found
        return found


class BadCells:
    """Cells of a chunk that cannot be read."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._found: list[tuple[NDArray[np.bool_], str, str]] = []

    def record(self, bad: pl.Series, column: str, expected: str) -> None:
        """Record the rows in which `bad` is true; `expected`: description of a valid cell, for the message."""
        if bad.any():
            self._found.append((bad.to_numpy(), column, expected))

    def readable_rows(self, file: SourceFile, bad: BadLines) -> NDArray[np.int64] | None:
        """Count unreadable rows; return the places of readable ones (None: all). Raises DataError past the limit."""
        if not self._found:
            return None
        whole = np.logical_or.reduce([each for each, _, _ in self._found])
        for place in np.flatnonzero(whole).tolist():
            _, column, expected = next(each for each in self._found if each[0][place])
            cell = self.rows.frame[column][place]
            cell = cell.to_list() if isinstance(cell, pl.Series) else cell
            shown = "missing" if cell is None else repr(str(cell)[:60])
            where = f"{file}, {self.rows.unit} {self.rows.number(place)}"
            bad.add(where, f"the column {column} is {shown}, not {expected}")
        return np.flatnonzero(~whole)


def rows_of(block: LineBlock, separator: str, columns: Mapping[str, type[pl.DataType]], bad: BadLines) -> Rows:
    """Parse the lines of a block that have exactly these columns.

    Where polars does not read the whole block, all columns come as text. Raises DataError past the bad-line limit."""
    data = block.data.replace(b"\r\n", b"\n") if b"\r" in block.data else block.data
    texts = dict.fromkeys(columns, pl.String)
    # polars would skip a blank or a + before a number
    clean = not any(each in data for each in (b" ", b"+") if each != separator.encode())
    frame = _frame(data, block.lines, separator, columns) if clean else None
    if frame is None:
        frame = _frame(data, block.lines, separator, texts)
    if frame is not None:
        return Rows(frame, block.first_line, unit="line")
    good, skipped = list[bytes](), list[int]()
    for number, line in enumerate(data.split(b"\n")[:-1], block.first_line):
        if reason := _why_no_row(line, separator, len(columns)):
            bad.add(f"{block.path}, line {number}", reason)
            skipped.append(number)
        else:
            good.append(line)
    frame = _frame(b"\n".join([*good, b""]), len(good), separator, texts) if good else pl.DataFrame(schema=texts)
    assert frame is not None, block.path
    return Rows(frame, block.first_line, skipped, "line")


def _frame(
    data: bytes, lines: int, separator: str, columns: Mapping[str, type[pl.DataType]]
) -> pl.DataFrame | None:  # fmt: skip
    """Parse delimited text with exactly these columns; None unless every line has all of them."""
    if b"\0" in data or b"\r" in data or data.count(separator.encode()) != lines * (len(columns) - 1):
        return None
    try:
        frame = pl.read_csv(
            data, has_header=False, separator=separator, quote_char=None, schema=columns, truncate_ragged_lines=False
        )
    except pl.exceptions.PolarsError:
        return None
    return frame if frame.height == lines else None


def _why_no_row(line: bytes, separator: str, columns: int) -> str | None:
    """Describe why a line is no row of `columns` columns; None if it is one."""
    if b"\0" in line or b"\r" in line:
        return "it holds a control character"
    try:
        cells = 1 + line.decode("utf-8").count(separator)
    except UnicodeDecodeError:
        return "not UTF-8 text"
    return None if cells == columns else f"{cells} columns instead of {columns}"


def whole_numbers(column: pl.Series) -> pl.Series:
    """Convert a column to Int64; null where a cell is missing, or is not a whole number in digits."""
    return column if column.dtype == pl.Int64 else column.str.extract("^(-?[0-9]+)$").cast(pl.Int64, strict=False)


def _texts(column: pl.Series, number: pl.Series) -> pl.Series:
    """Hash the texts in a column that are not hexadecimal numbers; null for hexadecimal ones."""
    other = column.filter(number.is_null() & column.is_not_null()).unique()
    values = pl.Series([text_value(text) for text in other], dtype=pl.Int64)
    return column.replace_strict(other, values, default=None, return_dtype=pl.Int64)


def to_numbers(column: pl.Series) -> pl.Series:
    """Parse a text column as hexadecimal Int64; null where empty or not hexadecimal."""
    return column.str.to_integer(base=16, strict=False)


def to_ids(column: pl.Series, field: int, buckets: int, number: pl.Series | None = None) -> NDArray[np.int32]:
    """Map a text column to one field's ids int32[n]: 0 where the text is empty, otherwise in [1, buckets)."""
    value = to_numbers(column) if number is None else number
    if value.null_count() > column.null_count():
        value = value.fill_null(_texts(column, value))
    missing = value.is_null().to_numpy()
    ids = bucket(np.ascontiguousarray(value.fill_null(0).to_numpy()), field, buckets)
    ids[missing] = 0
    return ids
