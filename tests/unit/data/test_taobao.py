from __future__ import annotations

import datetime
import functools
import gzip
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.config import from_dict
from gbactl.data import table_files
from gbactl.data.cache import prepare
from gbactl.data.column_conversion import ids_of
from gbactl.data.dataset import Batch, Dataset, map_arrays, open_dataset
from gbactl.data.readers import taobao
from gbactl.data.readers.taobao import FIELDS, KINDS, PLACES, Taobao
from gbactl.errors import DataError
from gbactl.simulation.simulated_run import run_virtual
from tests.support.samples import ALIMAMA, MIDNIGHT, PIDS, TAGS, Tables, alimama, write_alimama

Load = Callable[..., Dataset]


def number(cell: Any) -> int:
    return 0 if cell in ("", "NULL") else cell + 1


@functools.lru_cache
def hashed(word: str, place: int, size: int) -> int:
    return int(ids_of(pl.Series([word]), place, size)[0])


def expected(content: Tables, longest: int) -> list[tuple[Any, ...]]:
    """Day, label, ids, price and histories of every impression, by dictionaries and loops."""
    ads = {row[0]: row[1:] for row in content["ad_feature"]}
    profiles = {row[0]: row[1:] for row in content["user_profile"]}
    found = []
    for user, time, ad, pid, _, click in sorted(content["raw_sample"], key=lambda row: row[1]):
        *feature, price = ads.get(ad, ["", "", "", "", 0])
        profile = profiles.get(user, [""] * 8)
        ids = [user + 1, ad + 1, hashed(pid, 2, PLACES), *map(number, feature), *map(number, profile)]
        before = sorted(
            (row for row in content["behavior_log"] if row[0] == user and row[1] < time), key=lambda r: r[1]
        )
        seen = before[-longest:]
        day = datetime.datetime.fromtimestamp(time, datetime.timezone(datetime.timedelta(hours=8))).date().isoformat()
        history = [[number(row[3]) for row in seen], [number(row[4]) for row in seen]]
        history.append([hashed(row[2], len(FIELDS), KINDS) for row in seen])
        found.append((day, click, ids, round(math.log1p(price), 5), history))
    return found


def stored(splits: Iterable[tuple[str, Batch]]) -> list[tuple[Any, ...]]:
    found = []
    for name, batch in splits:
        assert batch.jagged is not None
        lists = np.split(batch.jagged.values, (batch.jagged.offsets - batch.jagged.offsets[0])[1:-1])
        for i in range(len(batch)):
            history = [each.tolist() for each in lists[3 * i : 3 * i + 3]]
            price = round(float(batch.numeric[i, 0]), 5)
            found.append((name, int(batch.labels[i]), batch.ids[i].tolist(), price, history))
    return found


def rows(data: Dataset) -> list[tuple[Any, ...]]:
    return stored((split.name, split.slice(0, split.rows)) for split in data.splits)


