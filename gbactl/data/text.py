"""Parsing of text blocks into arrays: a whole block at once by polars, line by line where that fails.

The fast path runs at polars' speed. A block it refuses is scanned in Python (about 100 k lines/s) to name the
bad line, or, where bad lines are tolerated, to drop and count them. Text columns become ids: hexadecimal numbers
directly (about 15 ns a value), other texts through a stable hash (a distinct one costs 1 us a block).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.data.files import LineBlock
from gbactl.errors import DataError
from gbactl.hashing import bucket, text_value

C_co = TypeVar("C_co", covariant=True)
C = TypeVar("C")


class FastPathMismatch(Exception):
    """Signal that a block holds text that the fast path does not read."""


class LineFormat(Protocol[C_co]):
    """Text format, with a fast parse of a block and an explanation of one bad line."""

    def fast(self, data: bytes, lines: int) -> C_co:
        """Parse `lines` whole lines into arrays. Raises Mismatch or a polars error."""

    def explain(self, line: str) -> str | None:
        """Reason why this line cannot be read, in words; None if it can be."""


class BadLines:
    """Count of unreadable lines, limited by `data.max_bad_lines`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.count = 0

    def add(self, block: LineBlock, offset: int, reason: str) -> None:
        """Count one unreadable line. Raises DataError past the limit."""
        self.count += 1
        if self.count > self.limit:
            hint = f"fix it or type data.max_bad_lines={max(100, 10 * self.limit)} to skip such lines."
            line = block.first_line + offset
            raise DataError(f"{block.path}, line {line}: {reason}; {hint}")


def _explain(form: LineFormat[C], line: bytes) -> str | None:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "not UTF-8 text"
    if "\0" in text or "\r" in text:
        return "it holds a control character"
    return form.explain(text)


def _scan(form: LineFormat[C], block: LineBlock, bad: BadLines) -> C | None:
    good = []
    for offset, line in enumerate(block.data.split(b"\n")[:-1]):
        line = line.removesuffix(b"\r")
        reason = _explain(form, line)
        if reason:
            bad.add(block, offset, reason)
        else:
            good.append(line)
    if not good:
        return None
    try:
        return form.fast(b"\n".join([*good, b""]), len(good))
    except (FastPathMismatch, pl.exceptions.PolarsError) as error:
        last = block.first_line + block.lines - 1
        raise DataError(f"{block.path}, lines {block.first_line} to {last} cannot be read: {error}.") from None


def parse(form: LineFormat[C], block: LineBlock, bad: BadLines) -> C | None:
    """Parse the readable lines of a block into arrays; None if there are none.

    Raises DataError past the bad-line limit.
    """
    data = block.data.replace(b"\r\n", b"\n") if b"\r" in block.data else block.data
    try:
        if b"\0" in data or b"\r" in data:
            raise FastPathMismatch("control characters")
        return form.fast(data, block.lines)
    except (FastPathMismatch, pl.exceptions.PolarsError):
        return _scan(form, block, bad)


def table(data: bytes, lines: int, separator: str, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    """Read delimited text with exactly these columns. Raises Mismatch unless every line has all of them."""
    if data.count(separator.encode()) != lines * (len(schema) - 1):
        raise FastPathMismatch("a line with another number of columns")
    frame = pl.read_csv(
        data,
        has_header=False,
        separator=separator,
        quote_char=None,
        schema=schema,
        truncate_ragged_lines=False,
    )
    if frame.height != lines:
        raise FastPathMismatch("a line that is not a row")
    return frame


def is_integer(text: str) -> bool:
    """Whether polars reads the text as a 64-bit integer."""
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and -(2**63) <= int(text) < 2**63


def _texts(column: pl.Series, number: pl.Series) -> pl.Series:
    """Map texts that are not hexadecimal numbers to hashed values, null elsewhere."""
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
