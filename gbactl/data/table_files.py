"""Reading of tables in chunks: CSV and TSV with a header, and Parquet, recognised by their first bytes.

pyarrow reads; memory is a block of text (4 MiB) with its columns and at most 32 blocks read ahead, or 65,536 rows of
Parquet, fewer where lists are long, whatever the size of the file. A text table may be plain, gzip, zstd or xz, and its
quoted cells may have line ends. Its columns come as text, since only the schema knows what they are; those of Parquet
come with their own types.
"""

from __future__ import annotations

import codecs
import csv
import functools
import io
import re
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gbactl.data.dataset import Progress
from gbactl.data.remote_files import SourceFile, size_of
from gbactl.data.text_files import BadLines, Rows, pieces
from gbactl.errors import DataError

BLOCK = 4 << 20  # bytes of text that are parsed at once; a row cannot be longer
CHUNK = 1 << 16  # rows at most
VALUES = 1 << 20  # of the lists of a column, about, at most
BUFFER = 1 << 20  # bytes of a column of Parquet that are fetched at once
SEPARATORS = (",", "\t", ";", "|")
PARQUET = b"PAR1"
ZIP = b"PK\x03\x04"
RELEASE_SECONDS = 10.0  # at most, until pyarrow's thread drops what it reads ahead
SETTLE_SECONDS = 0.05  # until that thread needs the interpreter no more


@dataclass(frozen=True)
class TextForm:
    """Separator of a text table (None: the most frequent in the header), and texts that stand for a missing value.

    Blanks around these texts do not count, as around all other cells."""

    separator: str | None = None
    missing: Sequence[str] = ("",)


class _Stream(io.RawIOBase):
    """File object over the decompressed content of a file, for pyarrow."""

    def __init__(self, file: SourceFile, raw: BinaryIO) -> None:
        super().__init__()
        self._pieces, self._rest = pieces(file, raw), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = piece
        taken = self._rest[: len(buffer)]
        buffer[: len(taken)] = taken
        self._rest = self._rest[len(taken) :]
        return len(taken)


def _is_parquet(raw: BinaryIO) -> bool:
    head = raw.read(len(PARQUET))
    raw.seek(0)
    return head == PARQUET


def _content(file: SourceFile, raw: BinaryIO) -> io.BufferedReader:
    return io.BufferedReader(_Stream(file, raw), BLOCK)


def _header(file: SourceFile, raw: BinaryIO, form: TextForm) -> tuple[list[str], str]:
    """Return the column names of a text table and its separator. Raises DataError."""
    content = _content(file, raw)
    line = content.readline(BLOCK)
    while line.count(b'"') % 2 and len(line) < BLOCK and (more := content.readline(BLOCK)):
        line += more  # a quoted cell has a line end
    raw.seek(0)
    if not line.strip():
        raise DataError(f"{file} is empty, or begins with an empty line; its first line has to be a header.")
    if line.startswith(ZIP):
        raise DataError(f"{file} is a ZIP archive or an Excel file; unpack it or save it as CSV, and name the table.")
    try:
        text = line.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise DataError(_not_utf8(file, line)) from None
    if re.search(r"\r(?!\n)", text):
        raise DataError(f"{file} ends its lines by \\r alone; convert it by: tr '\\r' '\\n' < {file} > NEW_FILE")
    separator = form.separator or max(SEPARATORS, key=re.sub('"[^"]*"', "", text).count)
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=separator)), separator


def _not_utf8(file: SourceFile, head: bytes = b"") -> str:
    encoding = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"
    return f"{file} is not UTF-8 text; convert it, for instance by: iconv -f {encoding} -t utf-8 {file} > NEW_FILE"


def header_of(file: SourceFile, form: TextForm) -> tuple[list[str], str | None]:
    """Return the names of a table's columns, and the separator of a text table (None: Parquet). Raises DataError."""
    with _opened(file) as raw:
        if _is_parquet(raw):
            return [str(name) for name in _parquet(file, raw).schema_arrow.names], None
        return _header(file, raw, form)


def _opened(file: SourceFile) -> BinaryIO:
    try:
        return file.open("rb")
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}).") from None


def _parquet(file: SourceFile, raw: BinaryIO) -> Any:
    source = pa.OSFile(str(file)) if isinstance(file, Path) else pa.PythonFile(raw, mode="r")
    try:
        return pa.parquet.ParquetFile(source, pre_buffer=False, buffer_size=BUFFER)
    except pa.ArrowException as error:
        raise DataError(f"{file} is not whole Parquet ({error}); fetch the file again.") from None