def test_impressions_are_joined_and_get_the_behaviour_before_them(load: Load, tmp_path: Path) -> None:
    content = alimama(1, 300, 500)
    data = load(name="taobao", path=write_alimama(tmp_path / "ali", content), history_length=9)
    assert rows(data) == expected(content, 9)
    assert [split.name for split in data.splits] == ["2017-05-06", "2017-05-07", "2017-05-08"]
    assert data.user_field == 0 and data.meta["numeric_names"] == ["price"]
    assert data.meta["field_names"] == [*FIELDS, "cate_history", "brand_history", "btag_history"]
    schema, sizes = data.schema, dict(zip(data.meta["field_names"], data.schema.cardinalities, strict=True))
    assert schema.table_of[-3:] == (FIELDS.index("cate_id"), FIELDS.index("brand"), len(FIELDS))
    assert sizes["cate_id"] == sizes["cate_history"] == 14, "that of the log is larger than that of the ads"
    assert sizes["brand"] == sizes["brand_history"] == 461_002, "that of the ads is larger than that of the log"
    last = [row for row in rows(data) if row[2][0] == 13]
    assert last and all(row[4] == [[], [], []] for row in last), "a user without behaviour"


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 10**6), users=st.integers(2, 5), chunk=st.integers(7, 90), longest=st.integers(1, 30))
def test_the_size_of_a_chunk_changes_nothing(
    seed: int, users: int, chunk: int, longest: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content, folder = alimama(seed, 60, 80, users), tmp_path_factory.mktemp("ali")
    content["raw_sample"] += [[1, MIDNIGHT + day * 86_400, 1, PIDS[0], 1, 0] for day in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_files, "CHUNK", chunk)
        patch.setattr(taobao, "BEHAVIOURS_AT_ONCE", 200)
        built = Taobao(write_alimama(folder, content), history_length=longest).build(
            folder, lambda stage, fraction: None
        )
    whole = map_arrays(folder, built.schema)
    found = [(name, whole.slice(low, high)) for name, low, high in built.splits]
    assert stored(found) == expected(content, longest)


def test_no_two_kinds_of_behaviour_or_places_share_an_id() -> None:
    assert len({0, *(hashed(word, len(FIELDS), KINDS) for word in TAGS)}) == 5
    assert len({0, *(hashed(word, 2, PLACES) for word in PIDS)}) == 3


def test_no_history_leaves_the_log_alone(load: Load, tmp_path: Path) -> None:
    content = alimama(2, 80, 1)
    folder = Path(write_alimama(tmp_path / "ali", content))
    (folder / "behavior_log.csv").unlink()
    (folder / "raw_sample.csv.gz").write_bytes(gzip.compress((folder / "raw_sample.csv").read_bytes()))
    (folder / "raw_sample.csv").unlink()
    pl.read_csv(folder / "ad_feature.csv", null_values="NULL").write_parquet(folder / "ad_feature.parquet")
    (folder / "ad_feature.csv").unlink()
    data = load(name="taobao", path=str(folder), history_length=0)
    assert (data.schema.lists, len(data.meta["field_names"]), data.rows) == ((), len(FIELDS), 80)
    batch = data.splits[0].slice(0, data.splits[0].rows)
    assert [row[2] for row in expected(content, 1) if row[0] == data.splits[0].name] == batch.ids.tolist()


BAD: dict[str, tuple[str, int, int, object, str]] = {
    "user": ("raw_sample", 4, 0, "x", "row 4: the column user is 'x', not a whole number from 0 to 2147483645"),
    "no user": ("raw_sample", 4, 0, "", "row 4: the column user is missing"),
    "click": ("raw_sample", 2, 5, 2, "row 2: the column clk is '2', not 0 or 1"),
    "time": ("behavior_log", 11, 1, "now", "row 11: the column time_stamp is 'now', not a time"),
    "thousands": ("behavior_log", 2, 4, '"1,234"', "row 2: the column brand is '1,234', not"),
    "brand": ("behavior_log", 2, 4, 2**31, "row 2: the column brand is '2147483648', not"),
    "price": ("ad_feature", 3, 5, -3, "row 3: the column price is '-3', not a price"),
    "cells": ("user_profile", 2, 8, "1,2", "row 2: 10 cells where the header has 9"),
}


@pytest.mark.parametrize("kind", BAD)
def test_an_unreadable_row_is_named(kind: str, load: Load, caches: Callable[[], list[str]], tmp_path: Path) -> None:
    name, row, column, value, told = BAD[kind]
    content = alimama(3, 50, 50)
    content[name][row - 2][column] = value
    folder = write_alimama(tmp_path / "ali", content)
    with pytest.raises(DataError) as error:
        load(name="taobao", path=folder)
    assert f"{name}.csv, {told}" in str(error.value) and "data.max_bad_lines=" in str(error.value)
    assert caches() == []
    data = load(name="taobao", path=folder, max_bad_lines=1)
    assert (data.meta["bad_lines"], data.rows) == (1, 50 - (name == "raw_sample"))


WRONG: dict[str, tuple[str, str | None, str]] = {
    "no file": ("user_profile.csv", None, r"has no user_profile\.csv .*set data\.path to the folder"),
    "no column": ("behavior_log.csv", "user,time_stamp,btag,cate", r"behavior_log\.csv has no column brand"),
    "no behaviour": ("behavior_log.csv", ALIMAMA["behavior_log"], r"type data\.history_length=0"),
    "no rows": ("raw_sample.csv", ALIMAMA["raw_sample"], r"raw_sample\.csv has no readable row"),
    "a day": ("raw_sample.csv", ALIMAMA["raw_sample"] + "\n1,1494000000,1,a_b,1,0", "of one day only; two days"),
    "twice": ("ad_feature.csv", ALIMAMA["ad_feature"] + "\n7,1,1,1,1,1" * 2, "has 7 twice; leave"),
    "two files": ("ad_feature.csv.gz", "", "There are 2 files ad_feature"),
    "no text": ("ad_feature.csv", "", "is empty"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_with_a_file_is_one_sentence(kind: str, load: Load, tmp_path: Path) -> None:
    name, text, told = WRONG[kind]
    folder = Path(write_alimama(tmp_path / "ali", alimama(4, 40, 40)))
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    with pytest.raises(DataError, match=told) as error:
        load(name="taobao", path=str(folder))
    assert "\n" not in str(error.value)


def test_an_archive_is_to_be_unpacked(load: Load, tmp_path: Path) -> None:
    folder = Path(write_alimama(tmp_path / "ali", alimama(4, 40, 40)))
    (folder / "raw_sample.csv").rename(folder / "raw_sample.csv.tar.gz")
    with pytest.raises(DataError, match=r"unpack it \(tar xf\)"):
        load(name="taobao", path=str(folder))


@pytest.mark.parametrize("model", [{}, {"name": "din", "attention": [8], "joint": True}], ids=["pooled", "din"])
def test_a_model_trains_on_it_and_learns_from_the_history(tmp_path: Path, model: dict[str, Any]) -> None:
    """Clicks follow from the category last seen, which is in no other column."""
    content = alimama(5, 2000, 3000, users=40)
    last: dict[int, list[list[int]]] = {}
    for user, time, _, category, _ in sorted(content["behavior_log"], key=lambda row: row[1]):
        last.setdefault(user, []).append([time, category])
    for row in content["raw_sample"]:
        seen = [category for time, category in last.get(row[0], []) if time < row[1]]
        row[5] = int(bool(seen) and seen[-1] <= 6)
        row[4] = 1 - row[5]
    path = write_alimama(tmp_path / "ali", content)
    data = {"name": "taobao", "path": path, "history_length": 1, "cache": str(tmp_path / "cache")}
    cfg = from_dict({
        "model": {"dim": 4, "hidden": [8], **model}, "train": {"global_batch": 32}, "optim": {"lr": 0.03}, "data": data,
        "cluster": {"name": "virtual", "workers": 2, "servers": 1}, "mode": {"name": "gba"},
    })  # fmt: skip
    result = run_virtual(cfg, open_dataset(prepare(data)), tmp_path)
    assert result["auc"] > 0.95 and result["gauc"] > 0.9, result
