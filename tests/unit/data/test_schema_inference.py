from __future__ import annotations

import csv
import datetime
import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from click.testing import CliRunner
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from gbactl.cli.commands_before_training import data as data_command
from gbactl.data import schema_inference, table_files
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
        "half at most",
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
    (
        "date",
        times(DAY, "%Y%m%d"),
        {"kind": "time", "format": "%Y%m%d", "fields": ["weekday"]},
        "times written as %Y%m%d",
    ),
    ("at", times(DAY, "%b %d, %Y"), {"kind": "time", "format": "%b %d, %Y", "fields": ["weekday"]}, "times"),
    ("at", times(DAY, "%d-%m-%y"), {"kind": "time", "format": "%d-%m-%y", "fields": ["weekday"]}, "times"),
    ("at", times(DAY, "%d-%b-%y"), {"kind": "time", "format": "%d-%b-%y", "fields": ["weekday"]}, "times"),
    ("at", times(HOUR / 5, "%d/%b/%Y:%H:%M:%S"), {"kind": "day", "format": "%d/%b/%Y:%H:%M:%S", "fields": BOTH}, "4"),
    ("date", times(HOUR / 5, "%Y%m%d%H%M"), {"kind": "day", "format": "%Y%m%d%H%M", "fields": BOTH}, "of 4 days"),
    ("movieId", of(*range(30)), {"kind": "categorical", "buckets": 1024}, "by its name"),
    ("hour", of(*range(24)), FEW, "24 whole numbers"),
    ("hour", times(HOUR / 5, "%y%m%d%H"), {"kind": "day", "format": "%y%m%d%H", "fields": BOTH}, "of 4 days"),
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
    ("preis", [each.replace(".", ",") for each in NUMBERS], {**NUMERIC, "decimal": ","}, "with a decimal comma"),
    (
        "umsatz",
        [f"{i % 7 + 1}.{i:03}.{999 - i},50" for i in range(ROWS)],
        {"kind": "numeric", "transform": "standardize", "decimal": ",", "thousands": "."},
        "from 1.",
    ),
    (
        "sales",
        [f"{i * 7919:,}" for i in range(ROWS)],
        {**NUMERIC, "thousands": ","},
        "to 3.15968e+06, with commas between thousands",
    ),
    ("at", [f"{1_700_000_000 + 7200 * i:,}" for i in range(ROWS)], {**NUMERIC, "thousands": ","}, "between thousands"),
    ("paid", [f"{each} €" for each in NUMBERS], {"kind": "ignore"}, "€; write them without it for kind: numeric"),
    (
        "paid",
        [f"{each.replace('.', ',')} €" for each in NUMBERS],
        {"kind": "ignore"},
        "€; write them without it for kind: numeric",
    ),
    (
        "price",
        ["n.d." if i % 40 == 0 else v for i, v in enumerate(NUMBERS)],
        {"kind": "ignore"},
        "numbers, but for n.d. and the like; add these to missing: for kind: numeric",
    ),
    (
        "basket",
        [",".join(str(RNG.randrange(101, 130)) for _ in range(3)) for _ in range(ROWS)],
        {"kind": "multi", "separator": ",", "max_length": 4, "buckets": 1024},
        "29 distinct, at most 3 in a row",
    ),
    (
        "basket",
        [str([RNG.randrange(9) for _ in range(RNG.randrange(4))]) for _ in range(ROWS)],
        {"kind": "multi", "separator": ",", "max_length": 4, "buckets": 1024},
        "9 distinct, at most 3 in a row",
    ),
    (
        "colours",
        [json.dumps(RNG.sample(["red", "green", "blue"], 2)) for _ in range(ROWS)],
        {"kind": "multi", "separator": ",", "max_length": 2, "buckets": 1024},
        "3 distinct, at most 2 in a row",
    ),
    ("first\nsecond", of("a", "b"), FEW, "2 texts"),
    (
        "at",
        [("" if i == 7 else each) for i, each in enumerate(times(DAY, "%Y-%m-%d"))],
        {"kind": "ignore"},
        "which is missing",
    ),
]


def guess(
    tmp_path: Path, columns: dict[str, list[str]], label: str | None = None, separator: str = ",", files: int = 1
) -> Inferred:
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([list(columns), *zip(*columns.values(), strict=True)])
    return infer(path, label, files)


@pytest.mark.parametrize(("name", "cells", "options", "why"), COLUMNS)
def test_columns(name: str, cells: list[str], options: dict[str, Any], why: str, tmp_path: Path) -> None:
    found = guess(tmp_path, {name: cells, "click": of(0, 1), "other": NUMBERS})
    [each] = [each for each in found.guesses if each.name == name]
    assert dict(each.options) == options
    assert why in each.why
    (tmp_path / "schema.yaml").write_text(found.text())
    read = read_schema(tmp_path / "schema.yaml", 1024)  # what is written can be read
    assert (name in read.columns) == (each.kind != "ignore")
    assert found.missing == (("", "NA") if "NA" in cells else ("",))


