"""Conversion of a table's columns, from text or the types of Parquet, to numbers, times, days and categorical ids.

A cell that is missing or cannot be read becomes null. A value has the same text in CSV and in Parquet, and so the same
id. Hashing costs 1 us for each distinct text of a chunk; whole numbers are hashed as they are, 20 ns a row.

The second half recognises how a column of text is written: the marks of its numbers, the format of its times, the
separator of its lists, and what stands for a missing value. Only guesses of a schema need it.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.data.text_files import to_ids
from gbactl.errors import ConfigError

HOUR, DAY = 3_600_000_000, 86_400_000_000  # microseconds
ISO = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S%.f%#z", "%Y-%m-%d %H:%M%#z")
SCALES = ((1e11, 1e6), (1e14, 1e3), (1e17, 1.0))  # limit of seconds, milliseconds, microseconds; microseconds in one
LAST_DAY_NUMBER = 100_000_000  # a larger number is a moment
EXACT = 1 << 53  # smaller whole numbers are exact as Float64
WHOLE = r"^(0|-?[1-9][0-9]{0,17})$"
MARKS = ((".", ","), (",", "."))  # before the decimals of a number, and between its thousands
GROUPED = "^[+-]?[1-9][0-9]{0,2}([%s][0-9]{3})+([%s][0-9]*)?$"  # 1,234,567.8
TOKENS = (  # may stand for a missing value
    "NA", "N/A", "n/a", "NULL", "null", "NaN", "nan", "None", "\\N", "?", "-", ".",
)  # fmt: skip
TIME_NAME = re.compile(r"time|date|hour|(^|_)(ts|dt|day|at|when)($|_)", re.IGNORECASE)
DATES = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%b %d, %Y", "%d %b %Y", "%d-%b-%Y", "%d/%b/%Y")
FORMATS = tuple(
    f"{date}{time}"
    for date in ("%Y/%m/%d", *DATES, *(each.replace("%Y", "%y") for each in DATES))
    for time in ("", " %H:%M", " %H:%M:%S", ":%H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
)
NUMBER_FORMATS = {"%Y%m%d": 8, "%y%m%d%H": 8, "%Y%m%d%H%M": 12, "%Y%m%d%H%M%S": 14}  # with their numbers of digits
DAY_NAME = re.compile(r"(?!.*week).*(day|date|dt)", re.IGNORECASE)
LIST_SEPARATORS = ("|", ";", ",", "^", " ")
LEAST_PARTED = 0.2  # share of the cells of a multi-valued column that have its separator
LONGEST_VALUE = 32  # mean characters of the values of a list
MOST_VALUES = 512  # of a list, that are looked at
UNITS = r"[$€£¥%]|^[A-Z]{3}\s|\s[A-Za-z]{1,3}$"  # of money, of shares, of measures
MOST_ODD = 0.1  # share of the cells of a column otherwise of numbers
YEAR_1900, YEAR_2200 = -70 * 365 * DAY, 230 * 365 * DAY
EPOCH = (6e8, 2.6e9)  # seconds since 1970 from 1989 to 2052


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


def numbers(column: pl.Series, decimal: str = ".", thousands: str | None = None) -> pl.Series:
    """Convert a column to Float64; null where it is missing or no number.

    `decimal`: the point or comma before the decimals of a text. `thousands`: the other one, if it may stand between
    groups of three digits."""
    if column.dtype != pl.String:
        return column.cast(pl.Float64, strict=False).fill_nan(None)
    bare = column.str.strip_chars()
    if thousands is not None:
        grouped = bare.str.contains(GROUPED % (thousands, decimal))
        bare = _chosen(pl.when(grouped).then(bare.str.replace_all(thousands, "", literal=True)).otherwise(bare))
    if decimal == ",":
        bare = bare.str.replace_many([",", "."], [".", ","])
    return bare.cast(pl.Float64, strict=False).fill_nan(None)


def equal(column: pl.Series, value: str | float, decimal: str = ".", thousands: str | None = None) -> pl.Series:
    """Return which cells equal a text or number; null, or false, where a cell is missing.

    Numbers are compared as numbers, so that 12.0 equals 12. In a Boolean column, true and false are texts, too."""
    text = str(value).strip()
    if column.dtype == pl.Boolean and text.lower() in ("true", "false"):
        return column == (text.lower() == "true")
    same = texts(column) == text
    marks = (decimal, thousands) if isinstance(value, str) else ()  # a text is written as the cells are
    number: float | None = numbers(pl.Series([text]), *marks)[0]
    if number is None or abs(number) >= EXACT:
        return same
    return same | (numbers(column, decimal, thousands) == number)


def _of_polars(form: str) -> str:
    """Convert a format of Python's strptime to one of polars, which reads %f as nanoseconds. Raises ConfigError."""

    def fraction(found: re.Match[str]) -> str:
        if found[0] == "%f":
            hint = "type %3f for 3 digits, or %6f for 6"
            raise ConfigError(f"The format {form!r} has %f without a point before it; {hint}.")
        return found[0] if found[0] == "%%" else "%.f"

    return re.sub(r"%%|\.?%f", fraction, form)


