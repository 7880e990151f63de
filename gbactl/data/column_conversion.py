"""Conversion of a table's columns: text, or the types of Parquet, to numbers, moments, days and categorical ids.

A cell that is missing or cannot be read becomes null. A value has the same text in CSV and in Parquet, and so the same
id. Hashing costs 1 us for each distinct text of a chunk; whole numbers are hashed as they are, 20 ns a row.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.data.text_files import to_ids
from gbactl.errors import ConfigError

HOUR, DAY = 3_600_000_000, 86_400_000_000  # microseconds
ISO = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")
SCALES = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0))  # limit of seconds, milliseconds, microseconds; microseconds in one
LAST_DAY_NUMBER = 100_000_000  # a larger number is a moment
WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
GROUPED = r"^[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]*)?$"  # 1,234,567.8


def _chosen(expression: pl.Expr) -> pl.Series:
    return pl.select(expression).to_series()


def texts(column: pl.Series) -> pl.Series:
    """Convert a column to text without blanks around it; null where nothing is left."""
    if column.dtype == pl.Boolean:
        column = column.cast(pl.UInt8)
    written = column.cast(pl.String)
    if column.dtype.is_float():
        whole = column.cast(pl.Int64, strict=False)
        written = _chosen(pl.when(whole.cast(pl.Float64) == column).then(whole.cast(pl.String)).otherwise(written))
        written = written.replace("NaN", None)
    return written.str.strip_chars().replace("", None)


def numbers(column: pl.Series, decimal: str = ".") -> pl.Series:
    """Convert a column to Float64; null where it is missing or no number.

    `decimal`: the point or comma before the decimals of a text. The other one may be between groups of three digits."""
    if column.dtype != pl.String:
        return column.cast(pl.Float64, strict=False).fill_nan(None)
    bare = column.str.strip_chars()
    if decimal == ",":
        bare = bare.str.replace_many([",", "."], [".", ","])
    found = bare.cast(pl.Float64, strict=False)
    if found.null_count() > bare.null_count():
        grouped = _chosen(pl.when(bare.str.contains(GROUPED)).then(bare.str.replace_all(",", "", literal=True)))
        found = found.fill_null(grouped.cast(pl.Float64, strict=False))
    return found.fill_nan(None)


def _parsed(written: pl.Series, form: str) -> pl.Series:
    try:
        found = written.str.to_datetime(form, strict=False, time_unit="us")
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"The format {form!r} cannot be ({reason}); type for instance '%d/%m/%Y %H:%M'.") from None
    return found.cast(pl.Datetime("us")).cast(pl.Int64)


def _since_1970(number: pl.Series) -> pl.Series:
    """Convert seconds since 1970, or their thousandths, millionths or billionths by their size, to microseconds."""
    size = number.abs()
    found = number / 1e3
    for limit, scale in reversed(SCALES):
        found = _chosen(pl.when(size < limit).then(number * scale).otherwise(found))
    return found.round().cast(pl.Int64, strict=False)


def timestamps(column: pl.Series, form: str | None = None) -> pl.Series:
    """Convert a column to microseconds since 1970 (UTC) as Int64; null where it is missing or no time.

    `form`: format of strptime; None: ISO 8601, or a number since 1970. Raises ConfigError for an impossible format."""
    if column.dtype.is_temporal():
        return column.cast(pl.Datetime("us"), strict=False).cast(pl.Int64)
    written = texts(column)
    if form is not None:
        hours = "%H" in form and "%M" not in form  # polars takes no hour without a minute
        return _parsed(written + ":00" if hours else written, f"{form}:%M" if hours else form)
    found = _since_1970(numbers(written))
    plain = written.str.replace(r"[Tt ]+", " ").str.replace(r" ?(UTC|GMT)$", "")
    for each in ISO:
        if found.null_count() == written.null_count():
            break
        found = found.fill_null(_parsed(plain, each))
    return found


def days(column: pl.Series, form: str | None = None) -> pl.Series:
    """Convert a column to day numbers as Int64: a date as YYYYMMDD, a number below 100,000,000 as it is."""
    found = timestamps(column, form).cast(pl.Datetime("us")).dt.strftime("%Y%m%d").cast(pl.Int64)
    if form is not None or column.dtype.is_temporal():
        return found
    number = numbers(texts(column))
    plain = (number.abs() < LAST_DAY_NUMBER) & (number == number.floor())
    return _chosen(pl.when(plain.fill_null(False)).then(number.cast(pl.Int64, strict=False)).otherwise(found))


def day_name(number: int) -> str:
    """Return the name of a day: a date with dashes, another number as it is."""
    year, month, day = number // 10_000, number // 100 % 100, number % 100
    return f"{year}-{month:02}-{day:02}" if 1900 <= year < 2200 and 0 < month < 13 and 0 < day < 32 else str(number)


def ids_of(column: pl.Series, field: int, buckets: int) -> NDArray[np.int32]:
    """Map a column to one field's ids int32[n]: 0 where it is missing, otherwise in [1, buckets)."""
    written = texts(column)
    whole = _chosen(pl.when(written.str.contains(WHOLE)).then(written.cast(pl.Int64, strict=False)))
    return to_ids(written, field, buckets, whole)