@pytest.mark.parametrize(("separator", "marks"), [(",", {"thousands": ","}), (";", {"decimal": ","})])
def test_a_comma_before_three_digits_is_what_the_separator_of_the_file_suggests(
    separator: str, marks: dict[str, str], tmp_path: Path
) -> None:
    found = guess(tmp_path, {"x": [f"{i % 9 + 1},{i:03}" for i in range(ROWS)], "click": of(0, 1)}, None, separator)
    assert found.guesses[0].options == {**NUMERIC, **marks}


def test_a_day_of_a_month_is_no_day_of_the_data(tmp_path: Path) -> None:
    found = guess(tmp_path, {"day": of(*range(1, 29)), "Month": of("may", "jun"), "click": of(0, 1)})
    assert [each.kind for each in found.guesses] == ["numeric", "categorical", "label"]


LABELS = [
    ({" Click": of(0, 1), "other": of(0, 1)}, None, {"kind": "label"}),
    ({"a": of(0, 1), "x": NUMBERS}, None, {"kind": "label"}),
    ({"x": NUMBERS, "income": of("<=50K", ">50K", "<=50K")}, None, {"kind": "label", "positive": ">50K"}),
    ({"x": NUMBERS, "y": of("no", "yes", "yes")}, None, {"kind": "label", "positive": "yes"}),
    ({"x": NUMBERS, "y": of("nein", "ja", "ja")}, None, {"kind": "label", "positive": "ja"}),
    ({"x": NUMBERS, "y": of(-1, 1)}, None, {"kind": "label", "positive": "1"}),
    ({"x": NUMBERS, "rating": of(1, 2, 3, 4, 5)}, "rating", {"kind": "label", "at_least": 4.0}),
    ({"x": NUMBERS, "y": of("True", "False")}, None, {"kind": "label"}),
    ({"x": NUMBERS, "y": of("1,000", "2")}, None, {"kind": "label", "positive": "1,000"}),
    ({"x": NUMBERS, "y": [f"{i % 3},5" for i in range(ROWS)]}, "y", {"kind": "label", "at_least": 2.5, "decimal": ","}),
    (
        {"x": NUMBERS, "y": [f"{i % 3 + 1},500" for i in range(ROWS)]},
        "y",
        {"kind": "label", "at_least": 3500.0, "thousands": ","},
    ),
    ({"y": of(1, 2, 3), "x": NUMBERS, "bought": of("no", "yes")}, None, {"kind": "label", "positive": "yes"}),
    ({"x": NUMBERS, "c": of("won", "lost", "open")}, "c=won", {"kind": "label", "positive": "won"}),
    ({"x": NUMBERS, "c": of("won", "lost")}, "c=lost", {"kind": "label", "positive": "lost"}),
    ({"x": NUMBERS, "y": of(0, 1, 2)}, "y=1.0", {"kind": "label", "positive": "1.0"}),
    ({"x": NUMBERS, "c=1": of(0, 1)}, "c=1", {"kind": "label"}),
]


@pytest.mark.parametrize(("columns", "label", "options"), LABELS)
def test_labels(columns: dict[str, list[str]], label: str | None, options: dict[str, Any], tmp_path: Path) -> None:
    found = [each for each in guess(tmp_path, columns, label).guesses if each.kind == "label"]
    assert [dict(each.options) for each in found] == [options]


@pytest.mark.parametrize(
    ("cells", "sample", "why"),
    [
        (of(0, 1), ROWS, "by its name and its two values"),
        ([str(int(i > 300)) for i in range(ROWS)], 150, "by its name, but all rows that were looked at have one value"),
    ],
)
def test_a_label_is_found_by_its_name_and_at_most_two_values(
    cells: list[str], sample: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_inference, "SAMPLE", sample)
    found = guess(tmp_path, {"weekend": of(0, 1), "target": of(1, 2, 3), "click": cells, "x": NUMBERS})
    assert [(each.name, each.why) for each in found.guesses if each.kind == "label"] == [("click", why)]


