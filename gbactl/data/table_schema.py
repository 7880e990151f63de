"""Schema of a table, as a YAML file describes it: the kind and options of each column.

    separator: ","          # of a text table; without it, the one that the header has most of
    missing: ["", NA]       # cells that stand for a missing value; without it the empty cell
    columns:
      clicked: {kind: label}
      age: {kind: numeric, transform: standardize}
      country: {kind: categorical, buckets: 1024}

Every kind is a dataclass of its options. A column that the file does not name is not read.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import yaml

from gbactl.checked_dataclasses import Bounds, TableRows, build, did_you_mean
from gbactl.data.dataset import USER, ListField, Pooling, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.errors import ConfigError, DataError

TIME_FIELDS = {"hour": 24, "weekday": 7}
LARGEST_SCHEMA = 16 << 20
Mark = Literal[".", ","]  # in a number that is written as text


@dataclass(frozen=True)
class Kind:
    """Kind of a column; base class of all kinds."""

    def check(self, key: str) -> None:
        """Raise ConfigError, with the key to type, if an option is invalid."""


@dataclass(frozen=True)
class Number(Kind):
    """Column whose texts are read as numbers, with the mark `decimal` before decimals; base class.

    `thousands`: the mark that may stand between groups of three digits; None: a number has no such mark."""

    decimal: Mark = "."
    thousands: Mark | None = None

    def check(self, key: str) -> None:
        """Raise ConfigError if both marks are the same."""
        if self.thousands == self.decimal:
            other = "," if self.decimal == "." else "."
            raise ConfigError(f"{key}: thousands and decimal are both {self.decimal!r}; type decimal: {other!r}.")


@dataclass(frozen=True)
class Label(Number):
    """Label column of 0 and 1, or of cells that are a click if equal to `positive`, or at least `at_least`.

    Numbers are compared as numbers. Only cells of a Boolean column equal true or false without quotes."""

    positive: str | bool | int | float | None = None
    at_least: Annotated[float, Bounds(at_least=-3e38, at_most=3e38)] | None = None

    def check(self, key: str) -> None:
        """Raise ConfigError if both marks are the same, or both `positive` and `at_least` are given."""
        super().check(key)
        if self.positive is not None and self.at_least is not None:
            raise ConfigError(f"{key} has both positive and at_least; leave one of them out.")


@dataclass(frozen=True)
class Numeric(Number):
    """Column of numbers; a missing number becomes 0 after the transform, or bucket 0 with `bucketize`."""

    transform: Literal["none", "log1p", "standardize", "bucketize"] = "none"
    buckets: Annotated[int, Bounds(at_least=2, at_most=100_000)] = 16  # of bucketize


@dataclass(frozen=True)
class Categorical(Kind):
    """Column of texts or whole numbers, each hashed to one of `buckets` ids (None: data.buckets)."""

    buckets: TableRows | None = None


@dataclass(frozen=True)
class User(Categorical):
    """Categorical column with the user of each sample, for gAUC."""


@dataclass(frozen=True)
class Multi(Kind):
    """Column of lists of categorical values, such as tags: lists of Parquet, or texts with a separator.

    The first `max_length` are taken, hashed to `buckets` ids. `table`: a categorical column of the same values, whose
    ids and embedding table the list shares. `pooling`: how a model makes one vector of them. `weights`: a column with
    a list of their weights, written as the values are."""

    separator: str = "|"
    max_length: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 100
    buckets: TableRows | None = None
    table: str | None = None
    pooling: Pooling = "mean"
    weights: str | None = None

    def check(self, key: str) -> None:
        """Raise ConfigError for an empty separator, or both `buckets` and `table`."""
        if not self.separator:
            raise ConfigError(f"{key}.separator is empty; type for instance separator: '|'.")
        if self.table is not None and self.buckets is not None:
            raise ConfigError(f"{key} has both table and buckets; leave buckets out, since the table has its own.")


@dataclass(frozen=True)
class Sequence(Multi):
    """Column of lists in order of time, such as the items seen before: the last `max_length` values are taken."""

    separator: str = " "
    max_length: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 50


@dataclass(frozen=True)
class Time(Kind):
    """Column of sample times, by which rows are sorted. `fields`: categorical fields made of it (hour, weekday; UTC).

    `format`: of strptime, with %f only after a point; None: ISO 8601, or seconds or fractions of these since 1970."""

    format: str | None = None
    fields: list[str] = field(default_factory=list)

    def check(self, key: str) -> None:
        """Raise ConfigError if `fields` contains an unknown time field."""
        for name in self.fields:
            if name not in TIME_FIELDS:
                raise ConfigError(f"{key}.fields cannot have {name}; type some of: {', '.join(TIME_FIELDS)}.")


@dataclass(frozen=True)
class Day(Time):
    """Column of sample days, as numbers or as times within the day: rows of one date are one day, in order of time."""


@dataclass(frozen=True)
class Ignore(Kind):
    """Column that is not read."""


KINDS: dict[str, type[Kind]] = {
    "label": Label, "numeric": Numeric, "categorical": Categorical, "multi": Multi, "sequence": Sequence, "user": User,
    "time": Time, "day": Day, "ignore": Ignore,
}  # fmt: skip


@dataclass(frozen=True)
class TableSchema:
    """Keys of a schema file: the columns of a table that are read, by name, and how a text table is written.

    Also the places of these columns in the arrays. While rows wait for the statistics of the first day, the columns
    that become buckets are further numeric ones."""

    columns: dict[str, Any]  # each a Kind
    separator: str | None = None
    missing: list[str] = field(default_factory=lambda: [""])

    def of_kind(self, *kinds: type[Kind]) -> dict[str, Any]:
        """Return the columns of these kinds, by name, in the order of the file."""
        return {name: kind for name, kind in self.columns.items() if isinstance(kind, kinds)}

    @property
    def read(self) -> list[str]:
        """Names of the columns that are read: the schema's columns that are not ignored, and the columns of weights."""
        weights = (kind.weights for kind in self.of_kind(Multi).values() if kind.weights is not None)
        return list(dict.fromkeys([*self.columns, *weights]))

    @property
    def label(self) -> str:
        """Name of the label's column."""
        return next(iter(self.of_kind(Label)))

    @property
    def clock(self) -> str | None:
        """Name of the column with the time or the day; None without one."""
        return next(iter(self.of_kind(Time)), None)

    @property
    def numeric(self) -> list[str]:
        """Names of the numeric features."""
        return [name for name, kind in self.of_kind(Numeric).items() if kind.transform != "bucketize"]

    @property
    def bucketized(self) -> dict[str, Numeric]:
        """Numeric columns that become fields."""
        return {name: kind for name, kind in self.of_kind(Numeric).items() if kind.transform == "bucketize"}

    @property
    def hashed(self) -> dict[str, int]:
        """Number of ids to which each categorical column is hashed, by column name."""
        return {name: kind.buckets for name, kind in self.of_kind(Categorical).items()}

    @property
    def time_fields(self) -> list[str]:
        """Names of the fields made from the time, such as hour and weekday."""
        clock = self.clock
        return [] if clock is None else list(self.of_kind(Time)[clock].fields)

    @property
    def fields(self) -> list[tuple[str, int]]:
        """Name and cardinality of each field with one id a sample, the columns of `ids`."""
        users = self.of_kind(User)
        hashed = [(USER if name in users else name, size) for name, size in self.hashed.items()]
        timed = [(f"{self.clock}.{part}", TIME_FIELDS[part]) for part in self.time_fields]
        return [*hashed, *timed, *((name, kind.buckets + 1) for name, kind in self.bucketized.items())]

    @property
    def lists(self) -> dict[str, Multi]:
        """Columns that become multi-valued fields, which follow the fields with one id a sample."""
        return self.of_kind(Multi)

    def list_ids(self, name: str) -> tuple[int, int]:
        """Return the field index that seeds the hash of a list's values, and the number of ids; both may be shared."""
        kind = self.of_kind(Multi)[name]
        if kind.table is not None:
            return list(self.hashed).index(kind.table), self.hashed[kind.table]
        return len(self.fields) + list(self.lists).index(name), kind.buckets

    @property
    def made(self) -> Schema:
        """Schema of the arrays that are made from the columns."""
        sizes = [*(size for _, size in self.fields), *(self.list_ids(name)[1] for name in self.lists)]
        tables = list(range(len(self.fields)))
        for name, kind in self.lists.items():
            tables.append(max(tables, default=-1) + 1 if kind.table is None else self.list_ids(name)[0])
        shared = tables if any(kind.table for kind in self.lists.values()) else []
        lists = tuple(ListField(kind.max_length, kind.pooling) for kind in self.lists.values())
        return Schema(len(self.numeric), tuple(sizes), tuple(shared), lists, self.weighted)

    @property
    def weighted(self) -> bool:
        """Whether any multi-valued field has weights for its values; fields without have weight 1."""
        return any(kind.weights is not None for kind in self.lists.values())


