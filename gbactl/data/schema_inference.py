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
from gbactl.conf_catalogue import as_override, as_yaml
from gbactl.data.cache_writer import DEFAULT_DAYS
from gbactl.data.column_conversion import (
    DAY,
    MOST_VALUES,
    equal,
    list_separator,
    lists_of,
    marked_numbers,
    missing_tokens,
    odd_numbers,
    texts,
    time_format,
    timestamps,
)
from gbactl.data.remote_files import SourceFile
from gbactl.data.table_files import TextForm, header_of, read_table
from gbactl.data.text_files import BadLines
from gbactl.errors import ConfigError, DataError

SAMPLE = 100_000  # rows that are looked at
LISTED = 1 << 22  # values of lists, after which no more rows are looked at
LABELS = (
    "label", "click", "clicked", "is_click", "is_clicked", "target", "y", "class", "outcome", "converted", "conversion",
    "is_attributed", "response", "purchased",
)  # fmt: skip
POSITIVE = (
    "1", "yes", "y", "true", "t", "positive", "click", "clicked", "success", "buy", "won", "ja", "oui", "si", "sim",
)  # fmt: skip
USER_NAME = re.compile(r"(user|uid|customer|member|visitor|client|account)([ _-]?id)?", re.IGNORECASE)
CODE_NAME = re.compile(
    r"(^|[ _-]|(?-i:(?<=[a-z0-9])(?=[A-Z])))(ids?|codes?|zip|types?|cat|category|class|segment|os|device|browser|app|"
    r"site|region|city|country|item|product|ad|brand)$",
    re.IGNORECASE,
)
SEQUENCE_NAME = re.compile(r"hist|seq|recent|seen|visited|viewed|clicked|watched|session|last", re.IGNORECASE)
FEW_NUMBERS = 24  # whole numbers that are rather categories, as hours are
FREE_TEXT = 60  # mean length of a text that is no category
LEAST_BUCKETS, MOST_BUCKETS = 1 << 10, 1 << 17
MOST_DAYS, ROWS_A_DAY = 60, 100
GLOBAL_BATCH = 2048
FEW_ROWS = 100  # of a day


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
        """Short text on how the column is read: its kind, with its transform or with what counts as a click."""
        more = [str(self.options[key]) for key in ("transform", "positive") if key in self.options]
        more += [f">= {self.options['at_least']:g}"] if "at_least" in self.options else []
        return " ".join([self.kind, *more])


@dataclass(frozen=True)
class Inferred:
    """Guess of a table's schema by the first one of its `files`.

    `rows` of about `total` rows of that file were looked at; the number of cells of about `ragged` rows is another one
    than the header's, and `first_ragged` says what is wrong with the first of them."""

    file: SourceFile
    guesses: tuple[Guess, ...]
    separator: str | None
    missing: tuple[str, ...]
    rows: int
    total: int
    ragged: int
    first_ragged: str
    files: int

    @property
    def whole(self) -> bool:
        """Whether all rows of the file were looked at."""
        return self.rows == self.total

    @property
    def looked_at(self) -> str:
        """Number of rows that the guesses rest on, in words."""
        return f"all {self.rows:,} rows" if self.whole else f"the first {self.rows:,} rows"

    @property
    def notes(self) -> list[str]:
        """Sentences on what is unusual about the table as a whole."""
        found = [f"It is the first of {self.files} files, which should have the same columns."] * (self.files > 1)
        if self.ragged:
            count = f"{self.ragged:,}" if self.whole else f"About {self.ragged:,}"
            found.append(f"{count} rows are ragged and will be left out; the first: {self.first_ragged}.")
        if self.whole and self.rows_a_day < FEW_ROWS:
            found.append(f"A day has about {self.rows_a_day} rows: too few for an AUC that is more than chance.")
        return found

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
        """List the commands to type next; `path` names the tables, `schema` the new schema file."""
        typed = ["data=table", f"data.path={as_override(path)}", f"data.schema={as_override(schema)}"]
        unlabelled = next(each.missing for each in self.guesses if each.kind == "label")
        unreadable = self.ragged + round(unlabelled * self.total)
        if unreadable:  # twice as many as are expected where not all rows were looked at
            known = self.whole and self.files == 1
            typed.append(f"data.max_bad_lines={unreadable if known else 2 * unreadable * self.files}")
        steps = self.rows_a_day // 20  # the default global batch would give a day of a small table few steps
        if self.whole and steps < GLOBAL_BATCH:
            typed.append(f"train.global_batch={1 << max(4, steps.bit_length() - 1)}")
        return [shlex.join(["gbactl", "train", "-m", "mode=sync,async,gba", "seed=1,2,3", *typed]), "gbactl report"]

    @property
    def rows_a_day(self) -> int:
        """Estimated number of rows per day; too large if the sampled rows lack some of the days."""
        kinds = {each.kind: each.distinct for each in self.guesses}
        if "day" in kinds:
            return self.rows // kinds["day"]
        return self.rows if self.files > 1 and "time" not in kinds else self.rows * self.files // DEFAULT_DAYS