REFUSED = [
    ({"x": NUMBERS, "y": NUMBERS, "class": of("a", "b", "d")}, None, "is clearly the label; there are: x, y, class"),
    (
        {"a": of(0, 1), "b": of(0, 1), "x": NUMBERS},
        None,
        "clearly the label; these have two values: a, b; type --label",
    ),
    (
        {"x": NUMBERS, "z": NUMBERS},
        None,
        "is clearly the label; there are: x, z; type --label COLUMN, or --label COLUMN=VALUE",
    ),
    ({"x": NUMBERS, "click": of(1)}, None, r"All 400 rows have the label 1 \(click\); a label needs two values"),
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


NO_HEADER = r"seems to have no header, as its first line is '%s'; .*: sed '1i c1%sc2%sc3' .*t.csv > NEW_FILE"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "no rows below its header"),
        ("a,b,a\n1,2,3\n", "2 columns a"),
        ("a,,\n1,2,3\n", "2 columns without a name"),
        ("# of May\na,y\n1,0\n", "row 2: 2 cells where the header has 1, and no row has as many; .*: tail -n"),
        ("1,0.5,DE\n0,0.7,DE\n1,0.6,FR\n", NO_HEADER % ("1,0.5,DE", ",", ",")),
        ("1\t1\tDE\n0\t2\tDE\n", NO_HEADER % (r"1\\t1\\tDE", r"\\t", r"\\t")),
        ("a,y\n1,0\n".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        ("é,y\n1,0\n".encode("latin1"), "iconv -f latin1 -t utf-8"),
    ],
)
def test_files_without_a_table(text: str | bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(GbactlError, match=message):
        infer(tmp_path / "t.csv")


def test_a_part_of_a_large_file_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_inference, "SAMPLE", 150)
    found = guess(tmp_path, {"click": ["" if i % 10 == 3 else str(i % 2) for i in range(ROWS)], "x": NUMBERS})
    assert (found.rows, found.whole, found.looked_at) == (150, False, "the first 150 rows")
    command = found.commands("t.csv", "s.yaml")[0]
    assert "train.global_batch" not in command and command.endswith("data.max_bad_lines=80")  # twice as many


def test_rows_of_a_large_parquet_file_are_estimated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_inference, "SAMPLE", 150)
    monkeypatch.setattr(table_files, "CHUNK", 100)
    pa.parquet.write_table(pa.table({"click": of(0, 1), "x": NUMBERS}), tmp_path / "t.parquet")
    assert infer(tmp_path / "t.parquet").total == ROWS


@pytest.mark.parametrize("columns", [("0", "1", "2"), ("country", "2019", "2020"), ("", "1", "y")])
def test_a_header_may_have_numbers(columns: tuple[str, ...], tmp_path: Path) -> None:
    cells = of("DE", "FR") if columns[0] == "country" else of(0, 1, 2)
    found = guess(tmp_path, dict(zip(columns, (cells, NUMBERS, of(0, 1)), strict=True)), columns[2])
    assert [each.name for each in found.guesses] == list(columns)


@pytest.mark.parametrize(("looked_at", "files", "lost"), [(ROWS, 1, 3), (ROWS, 2, 12), (150, 1, 6)])
def test_ragged_rows_are_told_and_left_out_by_the_command(
    looked_at: int, files: int, lost: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_inference, "SAMPLE", looked_at)
    lines = [f"{i % 2},{cell}" + ",odd" * (i in (5, 6, 9)) for i, cell in enumerate(NUMBERS)]
    (tmp_path / "t.csv").write_text("\n".join(["click,x", *lines, ""]))
    found = infer(tmp_path / "t.csv", files=files)
    assert "3 rows are ragged and will be left out; the first: " in found.notes[files - 1]
    assert "t.csv, row 7: 3 cells where the header has 2" in found.notes[files - 1]
    assert f" data.max_bad_lines={lost} " in f"{found.commands('t.csv', 's.yaml')[0]} "


@pytest.mark.parametrize(
    "path",
    [
        "t.csv", "../a/day_1.csv", "s3://bucket/clicks/t.csv", "données.csv", "~/x.csv", "2024", "1_000", "1e5", "-7.",
        "+inf", "NaN", "null", "True", 'a"b.csv', "it's.csv", "a b.csv", "a\\b.csv", "a\\", 'a\\"b', "a,b.csv", "*.csv",
        "x=1/t.csv", "[a].csv", "{a}.csv", "$x.csv", "${x}.csv", "\\${x}.csv", " ",
    ],
)  # fmt: skip
def test_the_command_has_every_path_as_it_is(path: str, tmp_path: Path) -> None:
    found = guess(tmp_path, {"click": of(0, 1), "x": NUMBERS})
    typed = OverridesParser.create().parse_overrides(shlex.split(found.commands(path, f"of/{path}")[0])[3:])
    read = OmegaConf.create({each.get_key_element(): each.value() for each in typed if not each.is_sweep_override()})
    assert (read["data.path"], read["data.schema"]) == (path, f"of/{path}")


