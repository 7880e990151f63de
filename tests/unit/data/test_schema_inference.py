from __future__ import annotations

import datetime
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from click.testing import CliRunner

from gbactl.cli.commands_before_training import data as data_command
from gbactl.data import schema_inference
from gbactl.data.dataset import Dataset
from gbactl.data.schema_inference import Inferred, infer
from gbactl.data.table_schema import read_schema
from gbactl.errors import GbactlError, UsageError

ROWS = 400
RNG = random.Random(0)
BEGIN = datetime.datetime(2024, 1, 1)


def of(*values: Any) -> list[str]:
    return [str(RNG.choice(values)) for _ in range(ROWS)]


def times(step: datetime.timedelta, form: str) -> list[str]:
    return [(BEGIN + i * step).strftime(form) for i in range(ROWS)]


HOUR, DAY = datetime.timedelta(hours=1), datetime.timedelta(days=1)
NUMERIC, FEW = {"kind": "numeric", "transform": "standardize"}, {"kind": "categorical", "buckets": 1024}
BOTH = ["hour", "weekday"]
NUMBERS = [f"{RNG.gauss(0, 5):.3f}" for _ in range(ROWS)]
COLUMNS = [  # column name, cells, what it is read as, part of the reason
    ("price", NUMBERS, NUMERIC, "numbers from -"),
    (
        "balance",
        [f"{RNG.lognormvariate(3, 2):.2f}" for _ in range(ROWS)],
        {"kind": "numeric", "transform": "log1p"},
        "half below",
    ),
    ("price", ["NA" if i % 9 == 0 else v for i, v in enumerate(NUMBERS)], NUMERIC, "numbers"),
    ("stars", of(1, 2, 3, 4, 5), FEW, "5 whole numbers"),
    ("zip", of(*range(10_000, 10_060)), {"kind": "categorical", "buckets": 2048}, "by its name"),
    ("country", of("DE", "FR", "", "PL"), FEW, "3 texts"),
    ("mixed", of("1", "2", "x", "4.5"), FEW, "4 texts"),
    ("User_ID", of(*range(90)), {"kind": "user", "buckets": 4096}, "by its name"),
    ("row", [str(i) for i in range(ROWS)], {"kind": "ignore"}, "every value is another one"),
    ("note", of("long " * 20, "longer " * 20), {"kind": "ignore"}, "free text"),
    ("fixed", of("a"), {"kind": "ignore"}, "one value alone"),
    ("void", of(""), {"kind": "ignore"}, "always missing"),
    ("at", times(HOUR / 5, "%Y-%m-%d %H:%M:%S"), {"kind": "day", "fields": BOTH}, "of 4 days"),
    ("at", times(DAY, "%Y-%m-%d"), {"kind": "time", "fields": ["weekday"]}, "over 400 dates, cut into equal parts"),
    ("at", times(DAY, "%d.%m.%Y"), {"kind": "time", "format": "%d.%m.%Y", "fields": ["weekday"]}, "times"),
    (
        "seen",
        times(DAY / 400, "%m/%d/%Y %I:%M %p"),
        {"kind": "time", "format": "%m/%d/%Y %I:%M %p", "fields": BOTH},
        "day comes first",
    ),
    ("date", times(DAY, "%Y%m%d"), {"kind": "time", "format": "%Y%m%d", "fields": ["weekday"]}, "dates"),
    ("hour", times(HOUR / 5, "%y%m%d%H"), {"kind": "day", "format": "%y%m%d%H", "fields": BOTH}, "hours, of 4 days"),
    ("timestamp", [str(1_700_000_000 + 7200 * i) for i in range(ROWS)], {"kind": "time", "fields": BOTH}, "since 1970"),
    ("day", [str(i // 50) for i in range(ROWS)], {"kind": "day"}, "numbers of days"),
    (
        "tags",
        ["|".join(RNG.sample("abcdefgh", RNG.randint(1, 4))) for _ in range(ROWS)],
        {"kind": "multi", "separator": "|", "max_length": 4, "buckets": 1024},
        "8 distinct, at most 4 in a row",
    ),
    (
        "history",
        [" ".join(str(RNG.randrange(30)) for _ in range(RNG.randrange(9))) for _ in range(ROWS)],
        {"kind": "sequence", "separator": " ", "max_length": 8, "buckets": 1024},
        "30 distinct",
    ),
    ("words", of("red shoes", "blue shoes", "red socks", "blue socks"), FEW, "4 texts"),
    (
        "at",
        [("" if i == 7 else each) for i, each in enumerate(times(DAY, "%Y-%m-%d"))],
        {"kind": "ignore"},
        "which is missing",
    ),
]


def guess(tmp_path: Path, columns: dict[str, list[str]], label: str | None = None) -> Inferred:
    path = tmp_path / "t.csv"
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return infer(path, label)


@pytest.mark.parametrize(("name", "cells", "options", "why"), COLUMNS)
def test_columns(name: str, cells: list[str], options: dict[str, Any], why: str, tmp_path: Path) -> None:
    found = guess(tmp_path, {name: cells, "click": of(0, 1), "other": NUMBERS})
    [each] = [each for each in found.guesses if each.name == name]
    assert dict(each.options) == options
    assert why in each.why
    (tmp_path / "schema.yaml").write_text(found.text())
    read_schema(tmp_path / "schema.yaml", 1024)  # what is written can be read
    assert found.missing == (("", "NA") if "NA" in cells else ("",))


def test_a_day_of_a_month_is_no_day_of_the_data(tmp_path: Path) -> None:
    found = guess(tmp_path, {"day": of(*range(1, 29)), "Month": of("may", "jun"), "click": of(0, 1)})
    assert [each.kind for each in found.guesses] == ["numeric", "categorical", "label"]


LABELS = [
    ({"Click": of(0, 1), "other": of(0, 1)}, None, {"kind": "label"}),
    ({"a": of(0, 1), "x": NUMBERS}, None, {"kind": "label"}),
    ({"x": NUMBERS, "income": of("<=50K", ">50K", "<=50K")}, None, {"kind": "label", "positive": ">50K"}),
    ({"x": NUMBERS, "y": of("no", "yes", "yes")}, None, {"kind": "label", "positive": "yes"}),
    ({"x": NUMBERS, "y": of(-1, 1)}, None, {"kind": "label", "positive": "1"}),
    ({"x": NUMBERS, "rating": of(1, 2, 3, 4, 5)}, "rating", {"kind": "label", "at_least": 4.0}),
    ({"x": NUMBERS, "y": of("True", "False")}, None, {"kind": "label"}),
    ({"x": NUMBERS, "c": of("won", "lost", "open")}, "c=won", {"kind": "label", "positive": "won"}),
    ({"x": NUMBERS, "c": of("won", "lost")}, "c=lost", {"kind": "label", "positive": "lost"}),
    ({"x": NUMBERS, "c=1": of(0, 1)}, "c=1", {"kind": "label"}),
]


@pytest.mark.parametrize(("columns", "label", "options"), LABELS)
def test_labels(columns: dict[str, list[str]], label: str | None, options: dict[str, Any], tmp_path: Path) -> None:
    found = [each for each in guess(tmp_path, columns, label).guesses if each.kind == "label"]
    assert [dict(each.options) for each in found] == [options]


REFUSED = [
    (
        {"a": of(0, 1), "b": of(0, 1), "x": NUMBERS},
        None,
        "clearly the label; these have two values: a, b; type --label",
    ),
    ({"x": NUMBERS, "z": NUMBERS}, None, "No column of .*t.csv is clearly the label; type --label COLUMN"),
    (
        {"x": NUMBERS, "rating": of(1, 2)},
        "ratng",
        r"has no column ratng; its columns are: x, rating\. Did you mean rating\?",
    ),
    (
        {"x": NUMBERS, "c": of("a", "b", "d")},
        "c",
        "The label c has 3 values, such as .*type --label c=VALUE with that of a click",
    ),
    (
        {"x": NUMBERS, "c": of("won", "lost", "open")},
        "c=woon",
        r"No cell of c is woon; there are: .*\. Did you mean won\?",
    ),
    ({"y": of(0, 1), "x": of("a")}, None, "no column that could be a feature"),
]


@pytest.mark.parametrize(("columns", "label", "message"), REFUSED)
def test_what_cannot_be_guessed(columns: dict[str, list[str]], label: str | None, message: str, tmp_path: Path) -> None:
    with pytest.raises(GbactlError, match=message):
        guess(tmp_path, columns, label)


@pytest.mark.parametrize(
    ("text", "message"), [("", "is empty"), ("a,b\n", "no rows below its header"), ("a,b,a\n1,2,3\n", "2 columns a")]
)
def test_files_without_a_table(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(GbactlError, match=message):
        infer(tmp_path / "t.csv")


def test_a_part_of_a_large_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_inference, "SAMPLE", 150)
    found = guess(tmp_path, {"click": of(0, 1), "x": NUMBERS})
    assert (found.rows, found.whole, found.looked_at) == (150, False, "the first 150 rows")
    assert "train.global_batch" not in found.commands("t.csv", "s.yaml")[0]


def test_rows_without_a_label_are_left_out_by_the_command(load: Callable[..., Dataset], tmp_path: Path) -> None:
    clicks = ["" if i % 8 == 3 else str(i % 2) for i in range(ROWS)]
    found = guess(tmp_path, {"click": clicks, "x": NUMBERS})
    [label, _] = found.guesses
    assert "12.5% missing, which data.max_bad_lines leaves out" in label.why
    [lost] = [word for word in found.commands("t.csv", "s.yaml")[0].split() if "max_bad_lines" in word]
    (tmp_path / "s.yaml").write_text(found.text())
    table = {"name": "table", "path": str(tmp_path / "t.csv"), "schema": str(tmp_path / "s.yaml")}
    assert lost == "data.max_bad_lines=50" and load(**table, max_bad_lines=50).rows == ROWS - 50


def test_the_types_of_parquet_count(tmp_path: Path) -> None:
    columns = {
        "click": [bool(i % 2) for i in range(ROWS)], "when": [BEGIN + i * HOUR for i in range(ROWS)],
        "tags": [["a", "b"]] * ROWS, "pairs": [[[1]]] * ROWS, "history": [[1, 2, i % 3] for i in range(ROWS)],
        "x": [i / 7 for i in range(ROWS)], "n": [None if i % 3 else i % 5 for i in range(ROWS)],
    }  # fmt: skip
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = infer(tmp_path / "t.parquet")
    assert {each.name: each.kind for each in found.guesses} == {
        "click": "label", "when": "time", "tags": "multi", "pairs": "ignore", "history": "sequence", "x": "numeric",
        "n": "categorical",
    }  # fmt: skip
    assert "separator" not in found.text()


def test_the_command_writes_a_schema_that_is_read(
    load: Callable[..., Dataset], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guess(tmp_path, {"": of(1, 2, 3), "a: b": of("x, y".replace(",", ""), "#"), "click": of(0, 1), "x": NUMBERS})
    (tmp_path / "t.csv").rename(tmp_path / "my table.csv")
    result = CliRunner().invoke(data_command, ["infer-schema", "my table.csv"])
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if not line.startswith("  gbactl"))
    assert "'data.path=\"my table.csv\"' data.schema=schema.yaml train.global_batch=16" in result.output
    assert yaml.safe_load(Path("schema.yaml").read_text())["columns"]["a: b"] == {
        "kind": "categorical",
        "buckets": 1024,
    }
    data = load(name="table", path="my table.csv", schema="schema.yaml")
    assert data.rows == ROWS and data.days_by_rows and data.meta["field_names"] == ["", "a: b"]
    again = CliRunner().invoke(data_command, ["infer-schema", "my table.csv"])
    assert isinstance(again.exception, UsageError)
    assert str(again.exception) == "schema.yaml exists; type --force to overwrite it, or --out FILE."
    assert CliRunner().invoke(data_command, ["infer-schema", "my table.csv", "--force"]).exit_code == 0
    assert CliRunner().invoke(data_command, ["infer-schema", "my table.csv", "--out", "o.yaml"]).exit_code == 0
    nowhere = CliRunner().invoke(data_command, ["infer-schema", "my table.csv", "--out", "no/o.yaml"])
    assert "no/o.yaml cannot be written" in str(nowhere.exception)
    fsspec.filesystem("memory").pipe("/guess/t.csv", Path("my table.csv").read_bytes())
    Path("schema.yaml").unlink()
    assert CliRunner().invoke(data_command, ["infer-schema", "memory://guess/t.csv"]).exit_code == 0
    assert Path("schema.yaml").exists()
