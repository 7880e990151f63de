from __future__ import annotations

import hashlib
import json
import lzma
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.data import text_files
from gbactl.data.cache import NAMING
from gbactl.data.dataset import Dataset, fingerprint
from gbactl.data.readers.libfm import parse
from gbactl.data.text_files import BadLines, LineBlock
from gbactl.errors import ConfigError, DataError

Load = Callable[..., Dataset]


def make(count: int, negative: str = "-1", seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [
        " ".join([rng.choice(["1", negative]), *(f"{rng.randint(11 * f, 11 * f + 10)}:1" for f in range(3))])
        for _ in range(count)
    ]


def write(folder: Path, **splits: list[str]) -> dict[str, str]:
    for name, lines in splits.items():
        (folder / f"{name}.libfm.xz").write_bytes(lzma.compress(("\n".join(lines) + "\n").encode()))
    return {name: str(folder / f"{name}.libfm.xz") for name in splits}


@pytest.mark.parametrize("negative", ["-1", "0"])
def test_splits_share_one_id_space(negative: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 200)
    monkeypatch.setattr(text_files, "PIECE", 64)
    splits = {name: make(n, negative, n) for name, n in (("train", 50), ("validation", 20), ("test", 9))}
    data = load(name="libfm", **write(tmp_path, **splits))
    largest = max(int(p.split(":")[0]) for lines in splits.values() for line in lines for p in line.split()[1:])
    assert (data.kind, [s.name for s in data.splits]) == ("splits", ["train", "validation", "test"])
    assert (data.schema.cardinalities, data.schema.rows) == ((largest + 1,) * 3, largest + 1)
    assert data.schema.offsets.tolist() == [0, 0, 0]
    for split, lines in zip(data.splits, splits.values(), strict=True):
        batch = split.slice(0, len(lines))
        assert batch.labels.tolist() == [int(line.split()[0] == "1") for line in lines]
        assert batch.ids.tolist() == [[int(p.split(":")[0]) for p in line.split()[1:]] for line in lines]


def test_a_user_field_is_named_and_data_without_one_keep_their_cache(load: Load, tmp_path: Path) -> None:
    splits = write(tmp_path, train=make(50), validation=make(20), test=make(9))
    plain, user = load(name="libfm", **splits), load(name="libfm", user_field=1, **splits)
    assert (plain.user_field, user.user_field) == (None, 1)
    assert (plain.meta["field_names"], user.meta["field_names"][1]) == (["field0", "field1", "field2"], "user")
    options = {"max_bad_lines": 0}
    files = [fingerprint(Path(splits[name])) for name in ("train", "validation", "test")]
    before = json.dumps([NAMING, "libfm", options, files], sort_keys=True)
    assert plain.fingerprint == hashlib.sha256(before.encode()).hexdigest() != user.fingerprint
    with pytest.raises(ConfigError, match=r"data.user_field=3 is no field; type a number from 0 to 2\."):
        load(name="libfm", user_field=3, **splits)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 2:1 3:1", r"line 4: 3 columns instead of 4"),
        ("1 2:1 3:1 4:0.5", r"line 4: the column field2 is '4:0.5', not an id from 0 to \d+ with the value 1"),
        ("2 2:1 3:1 4:1", r"line 4: the column label is '2', not 1, 0 or -1"),
        ("yes 2:1 3:1 4:1", r"line 4: the column label is 'yes'"),
        ("1 2:1 -3:1 4:1", r"line 4: the column field1 is '-3:1', not an id from 0"),
        ("1 2:1 3 4:1", r"line 4: the column field1 is '3', not"),
        ("1 2:1 99999999999:1 4:1", r"line 4: the column field1 is '99999999999:1', not an id"),
        ("", r"line 4: 1 columns instead of 4"),
    ],
)
def test_bad_lines(line: str, message: str, load: Load, caches: Callable[[], list[str]], tmp_path: Path) -> None:
    lines = make(6)
    paths = write(tmp_path, train=make(9), validation=[*lines[:3], line, *lines[3:]], test=make(3))
    with pytest.raises(DataError, match=rf"validation.libfm.xz, {message}"):
        load(name="libfm", **paths)
    assert caches() == []
    assert load(name="libfm", **paths, max_bad_lines=1).meta["bad_lines"] == 1


def test_all_three_files_are_needed(load: Load, tmp_path: Path) -> None:
    paths = write(tmp_path, train=make(3), test=make(3))
    with pytest.raises(ConfigError, match=r"data\.validation is not set; type data\.validation=FILE"):
        load(name="libfm", **paths)


def test_a_file_of_another_kind_is_said(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train.libfm.xz, line 1: no id:1 pair"):
        load(name="libfm", **write(tmp_path, train=["a,b,c"], validation=make(3), test=make(3)))


def test_a_trailing_space_is_no_fault() -> None:
    found = parse(LineBlock(Path("f"), 1, b"1 2:1 3:1 \n-1 4:1 5:1\n"), 2, BadLines(0))
    assert found.ids.tolist() == [[2, 3], [4, 5]]


CELL = st.sampled_from(
    ["1:1", "12:1", "0:1", "3:11", "1:", ":1", "1", "-2:1", "+2:1", "1:1:1", "", "7:0", "2147483647:1"]
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["1", "0", "-1", "2", ""]), st.lists(CELL, max_size=3)),
        min_size=1,
        max_size=4,
    )
)
def test_the_readable_lines_are_those_of_the_format(table: list[tuple[str, list[str]]]) -> None:
    lines = [" ".join([label, *cells]) for label, cells in table]
    good = [line for line in lines if re.fullmatch("(-1|0|1)( [0-9]+:1){2} ?", line) and "2147483647" not in line]
    block = LineBlock(Path("f"), 1, "".join(line + "\n" for line in lines).encode())
    found = parse(block, 2, BadLines(99))
    assert found.ids.tolist() == [[int(pair.split(":")[0]) for pair in line.split()[1:]] for line in good]


@pytest.mark.skipif("GBACTL_DATA" not in os.environ, reason="GBACTL_DATA names no folder with frappe/")
def test_frappe_has_the_published_shape(load: Load) -> None:
    folder = Path(os.environ["GBACTL_DATA"]) / "frappe"
    data = load(
        name="libfm",
        train=str(folder / "frappe.train.rebuilt.libfm.xz"),
        validation=str(folder / "frappe.validation.libfm.xz"),
        test=str(folder / "frappe.test.libfm.xz"),
    )
    assert [s.rows for s in data.splits] == [202_027, 57_722, 28_860]
    assert (data.schema.fields, data.schema.rows) == (10, 5_382)
    assert np.mean(data.splits[2].whole.labels) == pytest.approx(0.330, abs=0.001)