def _parsed(written: pl.Series, form: str) -> pl.Series:
    try:
        found = written.str.to_datetime(_of_polars(form), strict=False, time_unit="us")
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"The format {form!r} is invalid ({reason}); type for instance '%d/%m/%Y %H:%M'.") from None
    return found.cast(pl.Datetime("us")).cast(pl.Int64)


def _since_1970(number: pl.Series) -> pl.Series:
    """Convert s, ms, us or ns since 1970, which are told apart by their size, to microseconds."""
    size = number.abs()
    found = number / 1e3
    for limit, scale in reversed(SCALES):
        found = _chosen(pl.when(size < limit).then(number * scale).otherwise(found))
    return found.round().cast(pl.Int64, strict=False)


def timestamps(column: pl.Series, form: str | None = None) -> pl.Series:
    """Convert a column to microseconds since 1970 (UTC) as Int64; null where it is missing or no time.

    `form`: format of strptime; None: ISO 8601, or a number since 1970. Raises ConfigError for an impossible format."""
    if isinstance(column.dtype, pl.Date | pl.Datetime):
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


def dates(moments: pl.Series) -> pl.Series:
    """Convert microseconds since 1970 to dates as numbers YYYYMMDD, Int64."""
    return moments.cast(pl.Datetime("us")).dt.strftime("%Y%m%d").cast(pl.Int64)


def days(column: pl.Series, form: str | None = None, moments: pl.Series | None = None) -> pl.Series:
    """Convert a column to day numbers as Int64: a date as YYYYMMDD, a whole number < 100,000,000 as it is.

    `moments`: the column's timestamps, if they are known already."""
    found = dates(timestamps(column, form) if moments is None else moments)
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
    """Map a column to one field's ids int32[n]: 0 where it is missing, otherwise in [1, buckets).

    12.0 is the number 12, as pandas writes whole numbers with a point where a column has missing ones."""
    written = texts(column)
    bare = written.str.strip_suffix(".0")
    whole = _chosen(pl.when(bare.str.contains(WHOLE)).then(bare.cast(pl.Int64, strict=False)))
    return to_ids(written, field, buckets, whole)


