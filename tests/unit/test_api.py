"""The Python API: names that `import gbactl` has, runs that are loaded and compared, the model, errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

import gbactl
from gbactl.data.dataset import open_dataset
from gbactl.launch.hydra_config import compose
from gbactl.quality_metrics import auc

SMALL = (
    "cluster=virtual", "cluster.workers=2", "data.days=2", "data.rows_per_day=1500", "data.max_cardinality=50",
    "data.numeric=2", "data.fields=3", "model.dim=4", "model.dims.C2=1", "model.hidden=[8]", "train.global_batch=64",
    "mode.local_batch=32", "tracking.enabled=false", "checkpoint=full", "checkpoint.interval_steps=10",
)  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[gbactl.Run]:
    folder = tmp_path_factory.mktemp("runs")
    more = [f"data.cache={folder / 'cache'}"]
    return [gbactl.train(*SMALL, *more, f"mode={mode}", f"run_dir={folder / mode}") for mode in ("sync", "async")]


def test_importing_it_imports_nothing_else() -> None:
    told = "import sys, gbactl; dir(gbactl); print(sorted(n for n in sys.modules if n.startswith('gbactl')))"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['gbactl']"
    assert all(getattr(gbactl, name) for name in dir(gbactl))
    with pytest.raises(AttributeError, match="no attribute 'tune'"):
        gbactl.tune  # type: ignore[attr-defined]  # noqa: B018


def test_a_run_has_its_configuration_curves_and_rounds(runs: list[gbactl.Run]) -> None:
    run = gbactl.load(runs[1].run_dir)
    assert run.result == runs[1].result and run.config["mode"]["name"] == "async" and run.run_id is None
    assert list(run.curves) == ["samples", "seconds", "loss", "auc", "eps"]
    assert run.rounds["auc"].iloc[-1] == run.auc
    assert "async" in run._repr_html_()


def test_the_model_predicts_as_the_evaluation_did(runs: list[gbactl.Run]) -> None:
    run = runs[0]
    dataset = open_dataset(Path(_data(run)))
    split = next(each for each in dataset.splits if each.name == run.result["evaluated_on"])
    batch = split.slice(0, split.rows)
    found = run.model(torch.from_numpy(np.array(batch.numeric)), torch.from_numpy(np.array(batch.ids, np.int64)))
    assert auc(np.array(batch.labels), found.numpy()) == pytest.approx(run.auc, abs=1e-6)
    low, high = dataset.schema.spans[1]
    assert run.config["model"]["dims"] == {"C2": 1} and run.model.rows[low:high, :1].any(dim=1).all()
    assert not run.model.rows[low:high, 1:4].any() and run.model.rows[high:, 1:4].any(dim=1).all()


def _data(run: gbactl.Run) -> Path:
    from gbactl.data.cache import prepare

    return prepare(compose([*SMALL, f"data.cache={run.config['data']['cache']}"]).data)


def test_a_comparison_is_a_table_and_shows_the_report(runs: list[gbactl.Run]) -> None:
    table = gbactl.compare([runs[0], runs[1].run_dir])
    assert isinstance(table, pandas.DataFrame) and list(table["mode"]) == ["sync", "async"]
    assert table["auc_mean"].tolist() == [run.auc for run in runs]
    shown = table._repr_markdown_()
    assert "vs sync" in shown and table._repr_html_() is None and "vs sync" in repr(table)
    assert type(table[["mode"]]) is pandas.DataFrame
    first = gbactl.compare(runs, round=runs[0].rounds["day"][0])
    assert first["auc_mean"].tolist() == [run.rounds["auc"][0] for run in runs]
    assert gbactl.compare(runs, by=["cluster.threads"])["cluster.threads"].tolist() == ["null", "null"]


def test_one_run_is_taken_like_a_list_and_a_loaded_run_like_its_name(runs: list[gbactl.Run]) -> None:
    for one in (runs[0], runs[0].run_dir, str(runs[0].run_dir)):
        assert list(gbactl.compare(one)["mode"]) == ["sync"]
    assert gbactl.load(runs[0]) is runs[0]


def test_errors_are_those_of_the_project(tmp_path: Path) -> None:
    with pytest.raises(gbactl.errors.UsageError, match="mode") as caught:
        gbactl.train("mode=fast")
    assert caught.value.__cause__ is None and caught.value.__suppress_context__, "none of Hydra's tracebacks"
    with pytest.raises(gbactl.errors.UsageError, match=r"^\['seed=1'\] is no override; type each as a text of its own"):
        gbactl.train(["seed=1"])  # type: ignore[arg-type]
    with pytest.raises(gbactl.errors.UsageError, match=r"^There is no run to compare; type gbactl\.compare"):
        gbactl.compare([])
    with pytest.raises(gbactl.errors.UsageError, match="no run"):
        gbactl.load("nowhere")
