from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from gbactl.cli.commands_before_training import data as data_command
from gbactl.conf_catalogue import option_files
from gbactl.data.data_summary import _printed, fields_table, summarise
from gbactl.data.dataset import Dataset
from gbactl.errors import DataError

Load = Callable[..., Dataset]
SMALL = ["data=synthetic", "data.rows_per_day=600", "data.days=2", "data.max_cardinality=40"]


@pytest.fixture
def overrides(cache: Path) -> list[str]:
    return [*SMALL, f"data.cache={cache}"]


def test_the_summary_counts_what_is_there(load: Load, criteo_lines: Callable[[int], list[str]], tmp_path: Path) -> None:
    (tmp_path / "f").write_text("\n".join(criteo_lines(300)))
    data = load(name="criteo", path=str(tmp_path / "f"), days=3, buckets=60)
    summary = summarise(data)
    batches = [s.slice(0, s.rows) for s in data.splits]
    assert summary["rows"] == 300
    assert [s["ctr"] for s in summary["splits"]] == [pytest.approx(b.labels.mean()) for b in batches]
    for f, field in enumerate(summary["fields"]):
        values, counts = np.unique(np.concatenate([b.ids[:, f] for b in batches]), return_counts=True)
        assert (field["name"], field["cardinality"], field["distinct"]) == (f"C{f + 1}", 60, len(values))
        assert field["top_id_share"] == pytest.approx(counts.max() / 300)
        assert field["top_1_percent_share"] == pytest.approx(counts.max() / 300)


def test_describe_fits_80_columns_and_names_everything(overrides: list[str]) -> None:
    result = CliRunner().invoke(data_command, ["describe", *overrides])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("cache: "))
    assert "1,200 rows, 13 numeric features, 26 fields" in result.stdout
    assert "best possible AUC" in result.stdout
    assert [line.split()[0] for line in lines[-26:]] == [f"C{i}" for i in range(1, 27)]
    assert "\x1b" not in result.stdout
    assert "generating: 100 %" in result.stderr


def test_long_names_of_fields_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["field_" + letter * 54 for letter in "xy"]
    field = {"cardinality": 10**6, "distinct": 10**6, "top_id_share": 1.0, "top_1_percent_share": 1.0, "pooling": ""}
    fields = [{**field, "name": name, "table": names[0]} for name in (*names, "z[/z]")]
    _printed(fields_table({"fields": [*fields, {**field, "name": "w", "table": "w"}]}))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and not any("\u2026" in line for line in lines)
    cells = [cell for line in lines for cell in line.split()]
    assert [sum(cell.count(letter) for cell in cells) for letter in "xy"] == [54 * 3, 54]
    assert "z[/z]" in cells


def test_json_is_json_alone(overrides: list[str]) -> None:
    result = CliRunner().invoke(data_command, ["describe", "--json", *overrides])
    summary = json.loads(result.stdout)
    assert (summary["rows"], [s["name"] for s in summary["splits"]]) == (1200, ["day0", "day1"])
    assert 0.7 < summary["splits"][1]["best_possible_auc"] < 0.95


def test_prepare_prints_the_days_only(overrides: list[str]) -> None:
    result = CliRunner().invoke(data_command, ["prepare", *overrides])
    assert result.exit_code == 0
    assert "day1" in result.stdout
    assert "top id" not in result.stdout


def test_errors_reach_the_command_line_as_one_sentence(cache: Path) -> None:
    result = CliRunner().invoke(data_command, ["prepare", "data=criteo", "data.path=/nowhere", f"data.cache={cache}"])
    assert isinstance(result.exception, DataError)
    assert result.exception.exit_code == 1
    assert str(result.exception) == "/nowhere does not exist; set data.path to a file, a directory or a glob."


@pytest.mark.parametrize("name", [each for each in option_files("data") if each != "frappe"])
def test_every_config_file_holds_exactly_the_options_of_its_source(name: str) -> None:
    import dataclasses

    from gbactl.data.readers import options_class
    from gbactl.launch.hydra_config import compose

    composed = compose([f"data={name}"]).data
    options = options_class(name)
    defaults = {f.name: getattr(options(), f.name) for f in dataclasses.fields(options)}
    assert composed == {"name": name, "cache": None, **defaults}


def test_frappe_is_a_libfm_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    from gbactl.launch.hydra_config import compose

    monkeypatch.setenv("GBACTL_DATA", "/data")
    data = compose(["data=frappe"]).data
    assert (data["name"], data["test"]) == ("libfm", "/data/frappe/frappe.test.libfm.xz")
