from __future__ import annotations

import datetime
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.data import text_files
from gbactl.data.dataset import Dataset
from gbactl.data.readers.movielens import LIMITS, parse
from gbactl.data.text_files import BadLines, LineBlock
from gbactl.errors import DataError

Load = Callable[..., Dataset]
Row = tuple[int, int, str, int]
FORMATS = {
    "ratings.dat": ("::", ""),
    "u.data": ("\t", ""),
    "ratings.csv": (",", "userId,movieId,rating,timestamp\n"),
}


def ratings(count: int) -> list[Row]:
    rng = random.Random(3)
    marks = ["1", "3.5", "4", "4.0", "5", "0.5"]
    times = [rng.randint(800_000_000, 800_900_000) for _ in range(count)]
    return [(rng.randint(1, 9), rng.randint(1, 40), rng.choice(marks), rng.choice(times)) for _ in range(count)]


@pytest.mark.parametrize("name", FORMATS)
def test_ratings_become_clicks_in_time_order(
    name: str, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 300)
    monkeypatch.setattr(text_files, "PIECE", 50)
    rows, (separator, header) = ratings(101), FORMATS[name]
    (tmp_path / name).write_text(header + "".join(separator.join(map(str, row)) + "\n" for row in rows))
    data = load(name="movielens", path=str(tmp_path), days=3)
    assert data.user_field == 0
    assert [s.rows for s in data.splits] == [33, 34, 34]
    assert data.schema.cardinalities == (max(r[0] for r in rows) + 1, max(r[1] for r in rows) + 1, 24, 7)
    ordered = sorted(rows, key=lambda row: row[3])
    seen = [
        (int(label), *ids)
        for s in data.splits
        for label, ids in zip(s.slice(0, s.rows).labels, s.slice(0, s.rows).ids.tolist(), strict=True)
    ]
    moments = [datetime.datetime.fromtimestamp(row[3], datetime.UTC) for row in ordered]
    assert seen == [
        (int(float(row[2]) >= 4), row[0], row[1], moment.hour, moment.weekday())
        for row, moment in zip(ordered, moments, strict=True)
    ]
    assert sorted(p.name for p in data.path.iterdir()) == [
        "ids.npy",
        "labels.npy",
        "meta.json",
        "numeric.npy",
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2,4", "line 3: 3 columns instead of 4"),
        ("x,2,4,5", "line 3: the column user is 'x', not a number from 0 to"),
        ("1,-2,4,5", "line 3: the column item is '-2', not"),
        ("1,2,good,5", "line 3: the column rating is 'good', not"),
        ("1,2,nan,5", "line 3: the column rating is 'nan', not"),
        ("1,2,11,5", "line 3: the column rating is '11.0', not a number from 0 to 10"),
        ("1,2,4,", "line 3: the column time is missing, not"),
    ],
)
def test_bad_lines(line: str, message: str, load: Load, caches: Callable[[], list[str]], tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("\n".join([FORMATS["ratings.csv"][1].strip(), "1,2,3.0,9", line, "1,2,3,9"]))
    with pytest.raises(DataError, match=rf"ratings.csv, {message}"):
        load(name="movielens", path=str(tmp_path))
    assert caches() == []
    assert load(name="movielens", path=str(tmp_path), max_bad_lines=1, days=2).rows == 2


def test_another_file_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("title|genre\n")
    with pytest.raises(DataError, match="f, line 1: not ratings"):
        load(name="movielens", path=str(tmp_path / "f"))


CELL = st.sampled_from(
    ["1", "-1", "", "4.5", "1e1", "nan", "inf", "+3", ".5", "5.", "4", "2199023255552", "2147483647", "01"]
)


@given(st.lists(st.lists(CELL, min_size=3, max_size=5), min_size=1, max_size=4))
def test_the_readable_lines_are_those_of_the_format(table: list[list[str]]) -> None:
    def readable(row: list[str]) -> bool:
        whole = len(row) == 4 and all(re.fullmatch("-?[0-9]+", row[place]) for place in (0, 1, 3))
        within = whole and all(
            0 <= int(row[at]) <= LIMITS[name] for at, name in ((0, "user"), (1, "item"), (3, "time"))
        )
        return within and row[2] not in ("", "nan", "inf") and 0 <= float(row[2]) <= 10

    block = LineBlock(Path("f"), 1, "".join("\t".join(row) + "\n" for row in table).encode())
    batch, times = parse(block, "\t", BadLines(99))
    seen = list(zip(batch.labels.tolist(), times.tolist(), strict=True))
    assert seen == [(int(float(row[2]) >= 4), int(row[3])) for row in table if readable(row)]