def infer(file: SourceFile, label: str | None = None, files: int = 1) -> Inferred:
    """Guess the schema of a table by the first one of its `files`. Raises ConfigError or DataError.

    `label`: name of the label column, or COLUMN=VALUE with the text of a click, if known."""
    names, separator = header_of(file, TextForm())
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None and not marked_numbers(pl.Series([twice]), False)[0].null_count():
        raise _no_header(file, names, separator)
    if twice is not None:
        raise DataError(
            f"{file} has {names.count(twice)} columns {twice or 'without a name'}; give each a name of its own."
        )
    ragged = BadLines(SAMPLE)
    frame, read, share = _sample(file, ragged)
    total = round(read / share)
    whole = len(frame) == total
    if separator is not None and not _has_header(frame):
        raise _no_header(file, names, separator)
    frame = pl.DataFrame({name: _as_texts(frame[name]) for name in names})
    missing = ("", *missing_tokens(frame))
    frame = frame.with_columns(pl.col(pl.String).replace(dict.fromkeys(missing, None)))
    chosen = _label(file, frame, label)
    if whole and chosen.distinct < 2:
        [only] = _values(frame[chosen.name]) or ["missing"]
        raise DataError(f"All {len(frame):,} rows have the label {only} ({chosen.name}); a label needs two values.")
    guesses, seen = list[Guess](), set[str]()
    months = any("month" in name.lower() for name in names)
    for name in frame.columns:
        guess = chosen if name == chosen.name else _column(frame[name], seen, whole, months, separator == ";")
        seen.add("clock" if guess.kind in ("time", "day") else guess.kind)
        guesses.append(guess)
    if not seen & {"numeric", "categorical", "multi", "sequence", "user"}:
        raise DataError(f"{file} has no column that could be a feature; write a schema file by hand.")
    lost = round(ragged.count * total / read)
    return Inferred(file, tuple(guesses), separator, missing, len(frame), total, lost, ragged.first, files)


def _sample(file: SourceFile, ragged: BadLines) -> tuple[pl.DataFrame, int, float]:
    """Return the first rows of a table, at most SAMPLE, the number of rows that were read, and their share of all."""
    frames, rows, listed, share, shares = list[pl.DataFrame](), 0, 0, 0.0, [0.0]
    for chunk in read_table(file, TextForm(), None, ragged, lambda stage, fraction: shares.append(fraction)):
        if (rows > SAMPLE or listed > LISTED) and shares[-1] > share:
            break  # beyond the block of which the share is known
        frames.append(chunk.frame[: max(0, SAMPLE - rows)])
        rows, share = rows + len(chunk.frame), shares[-1]
        listed += sum(int(each.list.len().sum()) for each in chunk.frame if isinstance(each.dtype, pl.List))
    else:
        share = 1.0
    if not rows and ragged.count:
        raise DataError(
            f"{ragged.first}, and no row has as many; remove what stands above the header, such as a comment or a "
            f"title, for instance by: tail -n +2 {file} > NEW_FILE"
        )
    if not rows:
        raise DataError(f"{file} has no rows below its header.")
    return pl.concat(frames), rows, share


def _has_header(frame: pl.DataFrame) -> bool:
    """Return whether the first line is a header: a name unlike its cells, no number below, or names that count up."""
    filled = [name for name in frame.columns if frame[name].null_count() < len(frame)]
    numeric = [name for name in filled if not marked_numbers(frame[name].drop_nulls(), False)[0].null_count()]
    counted = [[str(first + i) for i in range(len(frame.columns))] for first in (0, 1)]  # as programs make them
    if not numeric or marked_numbers(pl.Series(numeric), False)[0].null_count() or frame.columns in counted:
        return True
    texts_often = [name for name in filled if name not in numeric and frame[name].n_unique() < len(frame) / 2]
    return any(name not in frame[name] for name in texts_often)


def _no_header(file: SourceFile, names: list[str], separator: str | None) -> DataError:
    shown, mark = (separator or ",").join(names)[:60], "\\t" if separator == "\t" else separator or ","
    made = mark.join(f"c{i + 1}" for i in range(len(names)))
    return DataError(
        f"{file} seems to have no header, as its first line is {shown!r}; put one above it, for instance by: "
        f"sed '1i {made}' {file} > NEW_FILE"
    )


