"""Guess of a table's schema: what each column seems to be, judged by the first rows of the file.

The guess is written as a schema file with its reasons as comments, to be looked at and changed. Nothing else depends on
it: training reads the file alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from gbactl.checked_dataclasses import did_you_mean
from gbactl.conf_catalogue import as_yaml
from gbactl.data.cache_writer import DEFAULT_DAYS
from gbactl.data.column_conversion import DAY, lists_of, numbers, texts, timestamps
from gbactl.data.remote_files import SourceFile
from gbactl.data.table_files import TextForm, columns_of, read_table, separator_of
from gbactl.data.text_files import BadLines
from gbactl.errors import ConfigError, DataError

SAMPLE = 100_000  # rows that are looked at
TOKENS = (
    "NA",
    "N/A",
    "n/a",
    "NULL",
    "null",
    "NaN",
    "nan",
    "None",
    "\\N",
    "?",
    "-",
    ".",
)  # may stand for a missing value
LABELS = (
    "label", "click", "clicked", "is_click", "is_clicked", "target", "y", "class", "outcome", "converted", "conversion",
    "is_attributed", "response", "purchased",
)  # fmt: skip
POSITIVE = ("1", "yes", "y", "true", "t", "positive", "click", "clicked", "success", "buy")
TIME_NAME = re.compile(r"time|date|hour|(^|_)(ts|dt|day|at|when)($|_)", re.IGNORECASE)
USER_NAME = re.compile(r"(user|uid|customer|member|visitor|client|account)([ _-]?id)?", re.IGNORECASE)
CODE_NAME = re.compile(
    r"(^|[ _-])(ids?|codes?|zip|types?|cat|category|class|segment|os|device|browser|app|site|region|city|country|item|"
    r"product|ad|brand)$",
    re.IGNORECASE,
)
FORMATS = tuple(
    f"{date}{time}"
    for date in ("%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%d-%m-%Y", "%m/%d/%y")
    for time in ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
)
SEQUENCE_NAME = re.compile(r"hist|seq|recent|seen|visited|viewed|clicked|watched|session|last", re.IGNORECASE)
LIST_SEPARATORS = ("|", ";", ",", "^", " ")
LEAST_PARTED = 0.2  # share of the cells of a multi-valued column that have its separator
LONGEST_VALUE = 32  # mean characters of the values of a list
MOST_VALUES = 512
EPOCH = (6e8, 2.6e9)  # seconds since 1970 from 1989 to 2052
FEW_NUMBERS = 20  # whole numbers that are rather categories
FREE_TEXT = 60  # mean length of a text that is no category
LEAST_BUCKETS, MOST_BUCKETS = 1 << 10, 1 << 17
MOST_DAYS, ROWS_A_DAY = 60, 100
GLOBAL_BATCH = 2048


@dataclass(frozen=True)
class Guess:
    """Guess of one column: its options in the schema file, and why."""

    name: str
    options: Mapping[str, Any]
    why: str
    distinct: int
    missing: float

    @property
    def kind(self) -> str:
        """Kind of the column."""
        return str(self.options["kind"])

    @property
    def read_as(self) -> str:
        """Kind of the column with its transform or rule, in short."""
        more = [str(self.options[key]) for key in ("transform", "positive") if key in self.options]
        more += [f">= {self.options['at_least']:g}"] if "at_least" in self.options else []
        return " ".join([self.kind, *more])


@dataclass(frozen=True)
class Inferred:
    """Guess of a table's schema; `whole`: whether all rows of the file were looked at."""

    file: SourceFile
    guesses: tuple[Guess, ...]
    separator: str | None
    missing: tuple[str, ...]
    rows: int
    whole: bool

    @property
    def looked_at(self) -> str:
        """Number of rows that the guesses rest on, in words."""
        return f"all {self.rows:,} rows" if self.whole else f"the first {self.rows:,} rows"

    def text(self) -> str:
        """Write the schema file."""
        lines = [f"# Schema of {self.file.name}, guessed from {self.looked_at}. Change what is wrong."]
        if self.separator is not None:
            lines.append(f"separator: {as_yaml(self.separator)}")
        if self.missing != ("",):
            lines.append(f"missing: {as_yaml(list(self.missing))}  # cells that stand for a missing value")
        lines.append("columns:")
        for each in self.guesses:
            lines.append(f"  {as_yaml(each.name)}: {as_yaml(dict(each.options))}  # {' '.join(each.why.split())}")
        return "\n".join(lines) + "\n"

    def commands(self, path: str, schema: str) -> list[str]:
        """List the commands to type next; `path`: that of the tables, `schema`: that of the new schema file."""
        data = ["data=table", _override("data.path", path), _override("data.schema", schema)]
        small, unlabelled = self._global_batch(), self._unlabelled()
        data += [f"data.max_bad_lines={unlabelled}"] if unlabelled else []
        batch = [f"train.global_batch={small}"] if small else []
        return [
            shlex.join(["gbactl", "train", "-m", "mode=sync,async,gba", "seed=1,2,3", *data, *batch]),
            "gbactl report",
        ]

    def _unlabelled(self) -> int:
        """Count the rows without a label, which training has to leave out; 0 where not all rows were looked at."""
        return round(self.rows * next(each.missing for each in self.guesses if each.kind == "label")) * self.whole

    def _global_batch(self) -> int | None:
        """Choose a global batch that gives a day of a small table some steps; None where the default will do."""
        days_there = next((each.distinct for each in self.guesses if each.kind == "day"), DEFAULT_DAYS)
        steps = self.rows // max(1, days_there) // 20
        return None if not self.whole or steps >= GLOBAL_BATCH else max(16, 1 << max(0, steps.bit_length() - 1))