@functools.lru_cache(maxsize=8)
def _parsed(text: str, where: str, buckets: int) -> TableSchema:
    try:
        root = yaml.compose(text, yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML ({' '.join(str(error).split())}).") from None
    _no_key_twice(root, where)
    if not isinstance(values, dict) or not isinstance(values.get("columns"), dict):
        raise ConfigError(f"{where} has no columns; type columns: and below it a line NAME: {{kind: KIND}} for each.")
    file = build(TableSchema, values, f"{where}: ", where)
    if file.separator is not None and (len(file.separator.encode()) != 1 or file.separator in '"\r\n'):
        raise ConfigError(f"{where}: separator={file.separator!r} is not one character; type for instance ';'.")
    columns = {str(name): _kind(f"{where}: columns.{name}", each, buckets) for name, each in file.columns.items()}
    found = replace(file, columns={name: kind for name, kind in columns.items() if not isinstance(kind, Ignore)})
    _complete(found, where)
    return found


def _no_key_twice(node: yaml.Node | None, where: str) -> None:
    """Raise ConfigError if a mapping has a key twice, as YAML would silently take the last value."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{where}, line {line}: {key.value} is there twice; leave one of them out.")
            seen.add(key.value)
            _no_key_twice(value, where)


def _kind(key: str, values: Any, buckets: int) -> Kind:
    options = {"kind": values} if isinstance(values, str) else values
    if not isinstance(options, Mapping) or "kind" not in options:
        raise ConfigError(f"{key} has no kind; type {{kind: KIND}} with one of: {', '.join(KINDS)}.")
    name, own = str(options["kind"]), {option: value for option, value in options.items() if option != "kind"}
    if name not in KINDS:
        meant = did_you_mean(name, KINDS)
        raise ConfigError(f"{key}.kind={name} is not known; type one of: {', '.join(KINDS)}.{meant and f' {meant}'}")
    kind = build(KINDS[name], own, f"{key}.", f"{key}: the kind {name}")
    kind.check(key)
    if isinstance(kind, (Categorical, Multi)) and kind.buckets is None:
        return replace(kind, buckets=buckets)
    return kind


def _complete(schema: TableSchema, where: str) -> None:
    """Raise ConfigError if a required column is missing, or several have a kind that only one column may have."""
    for name, kind in (("label", Label), ("user", User), ("time or day", Time)):
        found = list(schema.of_kind(kind))
        if len(found) > 1:
            raise ConfigError(f"{where} has {len(found)} columns of kind {name} ({', '.join(found)}); one is possible.")
    if not schema.of_kind(Label):
        raise ConfigError(f"{where} has no label; type kind: label for the column that says whether it was a click.")
    if not schema.of_kind(Numeric, Categorical, Multi):
        raise ConfigError(f"{where} has no features; type kind: numeric or kind: categorical for some columns.")
    shared = list(schema.of_kind(Categorical))
    for name, each in schema.of_kind(Multi).items():
        if each.table is not None and each.table not in shared:
            known = f"type one of: {', '.join(shared)}" if shared else "there is none"
            raise ConfigError(f"{where}: columns.{name}.table={each.table} is no categorical column; {known}.")


def read_schema(file: SourceFile, buckets: int) -> TableSchema:
    """Read a schema file; `buckets`: number of ids of each column that sets none. Raises ConfigError or DataError."""
    try:
        with file.open("rb") as raw:
            data = raw.read(LARGEST_SCHEMA)
        return _parsed(data.decode("utf-8"), str(file), buckets)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read as a schema ({error}).") from None
