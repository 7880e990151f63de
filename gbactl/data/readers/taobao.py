"""Reader of Alimama's display advertising data (Ali_Display_Ad_Click, not Taobao's UserBehavior): four tables.

The tables are impressions, ads, users, and a log of behaviour. An impression is joined with its ad, its user's profile,
and the user's behaviour before it: the last `history_length` entries of the log that have the user and an earlier
second. The category and the brand of a behaviour share the tables of those of the ad. Anonymous numbers become ids
unhashed: number + 1, and 0 where it is missing.

The log, 700 M rows as published, is cut by user into 256 parts on disk. One part after the other is sorted in memory,
then all are mapped. So the memory is that of the largest part (60 MB, and three times that to sort it), of the ads and
the profiles (80 bytes each), of the impressions that are joined at once, and 16 bytes an impression for the order of
time. The disk holds 20 bytes a row of the log, and the arrays twice until they are sorted by time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Bounds, Natural
from gbactl.data.cache_writer import Clock, WrittenArrays, put_in_order, write_all
from gbactl.data.column_conversion import ids_of, numbers
from gbactl.data.dataset import USER, Batch, Jagged, ListField, Pooling, Progress, Schema, positions
from gbactl.data.readers.criteo import signed_log
from gbactl.data.remote_files import SourceFile
from gbactl.data.table_files import TextForm, header_of, read_table
from gbactl.data.text_files import BadCells, BadLines, Rows, find
from gbactl.errors import DataError

TABLES = ("raw_sample", "ad_feature", "user_profile", "behavior_log")
FORM = TextForm(",", ("", "NULL"))
AD = ("cate_id", "campaign_id", "customer", "brand")
PROFILE = (
    "cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level", "shopping_level", "occupation",
    "new_user_class_level",
)  # fmt: skip
FIELDS = (USER, "adgroup_id", "pid", *AD, *PROFILE)
BEHAVIOUR = ("cate", "brand", "btag")
PLACES, KINDS = 64, 16  # ids that a place on the page (pid) and a kind of behaviour (btag) are hashed to
SHARED = (FIELDS.index("cate_id"), FIELDS.index("brand"))  # fields whose tables BEHAVIOUR shares
LARGEST = 2**31 - 3
LAST_SECOND = 2**32 - 1
PARTS = 256
BEHAVIOURS_AT_ONCE = 1 << 20
RECORD = np.dtype([("key", "<i8"), ("ids", "<i4", (len(BEHAVIOUR),))])
CHINA = 8 * 3600  # days are those of the place that the data are from, in seconds before UTC's
Integers = NDArray[np.int64]
Ids = NDArray[np.int32]


def _read(file: SourceFile, names: Sequence[str], bad: BadLines, progress: Progress) -> Iterator[Rows]:
    """Iterate over some columns of a file. Raises DataError for a missing one; blanks around a name do not matter."""
    columns = {name.strip(): name for name in header_of(file, FORM)[0]}
    for name in names:
        if name not in columns:
            known = f"its columns are: {', '.join(columns)[:200]}"
            raise DataError(f"{file} has no column {name}, {known}; take the file as Alimama publishes it.")
    for rows in read_table(file, FORM, [columns[name] for name in names], bad, progress):
        yield Rows(rows.frame.rename({columns[name]: name for name in names}), rows.first, rows.skipped)


def _ids(frame: pl.DataFrame, name: str, bad_cells: BadCells, *, needed: bool = False) -> Integers:
    """Convert a column of numbers to ids: number + 1, 0 where it is missing."""
    number = numbers(frame[name])
    good = ((number >= 0) & (number <= LARGEST) & (number == number.floor())).fill_null(False)
    bad_cells.record(
        ~good if needed else ~good & frame[name].is_not_null(), name, f"a whole number from 0 to {LARGEST}"
    )
    found: Integers = number.set(~good, -1.0).cast(pl.Int64).to_numpy() + 1
    return found


class Lookup:
    """Table in memory for look-up of rows by id; an unknown id has a row of zeros."""

    def __init__(self, file: SourceFile, ids: Integers, rows: NDArray[np.float64]) -> None:
        order = np.argsort(ids)
        self._ids = np.append(ids[order], np.iinfo(np.int64).max)
        self._rows = np.concatenate([rows[order], np.zeros((1, rows.shape[1]))])
        twice = np.flatnonzero(np.diff(self._ids) == 0)
        if len(twice):
            raise DataError(f"{file} has {self._ids[twice[0]] - 1} twice; leave one of its rows out.")

    def rows_of(self, ids: Integers) -> NDArray[np.float64]:
        """Return the row of each id."""
        at = np.searchsorted(self._ids, ids)
        found: NDArray[np.float64] = self._rows[np.where(self._ids[at] == ids, at, -1)]
        return found


def read_lookup(file: SourceFile, key: str, names: Sequence[str], bad: BadLines, progress: Progress) -> Lookup:
    """Read a table for look-up by the column `key`: `price` becomes a number, all other columns become ids."""
    keys, found = [np.empty(0, np.int64)], [np.empty((0, len(names)))]
    for rows in _read(file, [key, *names], bad, progress):
        bad_cells = BadCells(rows)
        ids = _ids(rows.frame, key, bad_cells, needed=True)
        columns = [
            _price(rows.frame, bad_cells) if name == "price" else _ids(rows.frame, name, bad_cells).astype(np.float64)
            for name in names
        ]
        kept = bad_cells.readable_rows(file, bad)
        every = slice(None) if kept is None else kept
        keys.append(ids[every])
        found.append(np.stack(columns, axis=1)[every])
    return Lookup(file, np.concatenate(keys), np.concatenate(found))


def _price(frame: pl.DataFrame, bad_cells: BadCells) -> NDArray[np.float64]:
    """Convert the price to log(1 + price), 0 where it is missing."""
    number = numbers(frame["price"])
    good = (number.is_finite() & (number >= 0)).fill_null(False)
    bad_cells.record(~good & frame["price"].is_not_null(), "price", "a price of at least 0")
    return signed_log(number.set(~good, None).to_numpy().astype(np.float64)).astype(np.float64)


def _keys(user_ids: Integers, seconds: Integers) -> Integers:
    """Return sort keys: by part (user id modulo PARTS), then by user, then by time."""
    keys: Integers = (user_ids % PARTS << 55) | (user_ids // PARTS << 32) | seconds
    return keys


def _seconds(frame: pl.DataFrame, bad_cells: BadCells) -> Integers:
    number = numbers(frame["time_stamp"])
    bad_cells.record(number.is_null(), "time_stamp", "a time in seconds since 1970")
    found: Integers = number.fill_null(0.0).clip(0.0, LAST_SECOND).cast(pl.Int64).to_numpy()
    return found


class Behaviour:
    """Behaviour of all users, sorted by user and time in mapped files."""

    def __init__(self, folder: Path) -> None:
        self.keys: Integers = np.memmap(folder / "keys", np.int64, "r")
        self.ids: Ids = np.memmap(folder / "ids", np.int32, "r").reshape(-1, len(BEHAVIOUR))

    def last_before(self, user_ids: Integers, seconds: Integers, longest: int) -> Jagged:
        """Return up to `longest` last log entries of each user before a time, as a list for each field in BEHAVIOUR."""
        end = np.searchsorted(self.keys, _keys(user_ids, seconds))
        first = np.maximum(np.searchsorted(self.keys, _keys(user_ids, np.zeros_like(seconds))), end - longest)
        rows = self.ids[positions(first, end - first)]
        offsets = np.concatenate([[0], np.cumsum(end - first)])
        return Jagged.joined([Jagged(1, offsets, rows[:, place]) for place in range(len(BEHAVIOUR))])


def sort_behaviour(file: SourceFile, folder: Path, largest: Integers, bad: BadLines, progress: Progress) -> Behaviour:
    """Sort the log of behaviour by user and time into mapped files; update `largest`, the largest id by field."""
    with ExitStack() as stack:
        parts = [stack.enter_context((folder / f"part{part}").open("wb")) for part in range(PARTS)]
        for chunk in _records(file, bad, progress):
            for place, field in enumerate(SHARED):
                largest[field] = max(largest[field], chunk["ids"][:, place].max(initial=0))
            part = chunk["key"] >> 55
            order = np.argsort(part, kind="stable")
            present, first = np.unique(part[order], return_index=True)
            for number, rows in zip(present.tolist(), np.split(chunk[order], first[1:]), strict=len(present) > 0):
                parts[number].write(rows.tobytes())
    with (folder / "keys").open("wb") as keys, (folder / "ids").open("wb") as ids:
        for number in range(PARTS):
            progress(f"sorting {file.name}", number / PARTS)
            path = folder / f"part{number}"
            rows = np.fromfile(path, RECORD)
            path.unlink()
            order = np.argsort(rows["key"], kind="stable")
            keys.write(rows["key"][order].tobytes())
            ids.write(rows["ids"][order].tobytes())
        if not keys.tell():
            raise DataError(f"{file} has no readable row below its header; type data.history_length=0 to do without.")
    return Behaviour(folder)


def _records(file: SourceFile, bad: BadLines, progress: Progress) -> Iterator[NDArray[np.void]]:
    for rows in _read(file, (USER, "time_stamp", *BEHAVIOUR), bad, progress):
        bad_cells = BadCells(rows)
        found = np.empty(len(rows.frame), RECORD)
        found["key"] = _keys(_ids(rows.frame, USER, bad_cells, needed=True), _seconds(rows.frame, bad_cells))
        for place, name in enumerate(BEHAVIOUR[:-1]):
            found["ids"][:, place] = _ids(rows.frame, name, bad_cells)
        found["ids"][:, -1] = ids_of(rows.frame[BEHAVIOUR[-1]], len(FIELDS), KINDS)
        kept = bad_cells.readable_rows(file, bad)
        yield found if kept is None else found[kept]


@dataclass(frozen=True)
class Taobao:
    """Options of the data source data=taobao."""

    arrays_version: ClassVar[int] = 2
    path: str | list[str] | None = None
    history_length: Annotated[int, Bounds(at_least=0, at_most=100_000)] = 50
    pooling: Pooling = "mean"
    max_bad_lines: Natural = 0

    def sources(self) -> list[SourceFile]:
        """Find the files named in TABLES, in this order; the log of behaviour only if a history is configured."""
        files = find(self.path, ["*.csv*", "*.parquet"])
        wanted = TABLES if self.history_length else TABLES[:-1]
        return [self._file(name, [file for file in files if file.name.split(".")[0] == name]) for name in wanted]

    def _file(self, name: str, found: list[SourceFile]) -> SourceFile:
        if not found:
            hint = f"set data.path to the folder with {', '.join(f'{each}.csv' for each in TABLES)}"
            raise DataError(f"{self.path} has no {name}.csv (or .csv.gz, .parquet); {hint}.")
        if found[0].name.endswith((".tar.gz", ".tgz")):
            raise DataError(f"{found[0]} is an archive; unpack it (tar xf) and leave only {name}.csv there.")
        if len(found) > 1:
            names = ", ".join(str(each) for each in found)
            raise DataError(f"There are {len(found)} files {name} ({names}); leave one of them in data.path.")
        return found[0]

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the cache's arrays, in order of time."""
        sample, ad_file, profile_file, *logs = self.sources()
        bad, largest = BadLines(self.max_bad_lines), np.zeros(len(FIELDS), np.int64)
        ads = read_lookup(ad_file, "adgroup_id", (*AD, "price"), bad, progress)
        profiles = read_lookup(profile_file, "userid", PROFILE, bad, progress)
        with TemporaryDirectory(dir=folder, prefix="staged-") as name:
            staged = Path(name)
            behaviour = sort_behaviour(logs[0], staged, largest, bad, progress) if logs else None
            clock = Clock(staged / "times")

            def chunks() -> Iterator[Batch]:
                for rows in _read(sample, (USER, "time_stamp", "adgroup_id", "pid", "clk"), bad, progress):
                    bad_cells = BadCells(rows)
                    batch, seconds = _impressions(rows.frame, ads, profiles, bad_cells)
                    kept = bad_cells.readable_rows(sample, bad)
                    if kept is not None:
                        batch, seconds = batch.take(kept), seconds[kept]
                    np.maximum(largest, batch.ids.max(axis=0, initial=0), out=largest)
                    clock.add(seconds, (seconds + CHINA) // 86_400)
                    step = BEHAVIOURS_AT_ONCE // (1 + self.history_length)
                    for low in range(0, len(batch), step):
                        yield self._with_history(batch.slice(low, low + step), seconds[low : low + step], behaviour)

            write_all(staged, chunks())
            if len(clock.counts) < 2:
                problem = "impressions of one day only" if clock.counts else "no readable row below its header"
                needed = "two days are needed, one to train on and the next one to evaluate"
                raise DataError(f"{sample} has {problem}; {needed}.")
            splits, schema = clock.splits(lambda day: str(np.datetime64(day, "D"))), self._schema(largest, bool(logs))
            put_in_order(staged, folder, schema, clock.order(), progress)
        names = [*FIELDS, *(f"{each}_history" for each in BEHAVIOUR[: 3 if logs else 0])]
        return WrittenArrays("days", schema, splits, ["price"], names, bad.count)

    def _with_history(self, batch: Batch, seconds: Integers, behaviour: Behaviour | None) -> Batch:
        if behaviour is None:
            return batch
        history = behaviour.last_before(batch.ids[:, 0].astype(np.int64), seconds, self.history_length)
        return Batch(batch.labels, batch.numeric, batch.ids, history)

    def _schema(self, largest: Integers, history: bool) -> Schema:
        sizes = [int(size) + 1 for size in largest]
        sizes[FIELDS.index("pid")] = PLACES
        if not history:
            return Schema(1, tuple(sizes))
        every = (*sizes, *(sizes[field] for field in SHARED), KINDS)
        tables = (*range(len(FIELDS)), *SHARED, len(FIELDS))
        return Schema(1, every, tables, (ListField(self.history_length, self.pooling),) * len(BEHAVIOUR))


def _impressions(frame: pl.DataFrame, ads: Lookup, profiles: Lookup, bad_cells: BadCells) -> tuple[Batch, Integers]:
    """Join a chunk of impressions with ads and profiles; return also their times."""
    clicks = numbers(frame["clk"])
    bad_cells.record(~clicks.is_in([0.0, 1.0]).fill_null(False), "clk", "0 or 1")
    users, seconds = _ids(frame, USER, bad_cells, needed=True), _seconds(frame, bad_cells)
    ad_ids = _ids(frame, "adgroup_id", bad_cells)
    ad, profile = ads.rows_of(ad_ids), profiles.rows_of(users)
    place = ids_of(frame["pid"], FIELDS.index("pid"), PLACES)
    ids = np.column_stack([users, ad_ids, place, ad[:, :-1], profile]).astype(np.int32)
    labels = (clicks == 1).fill_null(False).to_numpy().astype(np.uint8)
    return Batch(labels, ad[:, -1:].astype(np.float32), ids), seconds