def in_brackets(written: pl.Series) -> pl.Series:
    """Return which texts are in brackets, as in lists written by Python, JSON or PostgreSQL."""
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
    """Return the length of each row's list, int64[n], the texts of all lists one after the other, and their indexes.

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
    """Return the weights of all list values, and a mask of the rows without exactly one weight >= 0 per value.

    `column`: lists of weights, written as the lists of `values` are. In such a row every weight is 1."""
    (lengths, _), (own, flat) = _flat(values, separator), _flat(column, separator)
    given = numbers(flat).cast(pl.Float32).fill_null(np.nan).to_numpy()
    rows = np.repeat(np.arange(len(own)), own)
    bad = (own != lengths) | (np.bincount(rows, ~(np.isfinite(given) & (given >= 0)), len(own)) > 0)
    found = np.ones(int(lengths.sum()), np.float32)
    found[~np.repeat(bad, lengths)] = given[~bad[rows]]
    return found, bad


def time_ids(times: NDArray[np.int64], field: str) -> NDArray[np.int32]:
    """Return the hour of the day (UTC) or the weekday (0 is Monday) of each time, int32[n]."""
    found = times // HOUR % 24 if field == "hour" else (times // DAY + 3) % 7
    return found.astype(np.int32)


def missing_tokens(frame: pl.DataFrame) -> list[str]:
    """List the texts that stand for a missing value in columns otherwise of numbers or times."""
    found = set[str]().union(*map(_tokens, frame))
    return [token for token in TOKENS if token in found]


def _tokens(column: pl.Series) -> set[str]:
    if column.dtype != pl.String:
        return set()
    distinct = column.drop_nulls().unique()
    others = distinct.filter(~distinct.is_in(TOKENS))
    if not 0 < len(others) < len(distinct):
        return set()
    parsed = (*(numbers(others, *marks) for marks in MARKS), timestamps(others))
    return set() if all(each.null_count() for each in parsed) else set(distinct) - set(others)


def marked_numbers(written: pl.Series, decimal_comma: bool) -> tuple[pl.Series, dict[str, str], str]:
    """Parse a column as numbers (else null); also return its decimal and thousands marks as options and in words.

    `decimal_comma`: whether 1,234 is rather 1.234. Commas between groups of three digits alone are of a list if no
    cell shows that the groups are of one number, by a shorter first group or a group that begins with 0."""
    plain = numbers(written)
    if not plain.null_count():
        return plain, {}, ""
    point, comma = (numbers(written, *marks) for marks in MARKS)
    if not comma.null_count() and (point.null_count() or decimal_comma):
        grouped = {"thousands": "."} if numbers(written, ",").null_count() else {}
        return comma, {"decimal": ",", **grouped}, ", with a decimal comma"
    if not point.null_count() and written.str.contains(r"(^|\D)\d{1,2},|,0").any():
        return point, {"thousands": ","}, ", with commas between thousands"
    return min(plain if not point.null_count() else point, comma, key=pl.Series.null_count), {}, ""


def odd_numbers(written: pl.Series, number: pl.Series) -> str | None:
    """Return advice on a column of numbers with units, or of numbers but for a few cells; None for other columns."""
    odd = written.filter(number.is_null())
    bare = odd.str.replace_all(UNITS, "")
    if (bare != odd).all() and any(not numbers(bare, *marks).null_count() for marks in MARKS):
        return f"numbers with a unit, such as {odd[0]}; write them without it for kind: numeric"
    if len(odd) <= MOST_ODD * len(written):
        return f"numbers, but for {odd[0]} and the like; add these to missing: for kind: numeric"
    return None


def list_separator(written: pl.Series) -> str | None:
    """Return the separator of a column of lists: one that most cells have, between short texts that occur often."""
    if in_brackets(written).all() and not written.str.contains(":", literal=True).any():
        return next((each for each in (",", " ") if written.str.contains(each, literal=True).any()), None)
    for separator in LIST_SEPARATORS:
        cells = written.str.contains(separator, literal=True)
        if float(cells.to_numpy().mean()) < LEAST_PARTED:
            continue
        _, values, _ = lists_of(written, separator, MOST_VALUES, False)
        few = values.n_unique() < min(written.n_unique(), len(values) / 4)
        lengths = values.str.len_chars().to_numpy()
        ids = separator.strip() or values.str.contains(r"\d").all()  # words apart by blanks are rather a text
        if few and ids and float(lengths.mean()) <= LONGEST_VALUE:
            return separator
    return None


def time_format(column: pl.Series) -> tuple[str | None, str] | None:
    """Return the time format of a column (None: a standard one) and its description ("day" for day numbers).

    None for a column without times."""
    written = column.drop_nulls()
    number = numbers(written)
    if not number.null_count():
        return _numeric_time(column.name, written, number)
    for form in (None, *FORMATS):
        if _parsed_all(written[:100], form) and _parsed_all(written, form):
            other = form and form.replace("%m/%d", "%d/%m")
            unsure = other != form and _parsed_all(written, other)
            return form, f"times{' (or the day comes first)' if unsure else ''}"
    return None


def _numeric_time(name: str, written: pl.Series, number: pl.Series) -> tuple[str | None, str] | None:
    if not TIME_NAME.search(name) or not (number == number.floor()).all():
        return None
    for form, digits in NUMBER_FORMATS.items():
        if (written.str.len_chars() == digits).all() and _parsed_all(written, form):
            return form, f"times written as {form}"
    low, high = float(number.to_numpy().min()), float(number.to_numpy().max())
    if any(EPOCH[0] * scale <= low and high <= EPOCH[1] * scale for scale in (1, 1e3, 1e6, 1e9)):
        return None, "seconds since 1970, or parts of them"
    few = low >= 0 and high < 100_000 and written.n_unique() <= 1000
    return (None, "day") if few and DAY_NAME.match(name) else None


def _parsed_all(written: pl.Series, form: str | None) -> bool:
    """Return whether all texts are times of a format, and of years such as 2024, not 24."""
    try:
        found = timestamps(written, form)
    except ConfigError:
        return False
    return not found.null_count() and bool(found.is_between(YEAR_1900, YEAR_2200).all())
