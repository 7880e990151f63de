from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gbactl.data import text_files
from gbactl.data.dataset import Batch, Dataset
from gbactl.data.readers.avazu import parse
from gbactl.data.text_files import BadLines, LineBlock
from gbactl.errors import DataError

Load = Callable[..., Dataset]
HEADER = "id,click,hour,C1,site_id,device_model,C20"


def rows(count: int, seed: int = 0) -> list[list[str]]:
    rng = random.Random(seed)
    hours = sorted(f"1410{rng.randint(21, 24)}{rng.randint(0, 23):02d}" for _ in range(count))
    return [
        [str(i), str(rng.randint(0, 1)), hour, str(rng.randint(1001, 1003)), f"{rng.getrandbits(32):08x}",
         rng.choice(["", "Nexus 5".replace(" ", "_"), "iPhone", "größe"]), rng.choice(["-1", "100084"])]
        for i, hour in enumerate(hours)
    ]  # fmt: skip


def write(path: Path, table: list[list[str]], header: str = HEADER) -> str:
    path.write_text("\n".join([header, *(",".join(row) for row in table)]) + "\n", "utf-8")
    return str(path)


def test_days_labels_and_ids(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK", 700)
    monkeypatch.setattr(text_files, "PIECE", 100)
    table = rows(200)
    data = load(name="avazu", path=write(tmp_path / "train.csv", table), buckets=1 << 20)
    days = sorted({row[2][:6] for row in table})
    assert [s.name for s in data.splits] == [f"2014-10-{day[4:]}" for day in days]
    assert [s.rows for s in data.splits] == [sum(row[2][:6] == day for row in table) for day in days]
    assert data.schema.numeric == 0
    assert data.meta["field_names"] == ["C1", "site_id", "device_model", "C20", "hour_of_day"]
    whole = [s.slice(0, s.rows) for s in data.splits]
    assert whole[0].numeric.shape == (data.splits[0].rows, 0)
    assert np.concatenate([b.labels for b in whole]).tolist() == [int(row[1]) for row in table]
    ids = np.concatenate([b.ids for b in whole])
    assert ids[:, 4].tolist() == [int(row[2][6:]) for row in table]
    for f in range(4):
        texts = [row[3 + f] for row in table]
        pairs = {(text, int(i)) for text, i in zip(texts, ids[:, f], strict=True)}
        assert len(pairs) == len(set(texts)) == len({i for _, i in pairs})
        assert all((text == "") == (i == 0) for text, i in pairs)


def parsed(lines: Iterable[str], header: str = HEADER) -> Batch:
    block = LineBlock(Path("f"), 1, "".join(line + "\n" for line in lines).encode())
    return parse(block, header.split(","), 1000, BadLines(99))[0]


def test_ids_of_a_text_do_not_depend_on_its_neighbours() -> None:
    table = rows(40)
    together = parsed(",".join(row) for row in table)
    for i in (0, 7, 39):
        assert parsed([",".join(table[i])]).ids[0].tolist() == together.ids[i].tolist()


def test_days_over_several_files_join_in_any_order(load: Load, tmp_path: Path) -> None:
    def days(path: str | list[str]) -> list[tuple[str, list[list[int]]]]:
        return [(s.name, sorted(s.slice(0, s.rows).ids.tolist())) for s in load(name="avazu", path=path).splits]

    table = rows(60)
    paths = [write(tmp_path / "a.csv", table[:25]), write(tmp_path / "b.csv", table[25:])]
    assert days(paths) == days(paths[::-1]) == days(write(tmp_path / "all.csv", table))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: [*t[:9], [*t[9][:1], "2", *t[9][2:]], *t[10:]], r"line 11: the column click is '2', not 0 or 1"),
        (lambda t: [*t[:9], [*t[9][:2], "14102125", *t[9][3:]], *t[10:]], r"line 11: the column hour is '14102125'"),
        (lambda t: [*t[:9], t[9][:4], *t[10:]], r"line 11: 4 columns instead of 7"),
        (lambda t: [], r"line 2: there are no rows"),
    ],
)
def test_bad_input(
    change: Callable[[list[list[str]]], list[list[str]]], message: str, load: Load,
    caches: Callable[[], list[str]], tmp_path: Path,
) -> None:  # fmt: skip
    path = write(tmp_path / "f.csv", change(rows(60)))
    with pytest.raises(DataError, match=message):
        load(name="avazu", path=path)
    assert caches() == []


def test_headers_are_checked(load: Load, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="line 1: not a header of Avazu's CSV"):
        load(name="avazu", path=write(tmp_path / "x.csv", rows(3), header="a,b,c,d,e,f,g"))
    paths = [write(tmp_path / "a.csv", rows(3)), write(tmp_path / "b.csv", rows(3), header=HEADER + "x")]
    with pytest.raises(DataError, match="header differs"):
        load(name="avazu", path=paths)


CELL = st.sampled_from(["", "0", "1", "-1", "01", "14102100", "14102124", "99999999", "a b", "x", "+1", "1.5"])


@given(st.lists(st.lists(CELL, min_size=3, max_size=5), min_size=1, max_size=4))
@example([["0", "0", "", "+1"]])
@example([["1", "+1", "", "a b"], ["1", "14102100", "", "a b"]])
def test_the_readable_lines_are_those_of_the_format(table: list[list[str]]) -> None:
    good = [
        row for row in table
        if len(row) == 4 and re.fullmatch("0*[01]", row[0]) and re.fullmatch("[0-9]+", row[1])
        and int(row[1]) <= 99123123 and int(row[1]) % 100 < 24
    ]  # fmt: skip
    found = parsed((",".join(row) for row in table), "click,hour,C1,C2")
    assert found.labels.tolist() == [int(row[0]) for row in good]