def _override(key: str, value: str) -> str:
    return f"{key}={value}" if re.fullmatch(r"[\w./:@~+-]+", value) else f'{key}="{value}"'


def infer(file: SourceFile, label: str | None = None) -> Inferred:
    """Guess the schema of a table; `label`: name of the label column, if known. Raises ConfigError or DataError."""
    names = columns_of(file, TextForm())
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DataError(f"{file} has {names.count(twice)} columns {twice}; give each a name of its own.")
    frame, whole = _sample(file)
    missing = ("", *(token for token in TOKENS if any(token in _tokens(frame[name]) for name in frame.columns)))
    frame = frame.with_columns(pl.col(pl.String).replace(dict.fromkeys(missing, None)))
    chosen = _label(file, frame, label)
    guesses, seen = list[Guess](), set[str]()
    months = any("month" in name.lower() for name in names)
    for name in frame.columns:
        guess = chosen if name == chosen.name else _column(frame[name], seen, whole, months)
        seen.add("clock" if guess.kind in ("time", "day") else guess.kind)
        guesses.append(guess)
    if not seen & {"numeric", "categorical", "multi", "sequence", "user"}:
        raise DataError(f"{file} has no column that could be a feature; write a schema file by hand.")
    return Inferred(file, tuple(guesses), separator_of(file), missing, len(frame), whole)


def _sample(file: SourceFile) -> tuple[pl.DataFrame, bool]:
    """Read the first rows of a table; return also whether these are all."""
    frames, rows = list[pl.DataFrame](), 0
    for chunk in read_table(file, TextForm(), None, BadLines(SAMPLE), lambda stage, fraction: None):
        frames.append(chunk.frame[: SAMPLE + 1 - rows])
        rows += len(frames[-1])
        if rows > SAMPLE:
            break
    if not rows:
        raise DataError(f"{file} has no rows below its header.")
    return pl.concat(frames)[:SAMPLE], rows <= SAMPLE


def _tokens(column: pl.Series) -> set[str]:
    """Return the texts that stand for a missing value in a column otherwise of numbers or times."""
    if column.dtype != pl.String:
        return set()
    distinct = texts(column).drop_nulls().unique()
    odd = distinct.filter(numbers(distinct).is_null())
    if not len(odd) or len(odd) == len(distinct) or len(odd) > len(TOKENS):
        odd = distinct.filter(timestamps(distinct).is_null())
    found = set(odd.to_list())
    return found if found <= set(TOKENS) and len(found) < len(distinct) else set()


def _facts(column: pl.Series) -> tuple[int, float]:
    """Return the number of distinct values, and the share that is missing."""
    written = column if column.dtype.is_nested() or column.dtype == pl.Binary else texts(column)
    return written.drop_nulls().n_unique(), written.null_count() / max(1, len(written))


def _values(column: pl.Series) -> list[str]:
    """Return the distinct texts of a column, the rarest first."""
    counts = texts(column).drop_nulls().value_counts().sort(pl.col("count"), pl.nth(0))
    return [str(each) for each in counts.to_series(0)]


def _label(file: SourceFile, frame: pl.DataFrame, wanted: str | None) -> Guess:
    """Choose the label column and the rule for a click in it. Raises ConfigError where no column is evident.

    `wanted`: a column, or COLUMN=VALUE with the text of a click."""
    if wanted is not None:
        name, _, positive = wanted.partition("=")
        if positive and wanted not in frame.columns and name in frame.columns:
            return _as_label(frame[name], "as typed", positive)
        if wanted not in frame.columns:
            meant = did_you_mean(wanted, frame.columns)
            shown = ", ".join(frame.columns[:20])
            raise ConfigError(f"{file} has no column {wanted}; its columns are: {shown}.{meant and f' {meant}'}")
        return _as_label(frame[wanted], "as typed")
    flat = [name for name in frame.columns if not frame[name].dtype.is_nested() and frame[name].dtype != pl.Binary]
    two = [name for name in flat if _facts(frame[name])[0] == 2]
    named = [name for known in LABELS for name in two if name.lower() == known]
    if named:
        return _as_label(frame[named[0]], "by its name")
    binary = [name for name in two if set(_values(frame[name])) <= {"0", "1"}]
    if len(binary) == 1:
        return _as_label(frame[binary[0]], "the only column of 0 and 1")
    if not binary and two[-1:] == frame.columns[-1:]:
        return _as_label(frame[two[-1]], "the last column, and it has two values")
    listed = f"; these have two values: {', '.join((binary or two)[:20])}" if two else ""
    raise ConfigError(f"No column of {file} is clearly the label{listed}; type --label COLUMN.")