def test_few_rows_and_further_files_are_told(tmp_path: Path) -> None:
    found = guess(tmp_path, {"click": of(0, 1), "x": NUMBERS})
    assert found.notes == ["A day has about 57 rows: too few for an AUC that is more than chance."]
    assert "train.global_batch=16" in found.commands("t.csv", "s.yaml")[0]
    found = guess(tmp_path, {"click": of(0, 1), "x": NUMBERS}, files=4)  # each of which is a day
    assert found.notes == ["It is the first of 4 files, which should have the same columns."]


def test_rows_without_a_label_are_left_out_by_the_command(load: Callable[..., Dataset], tmp_path: Path) -> None:
    clicks = ["" if i % 8 == 3 else str(i % 2) for i in range(ROWS)]
    found = guess(tmp_path, {"click": clicks, "x": NUMBERS})
    [label, _] = found.guesses
    assert "12.5% missing, which data.max_bad_lines leaves out" in label.why
    [lost] = [word for word in found.commands("t.csv", "s.yaml")[0].split() if "max_bad_lines" in word]
    (tmp_path / "s.yaml").write_text(found.text())
    table = {"name": "table", "path": str(tmp_path / "t.csv"), "schema": str(tmp_path / "s.yaml")}
    assert lost == "data.max_bad_lines=50" and load(**table, max_bad_lines=50).rows == ROWS - 50


def test_a_table_with_blanks_around_its_cells_is_read_with_the_schema_guessed_of_it(
    load: Callable[..., Dataset], tmp_path: Path
) -> None:
    ages = ["NA" if i % 3 == 0 else each for i, each in enumerate(NUMBERS)]
    rows = [["click", "age", "job"], *zip(of(0, 1), ages, of("nurse", "NA"), strict=True)]
    (tmp_path / "t.csv").write_text("".join(", ".join(row) + "\n" for row in rows))
    found = infer(tmp_path / "t.csv", "click")
    assert found.missing == ("", "NA") and found.guesses[1].kind == "numeric"
    (tmp_path / "s.yaml").write_text(found.text())
    assert load(name="table", path=str(tmp_path / "t.csv"), schema=str(tmp_path / "s.yaml")).rows == ROWS


def test_few_rows_with_long_lists_are_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa.parquet.write_table(pa.table({"click": of(0, 1), "seen": [list(range(20))] * ROWS}), tmp_path / "t.parquet")
    assert infer(tmp_path / "t.parquet").whole
    monkeypatch.setattr(table_files, "VALUES", 1000, raising=False)
    monkeypatch.setattr(schema_inference, "LISTED", 1999, raising=False)
    found = infer(tmp_path / "t.parquet")
    assert (found.rows, found.total, found.whole) == (100, ROWS, False)
    assert found.text().startswith("# Schema of t.parquet, guessed from the first 100 rows.")


def test_the_types_of_parquet_count(tmp_path: Path) -> None:
    columns = {
        "click": [bool(i % 2) for i in range(ROWS)], "when": [BEGIN + i * HOUR for i in range(ROWS)],
        "tags": [["a", "b"]] * ROWS, "pairs": [[[1]]] * ROWS, "history": [[1, 2, i % 3] for i in range(ROWS)],
        "then": pa.array([BEGIN + i * HOUR for i in range(ROWS)], pa.timestamp("ns", "Europe/Berlin")),
        "x": [i / 7 for i in range(ROWS)], "n": [None if i % 3 else i % 5 for i in range(ROWS)],
        "clock": [datetime.time(i % 24) for i in range(ROWS)], "wait": [i * HOUR for i in range(ROWS)],
        "shop": pa.array(of("a", "b")).dictionary_encode(),
    }  # fmt: skip
    pa.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    found = infer(tmp_path / "t.parquet")
    assert {each.name: each.kind for each in found.guesses} == {
        "click": "label", "when": "time", "tags": "multi", "pairs": "ignore", "history": "sequence", "x": "numeric",
        "n": "categorical", "then": "ignore", "clock": "categorical", "wait": "ignore", "shop": "categorical",
    }  # fmt: skip
    assert [each.distinct for each in found.guesses if each.name == "tags"] == [2]  # values, not lists
    assert [each.why for each in found.guesses if each.name == "then"] == ["a further time; one is possible"]
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
    several = CliRunner().invoke(data_command, ["infer-schema", "a.csv", "b.csv"])
    assert isinstance(several.exception, UsageError) and "name their folder" in str(several.exception)
    nowhere = CliRunner().invoke(data_command, ["infer-schema", "my table.csv", "--out", "no/o.yaml"])
    assert "no/o.yaml cannot be written" in str(nowhere.exception)
    fsspec.filesystem("memory").pipe("/guess/t.csv", Path("my table.csv").read_bytes())
    Path("schema.yaml").unlink()
    assert CliRunner().invoke(data_command, ["infer-schema", "memory://guess/t.csv"]).exit_code == 0
    assert Path("schema.yaml").exists()