def _as_texts(column: pl.Series) -> pl.Series:
    """Convert a column to text (times to ISO 8601); return lists, other structures, bytes and durations unchanged."""
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Duration):
        return column
    dated = isinstance(column.dtype, pl.Date | pl.Datetime)
    return texts(column.cast(pl.Datetime("us"), strict=False) if dated else column)


def _facts(column: pl.Series) -> tuple[int, float]:
    """Return the number of distinct values, and the share that is missing."""
    return column.drop_nulls().n_unique(), column.null_count() / max(1, len(column))


def _values(column: pl.Series) -> list[str]:
    """Return the distinct texts of a column, the rarest first."""
    counts = column.drop_nulls().value_counts().sort(pl.col("count"), pl.nth(0))
    return [str(each) for each in counts.to_series(0)]


def _label(file: SourceFile, frame: pl.DataFrame, wanted: str | None) -> Guess:
    """Choose the label column, and what counts as a click in it. Raises ConfigError if no column is evident.

    `wanted`: a column, or COLUMN=VALUE with the text of a click."""
    if wanted is not None:
        name, _, positive = (wanted, "", "") if wanted in frame.columns else wanted.partition("=")
        if name not in frame.columns:
            meant = did_you_mean(name, frame.columns)
            shown = ", ".join(frame.columns[:20])
            raise ConfigError(f"{file} has no column {name}; its columns are: {shown}.{meant and f' {meant}'}")
        return _as_label(frame[name], "as typed", positive or None)
    flat = [name for name in frame.columns if frame[name].dtype == pl.String]
    two, one = ([name for name in flat if _facts(frame[name])[0] == count] for count in (2, 1))
    named = [name for few in (two, one) for known in LABELS for name in few if name.strip().lower() == known]
    if named:
        why = "by its name and its two values"
        if named[0] in one:
            why = "by its name, but all rows that were looked at have one value"
        return _as_label(frame[named[0]], why)
    binary = [name for name in two if set(_values(frame[name])) <= {"0", "1"}]
    if len(binary) == 1:
        return _as_label(frame[binary[0]], "the only column of 0 and 1")
    if not binary and two[-1:] == frame.columns[-1:]:
        return _as_label(frame[two[-1]], "the last column, and it has two values")
    shown = f"these have two values: {', '.join(binary or two)}" if two else f"there are: {', '.join(frame.columns)}"
    more = "" if two else ", or --label COLUMN=VALUE with the value of a click"
    raise ConfigError(f"No column of {file} is clearly the label; {shown[:300]}; type --label COLUMN{more}.")