def _as_label(column: pl.Series, why: str, positive: str | None = None) -> Guess:
    (distinct, missing), values = _facts(column), _values(column)
    number = numbers(texts(column)).drop_nulls()
    lacking = f"; {missing:.1%} missing, which data.max_bad_lines leaves out" if missing else ""

    def made(reason: str, **options: Any) -> Guess:
        return Guess(column.name, {"kind": "label", **options}, f"{why}{reason}{lacking}", distinct, missing)

    if positive is not None:
        if positive not in values:
            meant, seen = did_you_mean(positive, values), ", ".join(values[-20:])
            raise ConfigError(f"No cell of {column.name} is {positive}; there are: {seen}.{meant and f' {meant}'}")
        return made(f"; a click is {positive}", positive=positive)
    if {each.lower() for each in values} <= {"0", "1"} or {each.lower() for each in values} <= {"true", "false"}:
        return made("")
    if distinct == 2:
        known = [each for each in values if each.lower() in POSITIVE]
        numeric = [max(values, key=float)] if len(number) == len(column.drop_nulls()) else []
        positive = (known or numeric or values)[0]
        return made(
            f"; a click is {positive}, not {next(each for each in values if each != positive)}", positive=positive
        )
    if len(number) and len(number) == len(column.drop_nulls()):
        sizes = np.sort(number.to_numpy())
        upper = sizes[sizes > sizes[(len(sizes) - 1) // 2]]
        least = float(upper[0] if len(upper) else sizes[-1])  # so that at most half of the rows are clicks
        return made(f"; a click is {least:g} or more", at_least=least)
    such = f"such as {', '.join(values[-3:])}" if values else "all of them missing"
    raise ConfigError(
        f"The label {column.name} has {distinct} values, {such}; type --label {column.name}=VALUE with that of a click."
    )


def _column(column: pl.Series, seen: set[str], whole: bool, months: bool) -> Guess:
    """Guess the kind of a column other than the label; `seen`: kinds of the columns before it.

    `months`: the table has a column of months, so that numbers of days are days of a month, which are in no order."""
    distinct, missing = _facts(column)
    guess = Guess(column.name, {"kind": "ignore"}, "", distinct, missing)
    if isinstance(column.dtype, pl.List) and not column.dtype.inner.is_nested():
        return _list(column, guess, "lists", {})
    if column.dtype.is_nested() or column.dtype == pl.Binary:
        return replace(guess, why=f"holds {column.dtype}")
    if distinct < 2:
        return replace(guess, why="one value alone" if distinct else "always missing")
    found = _clock(column, guess, whole, months)
    if found is not None and missing:
        return replace(guess, why=f"a time, {missing:.1%} of which is missing")
    if found is not None:
        return found if "clock" not in seen else replace(guess, why="a further time; one is possible")
    written = texts(column)
    if "user" not in seen and USER_NAME.fullmatch(column.name):
        return _categorical(guess, "user", "by its name", whole)
    number = numbers(written)
    numeric = number.null_count() == written.null_count()
    integer = numeric and bool((number == number.floor()).all())
    rows = len(written) - written.null_count()
    separator = None if numeric else _separator(written.drop_nulls())
    if separator is not None:
        return _list(column, guess, f"values apart by {separator!r}", {"separator": separator})
    if (integer or not numeric) and distinct > max(50, 0.98 * rows):
        return replace(guess, why="every value is another one, as of an id")
    if not numeric and float(written.drop_nulls().str.len_chars().to_numpy().mean()) > FREE_TEXT:
        return replace(guess, why="free text")
    if integer and (CODE_NAME.search(column.name) or distinct <= FEW_NUMBERS):
        why = f"{distinct:,} whole numbers" if distinct <= FEW_NUMBERS else "numbers that are ids, by its name"
        return _categorical(guess, "categorical", why, whole)
    if numeric:
        return _numeric(number.drop_nulls(), guess)
    return _categorical(guess, "categorical", f"{distinct:,} texts", whole)


def _separator(written: pl.Series) -> str | None:
    """Return the separator of a column of lists: one that most cells have, between short texts that occur often."""
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


def _list(column: pl.Series, guess: Guess, reason: str, options: dict[str, Any]) -> Guess:
    """Guess the options of a column of lists: of kind `sequence` if its name suggests one, else `multi`."""
    kind = "sequence" if SEQUENCE_NAME.search(column.name) else "multi"
    lengths, values, _ = lists_of(column, options.get("separator", " "), MOST_VALUES, False)
    longest = int(lengths.max(initial=0))
    if not longest:
        return replace(guess, why="always empty")
    most = min(MOST_VALUES, 1 << (longest - 1).bit_length())
    why = f"{reason}, {values.n_unique():,} distinct, at most {longest:,} in a row"
    made = _categorical(replace(guess, distinct=values.n_unique()), kind, why, False)
    return replace(made, options={"kind": kind, **options, "max_length": most, **made.options}, distinct=guess.distinct)


def _numeric(number: pl.Series, guess: Guess) -> Guess:
    values = number.to_numpy()
    low, high, middle, mean = (float(of(values)) for of in (np.min, np.max, np.median, np.mean))
    skewed = low >= 0 and high > 100 and mean > 1.5 * middle
    why = f"numbers from {low:g} to {high:g}" + (f", most of them small (half below {middle:g})" if skewed else "")
    return replace(guess, options={"kind": "numeric", "transform": "log1p" if skewed else "standardize"}, why=why)


def _categorical(guess: Guess, kind: str, why: str, whole: bool) -> Guess:
    """Choose 32 hash buckets per value, so that few values collide; data.buckets if values are or may be many."""
    wanted = max(LEAST_BUCKETS, 1 << (32 * guess.distinct - 1).bit_length())
    known = wanted < MOST_BUCKETS and (whole or guess.distinct <= 1000)
    return replace(guess, options={"kind": kind, **({"buckets": wanted} if known else {})}, why=why)


def _clock(column: pl.Series, guess: Guess, whole: bool, months: bool) -> Guess | None:
    """Guess a column with the time or the day; None for any other."""
    form, reason = _time_format(column)
    if reason is None or (reason == "day" and months):
        return None
    if reason == "day":
        return replace(guess, options={"kind": "day"}, why=f"{guess.distinct:,} numbers of days, by its name")
    at = timestamps(column, form).drop_nulls()
    count = (at // DAY).n_unique()
    clear = (2 if whole else 1) <= count <= MOST_DAYS and len(at) >= (1 if whole else 10) * ROWS_A_DAY * count
    hours, weeks = bool((at % DAY != 0).any()), count >= 14
    parts = [name for name, given in (("hour", hours), ("weekday", hours or weeks)) if given]
    options = {
        "kind": "day" if clear else "time",
        **({"format": form} if form else {}),
        **({"fields": parts} if parts else {}),
    }
    cut = f"of {count:,} days" if clear else f"over {count:,} dates, cut into equal parts in its order"
    return replace(guess, options=options, why=f"{reason}, {cut}", distinct=count if clear else guess.distinct)


def _time_format(column: pl.Series) -> tuple[str | None, str | None]:
    """Return the format of a column's times, and their description: None if not times, "day" if day numbers."""
    if column.dtype.is_temporal():
        return None, "times"
    written = texts(column).drop_nulls()
    number = numbers(written)
    if not number.null_count():
        return _numeric_time(column.name, written, number)
    if not timestamps(written).null_count():
        return None, "times"
    for form in FORMATS:
        if not _parsed_all(written[:100], form):
            continue
        if _parsed_all(written, form):
            other = form.replace("%m/%d", "%d/%m")
            unsure = other != form and _parsed_all(written, other)
            return form, f"times{' (or the day comes first)' if unsure else ''}"
    return None, None


def _numeric_time(name: str, written: pl.Series, number: pl.Series) -> tuple[str | None, str | None]:
    if not TIME_NAME.search(name) or not (number == number.floor()).all():
        return None, None
    low, high = float(number.to_numpy().min()), float(number.to_numpy().max())
    if low >= 19000101 and high <= 22001231 and _parsed_all(written, "%Y%m%d"):
        return "%Y%m%d", "dates"
    if (written.str.len_chars() == 8).all() and _parsed_all(written, "%y%m%d%H"):
        return "%y%m%d%H", "hours"
    if any(EPOCH[0] * scale <= low and high <= EPOCH[1] * scale for scale in (1, 1e3, 1e6, 1e9)):
        return None, "seconds since 1970, or parts of them"
    few = low >= 0 and high < 100_000 and written.n_unique() <= 1000 and re.search("day|date|dt", name, re.IGNORECASE)
    return (None, "day") if few and not re.search("week", name, re.IGNORECASE) else (None, None)


def _parsed_all(written: pl.Series, form: str) -> bool:
    try:
        return not timestamps(written, form).null_count()
    except ConfigError:
        return False
