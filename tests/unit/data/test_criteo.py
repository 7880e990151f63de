from __future__ import annotations

import gzip
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gbactl.data import text_files
from gbactl.data.dataset import Dataset
from gbactl.data.readers.criteo import parse
from gbactl.data.text_files import BadLines, LineBlock
from gbactl.errors import ConfigError, DataError

Load = Callable[..., Dataset]
Lines = Callable[..., list[str]]
MASK = 2**64 - 1


def scramble(x: int) -> int:
    """splitmix64's finaliser, from its description."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def expected_row(line: str, buckets: int) -> tuple[int, list[float], list[int]]:
    cells = line.split("\t")
    numbers = [math.copysign(math.log1p(abs(int(c))), int(c)) if c else 0.0 for c in cells[1:14]]
    ids = [
        1 + ((scramble(int(c, 16) ^ scramble((f + 1) * 0x9E3779B97F4A7C15 & MASK)) >> 32) * (buckets - 1) >> 32)
        if c
        else 0
        for f, c in enumerate(cells[14:])
    ]
    return int(cells[0]), numbers, ids


def check_rows(data: Dataset, lines: list[str], buckets: int) -> None:
    rows = [s.slice(i, i + 1) for s in data.splits for i in range(s.rows)]
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        label, numbers, ids = expected_row(line, buckets)
        assert row.labels[0] == label
        assert row.numeric[0].tolist() == pytest.approx(numbers, rel=1e-6)
        assert row.ids[0].tolist() == ids


def test_one_file_is_cut_into_days_in_order(load: Load, criteo_lines: Lines, tmp_path: Path) -> None:
    lines = criteo_lines(103)
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    data = load(name="criteo", path=str(tmp_path / "train.txt"), days=4, buckets=50)
    assert [s.rows for s in data.splits] == [25, 26, 26, 26]
    assert (data.kind, data.schema.numeric, data.schema.cardinalities) == ("days", 13, (50,) * 26)
    check_rows(data, lines, 50)


def test_a_single_file_is_a_week_by_default(load: Load, criteo_lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("\n".join(criteo_lines(14)))
    assert [s.rows for s in load(name="criteo", path=str(tmp_path / "train.txt")).splits] == [2] * 7


def test_each_file_is_a_day_whatever_its_compression(load: Load, criteo_lines: Lines, tmp_path: Path) -> None:
    lines = criteo_lines(60)
    folder = tmp_path / "days"
    folder.mkdir()
    text = ["\n".join(lines[lo:hi]).encode() for lo, hi in ((0, 10), (10, 30), (30, 60))]
    (folder / "day_0").write_bytes(text[0])
    (folder / "day_1.gz").write_bytes(gzip.compress(text[1]))
    (folder / "day_2.zst").write_bytes(zstandard.compress(text[2]))
    data = load(name="criteo", path=str(folder), buckets=1000)
    assert [(s.name, s.rows) for s in data.splits] == [("day0", 10), ("day1", 20), ("day2", 30)]
    check_rows(data, lines, 1000)


def test_small_blocks_and_windows_line_ends_change_nothing(
    load: Load, criteo_lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 2000)
    monkeypatch.setattr(text_files, "PIECE", 333)
    lines = criteo_lines(50)
    (tmp_path / "f").write_bytes("\r\n".join(lines).encode() + b"\r\n")
    check_rows(load(name="criteo", path=str(tmp_path / "f"), days=2, buckets=9), lines, 9)


BAD = {
    "few columns": ("1\t2\t3", "3 columns instead of 40"),
    "blank": ("", "1 columns instead of 40"),
    "word as label": ("yes" + "\t" * 39, "the column label is 'yes', not 0 or 1"),
    "no label": ("\t" * 39, "the column label is missing, not 0 or 1"),
    "label 2": ("2" + "\t" * 39, "the column label is '2', not 0 or 1"),
    "word as number": ("1\tx" + "\t" * 38, "the column I1 is 'x', not a whole number"),
    "fraction": ("1\t\t0.5" + "\t" * 37, "the column I2 is '0.5', not a whole number"),
    "not hex": ("1" + "\t" * 39 + "xyz", "the column C26 is 'xyz', not a hexadecimal id"),
    "long line": ("1" + "\t" * 40, "41 columns instead of 40"),
    "binary": ("1" + "\t" * 39 + "\0", "it holds a control character"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named_and_leaves_no_cache(
    kind: str, load: Load, criteo_lines: Lines, caches: Callable[[], list[str]], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(text_files, "BLOCK", 3000)
    monkeypatch.setattr(text_files, "PIECE", 1000)
    line, reason = BAD[kind]
    lines = criteo_lines(80)
    (tmp_path / "f.tsv").write_text("\n".join([*lines[:56], line, *lines[56:]]) + "\n")
    with pytest.raises(DataError) as error:
        load(name="criteo", path=str(tmp_path / "f.tsv"))
    assert f"{tmp_path / 'f.tsv'}, line 57: {reason}" in str(error.value)
    assert "data.max_bad_lines=" in str(error.value)
    assert "\n" not in str(error.value)
    assert caches() == []


def test_bad_lines_are_tolerated_and_counted_up_to_the_limit(load: Load, criteo_lines: Lines, tmp_path: Path) -> None:
    lines = criteo_lines(30)
    (tmp_path / "f").write_text("\n".join(["junk", *lines[:20], "junk", *lines[20:], "junk"]))
    data = load(name="criteo", path=str(tmp_path / "f"), days=2, buckets=77, max_bad_lines=3)
    assert data.meta["bad_lines"] == 3
    check_rows(data, lines, 77)
    with pytest.raises(DataError, match="line 33: 1 columns"):
        load(name="criteo", path=str(tmp_path / "f"), days=2, buckets=77, max_bad_lines=2)


def test_text_that_is_not_utf8_is_a_bad_line(load: Load, criteo_lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1" + b"\t" * 39 + b"\xff\xfe\n" + "\n".join(criteo_lines(9)).encode())
    with pytest.raises(DataError, match="line 1: not UTF-8 text"):
        load(name="criteo", path=str(tmp_path / "f"))


def test_fewer_rows_than_days_is_said(load: Load, criteo_lines: Lines, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("\n".join(criteo_lines(3)))
    with pytest.raises(DataError, match=r"3 rows, which cannot be cut into data\.days=7"):
        load(name="criteo", path=str(tmp_path / "f"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"days": 1}, r"^data\.days=1 is not a whole number from 2 to 100000 or null; type .*=null\.$"),
        ({"buckets": 1}, r"data\.buckets=1 is not a whole number from 2 to 2147483647; type"),
        ({"bucket": 5}, r"data=criteo has no key bucket; keys are: path, patterns, days, buckets, max_bad_lines"),
        ({"buckets": "many"}, r"data\.buckets='many' is not a whole number"),
        ({"path": 5}, r"data\.path=5 is not text or a list or null"),
    ],
)
def test_options_that_cannot_work(options: dict[str, object], message: str, load: Load) -> None:
    with pytest.raises(ConfigError, match=message):
        load(name="criteo", **options)


CELL = st.one_of(
    st.sampled_from(["", "0", "1", "-1", "01", "ff", "+1", " 1", "1e3", "-f", "9" * 19, "9" * 20, "f" * 16])
)


@given(
    st.lists(
        st.tuples(st.sampled_from(["0", "1", "", "x"]), CELL, CELL, st.integers(38, 40)),
        min_size=1,
        max_size=4,
    )
)
def test_the_readable_lines_are_those_of_the_format(rows: list[tuple[str, str, str, int]]) -> None:
    lines, good = list[str](), list[str]()
    for label, number, cell, columns in rows:
        lines.append("\t".join([label, number, *[""] * 12, cell, *[""] * 25][:columns]))
        whole = not number or (re.fullmatch("-?[0-9]+", number) is not None and int(number) < 2**63)
        if columns == 40 and label in ("0", "1") and whole and re.fullmatch("[0-9a-f]{0,15}", cell):
            good.append(lines[-1])
    chunk = parse(LineBlock(Path("f"), 1, "".join(line + "\n" for line in lines).encode()), 100, BadLines(99))
    assert len(chunk) == len(good)
    for i, line in enumerate(good):
        assert chunk.ids[i].tolist() == expected_row(line, 100)[2]
        assert np.allclose(chunk.numeric[i], expected_row(line, 100)[1])