def _as_label(column: pl.Series, why: str, positive: str | None = None) -> Guess:
    (distinct, missing), values = _facts(column), _values(column)
    written = column.drop_nulls()
    number, written_as, _ = marked_numbers(written, False)
    options: dict[str, Any] = {"kind": "label"}
    if positive is not None and not equal(column, positive).any():
        meant, seen = did_you_mean(positive, values), ", ".join(values[-20:])
        raise ConfigError(f"No cell of {column.name} is {positive}; there are: {seen}.{meant and f' {meant}'}")
    if positive is not None:
        options["positive"] = positive
        why += f"; a click is {positive}"
    elif any({each.lower() for each in values} <= known for known in ({"0", "1"}, {"true", "false"})):
        pass  # which the kind label takes as they are
    elif distinct == 2:
        known = [each for each in values if each.lower() in POSITIVE]
        largest = [] if number.null_count() else [written[int(number.arg_max() or 0)]]
        options["positive"] = (known or largest or values)[0]
        why += "; a click is {}, not {}".format(*sorted(values, key=options["positive"].__ne__))
    elif len(number) and not number.null_count():
        sizes = np.sort(number.to_numpy())
        upper = sizes[sizes > sizes[(len(sizes) - 1) // 2]]
        options["at_least"] = float([*upper, sizes[-1]][0])  # so that at most half of the rows are clicks
        options |= written_as
        why += f"; a click is {options['at_least']:g} or more"
    else:
        such = f"such as {', '.join(values[-3:])}" if values else "all of them missing"
        raise ConfigError(
            f"The label {column.name} has {distinct} values, {such}; type --label {column.name}=VALUE with that of a "
            "click."
        )
    lacking = f"; {missing:.1%} missing, which data.max_bad_lines leaves out" if missing else ""
    return Guess(column.name, options, why + lacking, distinct, missing)


def _column(column: pl.Series, seen: set[str], whole: bool, months: bool, decimal_comma: bool) -> Guess:
    """Guess the kind of a column other than the label; `seen`: kinds of the columns before it.

    `months`: the table has a column of months, so that numbers of days are days of a month, which are in no order.
    `decimal_comma`: whether 1,234 is rather 1.234."""
    distinct, missing = _facts(column)
    guess = Guess(column.name, {"kind": "ignore"}, "", distinct, missing)
    if isinstance(column.dtype, pl.List) and not column.dtype.inner.is_nested():
        return _list(column, guess, "lists")
    if column.dtype != pl.String:
        return replace(guess, why=f"holds {column.dtype}")
    if distinct < 2:
        return replace(guess, why="one value alone" if distinct else "always missing")
    found = _clock(column, guess, whole, months)
    if found is not None and missing:
        lacking = f"a time, {missing:.1%} of which is missing"
        return replace(guess, why=f"{lacking}; with kind: time, data.max_bad_lines leaves such rows out")
    if found is not None:
        return found if "clock" not in seen else replace(guess, why="a further time; one is possible")
    written = column.drop_nulls()
    if "user" not in seen and USER_NAME.fullmatch(column.name):
        return _categorical(guess, "user", "by its name", whole)
    number, written_as, marks = marked_numbers(written, decimal_comma)
    numeric, rows = not number.null_count(), len(written)
    if marks:
        return _numeric(number, guess, written_as, marks)
    integer, code = numeric and bool((number == number.floor()).all()), CODE_NAME.search(column.name)
    if not numeric and not code and distinct > FEW_NUMBERS and (reason := odd_numbers(written, number)):
        return replace(guess, why=reason)
    separator = None if numeric else list_separator(written)
    if separator is not None:
        return _list(column, guess, f"values apart by {separator!r}", separator=separator)
    if (integer or not numeric) and distinct > max(50, 0.98 * rows):
        return replace(guess, why="every value is another one, as of an id")
    if not numeric and float(written.str.len_chars().to_numpy().mean()) > FREE_TEXT:
        return replace(guess, why="free text")
    if integer and (code or distinct <= FEW_NUMBERS):
        why = f"{distinct:,} whole numbers" if distinct <= FEW_NUMBERS else "numbers that are ids, by its name"
        return _categorical(guess, "categorical", why, whole)
    if numeric:
        return _numeric(number, guess, written_as, marks)
    return _categorical(guess, "categorical", f"{distinct:,} texts", whole)


def _list(column: pl.Series, guess: Guess, reason: str, **options: str) -> Guess:
    """Guess the options of a column of lists: of kind `sequence` if its name suggests one, else `multi`."""
    kind = "sequence" if SEQUENCE_NAME.search(column.name) else "multi"
    lengths, values, _ = lists_of(column, options.get("separator", " "), MOST_VALUES, False)
    longest, distinct = int(lengths.max(initial=0)), values.n_unique()
    if not longest:
        return replace(guess, why="always empty")
    most = min(MOST_VALUES, 1 << (longest - 1).bit_length())
    why = f"{reason}, {distinct:,} distinct, at most {longest:,} in a row"
    return _categorical(replace(guess, distinct=distinct), kind, why, False, **options, max_length=most)


def _numeric(number: pl.Series, guess: Guess, written_as: Mapping[str, str], marks: str) -> Guess:
    """Guess the transform of a numeric column; `written_as`, `marks`: its number format as options and in words."""
    values = number.to_numpy()
    low, high, middle, mean = (float(of(values)) for of in (np.min, np.max, np.median, np.mean))
    skewed = low >= 0 and high > 100 and mean > 1.5 * middle
    why = f"numbers from {low:g} to {high:g}" + (f", most of them small (half at most {middle:g})" if skewed else "")
    transform = "log1p" if skewed else "standardize"
    return replace(guess, options={"kind": "numeric", "transform": transform, **written_as}, why=why + marks)


def _categorical(guess: Guess, kind: str, why: str, whole: bool, **options: Any) -> Guess:
    """Choose 32 hash buckets per value, so that few values collide; or data.buckets if values are, or may be, many."""
    wanted = max(LEAST_BUCKETS, 1 << (32 * guess.distinct - 1).bit_length())
    if wanted < MOST_BUCKETS and (whole or guess.distinct <= 1000):
        options["buckets"] = wanted
    return replace(guess, options={"kind": kind, **options}, why=why)


def _clock(column: pl.Series, guess: Guess, whole: bool, months: bool) -> Guess | None:
    """Guess the options of a column with the time or the day; None for any other column."""
    form, reason = time_format(column) or (None, "")
    if not reason or (reason == "day" and months):
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