def read_table(
    file: SourceFile, form: TextForm, columns: Sequence[str] | None, bad: BadLines, progress: Progress
) -> Iterator[Rows]:
    """Iterate over a table in chunks of at most CHUNK rows, with some of its columns, or all.

    A text row with another number of cells than the header counts as bad. Raises DataError."""
    with _opened(file) as raw:
        total = max(1, size_of(file))
        if _is_parquet(raw):
            for rows in _read_parquet(file, raw, columns, progress):
                yield _without_missing(rows, form)
        else:
            for rows in _read_text(file, raw, form, columns, bad):
                progress(f"reading {file.name}", min(1.0, raw.tell() / total))
                yield _without_missing(rows, form)


def _without_missing(rows: Rows, form: TextForm) -> Rows:
    """Replace the texts that stand for a missing value by null."""
    text = pl.col(pl.String)
    missing = text.str.strip_chars().is_in([each.strip() for each in form.missing])
    return replace(rows, frame=rows.frame.with_columns(pl.when(~missing).then(text)))


def _read_parquet(file: SourceFile, raw: BinaryIO, columns: Sequence[str] | None, progress: Progress) -> Iterator[Rows]:
    table, done = _parquet(file, raw), 0
    try:
        for batch in table.iter_batches(_rows_at_once(table, columns), columns=None if columns is None else [*columns]):
            first, done = done + 1, done + batch.num_rows
            progress(f"reading {file.name}", done / max(1, table.metadata.num_rows))
            yield Rows(_frame(batch), first)
    except pa.ArrowException as error:
        raise DataError(f"{file}, after row {done}: {error}; fetch the file again.") from None


def _rows_at_once(table: Any, columns: Sequence[str] | None) -> int:
    """Return how many rows of Parquet to read at once, by the mean length of the lists in each row group."""
    read = "" if columns is None else tuple(f"{name}." for name in columns)
    leaves = [table.schema.column(place) for place in range(table.metadata.num_columns)]
    lists = [place for place, leaf in enumerate(leaves) if leaf.max_repetition_level and leaf.path.startswith(read)]
    groups = [table.metadata.row_group(number) for number in range(table.metadata.num_row_groups)]
    lengths = [group.column(place).num_values / max(1, group.num_rows) for group in groups for place in lists]
    return min(CHUNK, max(1, int(VALUES / max([1.0, *lengths]))))


def _frame(batch: Any) -> pl.DataFrame:
    found = pl.from_arrow(pa.Table.from_batches([batch]))
    assert isinstance(found, pl.DataFrame)
    found.columns = batch.schema.names  # polars gives a column without a name one
    return found.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))  # texts, however Parquet stores them


def _read_text(
    file: SourceFile, raw: BinaryIO, form: TextForm, columns: Sequence[str] | None, bad: BadLines
) -> Iterator[Rows]:
    header, separator = _header(file, raw, form)
    skipped: list[Any] = []

    def ragged(kept: Any, row: Any) -> str:
        skipped.append(row)
        return "skip" if bad.count + len(skipped) - counted <= bad.limit else "error"

    first, counted, reader, whole = 2, 0, None, False
    content, released = _content(file, raw), threading.Event()
    weakref.finalize(content, released.set)
    try:
        reader = pa.csv.open_csv(
            pa.PythonFile(content, mode="r"),
            read_options=pa.csv.ReadOptions(block_size=BLOCK, use_threads=False),
            parse_options=pa.csv.ParseOptions(
                delimiter=separator, newlines_in_values=True, invalid_row_handler=functools.partial(ragged, content)
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string()), include_columns=list(columns or header)
            ),
        )  # fmt: skip
        while True:
            batch = next(reader, None)
            counted = _count(file, skipped, counted, bad)
            if batch is None:
                whole = True
                return
            places = [row.number for row in skipped if row.number]
            frame = _frame(batch)
            for low in range(0, len(frame), CHUNK):
                yield Rows(frame[low : low + CHUNK], first + low, places)
            first += len(frame)
    except pa.ArrowException as error:
        _count(file, skipped, counted, bad)
        if "Empty CSV" not in str(error):  # as of a header alone, without a line end
            raise _explained(file, error, separator) from None
    finally:
        if not whole:  # pyarrow's thread has yet to drop the file; were the process to end before, it would be aborted
            del reader, content
            released.wait(RELEASE_SECONDS)
            time.sleep(SETTLE_SECONDS)


def _count(file: SourceFile, skipped: list[Any], counted: int, bad: BadLines) -> int:
    """Report to `bad` the rows that pyarrow skipped, beyond the first `counted`; return the number of skipped rows."""
    for row in skipped[counted:]:
        bad.add(f"{file}, row {row.number}", f"{row.actual_columns} cells where the header has {row.expected_columns}")
    return len(skipped)


def _explained(file: SourceFile, error: Exception, separator: str) -> DataError:
    text = " ".join(str(error).split())
    if "UTF8" in text:
        return DataError(_not_utf8(file))
    if "straddling" in text:
        hint = "look for a quotation mark that is never closed"
        return DataError(f"{file}: a row is longer than {BLOCK >> 20} MiB; {hint}.")
    return DataError(f"{file} cannot be read as a table separated by {separator!r} ({text}).")