def in_brackets(written: pl.Series) -> pl.Series:
    """Return which texts are in brackets, as lists are that Python, JSON or PostgreSQL has written."""
    return written.str.contains(r"(?s)^[\[({].*[\])}]$")


def _flat(column: pl.Series, separator: str) -> tuple[NDArray[np.int64], pl.Series]:
    """Return the length of each row's list, int64[n], and the values of all lists one after the other.

    Of a text such as ["a", "b"] the brackets and quotation marks are left out."""
    if not column.dtype.is_nested():
        written = texts(column)
        bare = written.str.replace_all(r"""[\[\](){}"']""", "")
        column = texts(_chosen(pl.when(in_brackets(written)).then(bare).otherwise(written))).str.split(separator)
    lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
    return lengths, column.filter(pl.Series(lengths > 0)).explode()


def lists_of(
    column: pl.Series, separator: str, longest: int, newest: bool
) -> tuple[NDArray[np.int64], pl.Series, NDArray[np.int64]]:
    """Return the length of each row's list, int64[n], the texts of all lists in a row, and the index of each.

    `column` has lists, or texts with a separator. At most `longest` values of a list are taken, the last ones if
    `newest`; values without a text are left out. An index counts all values of the column."""
    lengths, flat = _flat(column, separator)
    rows = np.repeat(np.arange(len(column)), lengths)
    written = texts(flat)
    present = np.flatnonzero(written.is_not_null().to_numpy())
    rows = rows[present]
    lengths = np.bincount(rows, minlength=len(column))
    place = np.arange(len(rows)) - (np.cumsum(lengths) - lengths)[rows]
    taken = present[place >= lengths[rows] - longest if newest else place < longest]
    return np.minimum(lengths, longest), written.gather(taken), taken


def weights_of(column: pl.Series, values: pl.Series, separator: str) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the weights of all values of lists, and which rows have not one of at least 0 for each of their values.

    `column`: lists of weights, written as the lists of `values` are. In such a row every weight is 1."""
    (lengths, _), (own, flat) = _flat(values, separator), _flat(column, separator)
    given = numbers(flat).cast(pl.Float32).fill_null(np.nan).to_numpy()
    rows = np.repeat(np.arange(len(own)), own)
    bad = (own != lengths) | (np.bincount(rows, ~(np.isfinite(given) & (given >= 0)), len(own)) > 0)
    found = np.ones(int(lengths.sum()), np.float32)
    found[~np.repeat(bad, lengths)] = given[~bad[rows]]
    return found, bad


def time_ids(times: NDArray[np.int64], field: str) -> NDArray[np.int32]:
    """Return the hour of the day (UTC) or the weekday (0 is Monday) of moments, int32[n]."""
    found = times // HOUR % 24 if field == "hour" else (times // DAY + 3) % 7
    return found.astype(np.int32)
