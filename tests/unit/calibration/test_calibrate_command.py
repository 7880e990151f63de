"""The file that a calibration writes, and what `cost=FILE` makes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gbactl.calibration.calibrate_command import Calibration, calibrate, cost_file_text, error_table
from gbactl.calibration.fit import FittedModel
from gbactl.calibration.short_local_runs import Observation
from gbactl.config.groups import CostConfig
from gbactl.errors import UsageError
from gbactl.launch.hydra_config import compose, with_cost_file
from tests.support.calibration_runs import MACHINE

COST = replace(MACHINE, name="it's mine", worker_scale=[1.0, 2.5], workers_per_host=4, batch_us=1234.5678)


def written(folder: Path) -> Path:
    path = folder / "mine.yaml"
    path.write_text(cost_file_text(COST, ["Where it comes from."]))
    return path


def test_what_is_written_composes_to_what_was_found(tmp_path: Path) -> None:
    path = written(tmp_path)
    cfg = compose(["cluster=virtual", f"cost={path}"])
    assert cfg.cost == replace(COST, batch_us=1235.0)
    assert compose([f"cost={path}", "cost.cores=7"]).cost.cores == 7
    assert compose(["cost.cores=7", f"cost={path}"]).cost.cores == 7, "what is typed wins, wherever it stands"


@pytest.mark.parametrize("name", ["2026-11-26", "8", "on", "#4", "a: b"])
def test_a_name_stays_a_text(name: str) -> None:
    assert yaml.safe_load(cost_file_text(replace(COST, name=name), []))["name"] == name


def test_the_file_says_where_it_comes_from_and_what_its_keys_mean(tmp_path: Path) -> None:
    text = written(tmp_path).read_text()
    assert text.startswith("# Where it comes from.\n")
    assert set(yaml.safe_load(text)) == set(CostConfig.__dataclass_fields__)
    keys = [line for line in text.splitlines() if line.startswith(("sample_us", "overlap", "cores"))]
    assert len(keys) == 3 and all("  # " in line for line in keys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("cores: [", "cannot be read"),
        ("- 1\n", "is no cost model: it has no lines KEY: VALUE; a cost model has the keys: name, cores"),
        ("", "is no cost model: it has no lines KEY: VALUE"),
        ("cores: 2\nspeed: 3\n", "is no cost model: it has the unknown keys speed; a cost model has the keys: name,"),
        ("cores: 0\n", "cost.cores=0 is not a whole number from 1 to 65536"),
        ("cores: many\n", "cost.cores='many' is not a whole number"),
    ],
)
def test_a_file_that_is_no_cost_model_is_told(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "wrong.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=message):
        compose([f"cost={path}"])


def test_named_models_and_other_keys_are_left_alone() -> None:
    assert with_cost_file(["-m", "cost=busy,laptop", "mode=gba"]) == ["-m", "cost=busy,laptop", "mode=gba"]


def test_the_table_has_a_line_a_run() -> None:
    seen, told = Observation("sync", 4, 20_000.0), Observation("sync", 4, 21_000.0)
    assert error_table(FittedModel(MACHINE, [seen], [told]))[1].split() == [
        "sync",
        "4",
        "20,000",
        "21,000",
        "+5.0",
        "%",
    ]


def test_every_run_has_the_local_batch_of_the_one_that_was_asked_for() -> None:
    overrides = ["train.global_batch=1024", "cluster.workers=8", "model.dim=4", "mode=gba", "mode.prefetch=none"]
    plan = Calibration(overrides, (2, 4), 1, 1.0)
    for mode, workers in (("sync", 2), ("gba", 4), ("async", 16)):
        cfg = plan.config(mode, workers)
        assert (cfg.mode.name, cfg.local_batch, cfg.cluster.workers) == (mode, 128, workers)
        assert cfg.model.dim == 4 and cfg.mode.prefetch == "none"
        assert cfg.cluster.name == "local" and not cfg.tracking.enabled


@pytest.mark.parametrize(
    ("out", "workers", "overrides", "message"),
    [
        ("nowhere/a.yaml", (2, 4), [], "There is no folder"),
        ("a.txt", (2, 4), [], "type --out a.txt.yaml"),
        ("a.yaml", (2, 2), [], "type --workers 2,4"),
        ("a.yaml", (1, 2), [], "type --workers 2,4"),
        ("a.yaml", (2, 4), ["mode=gba", "mode.iota=2"], r"sync, async, gba with .* defaults; leave mode\.iota out\.$"),
        ("a.yaml", (2, 4), ["+mode.sparse_divisor=contributors"], r"leave mode\.sparse_divisor out\.$"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, workers: tuple[int, ...], overrides: list[str],
    message: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        calibrate(Path(out), overrides, workers, 1.0, 1)
