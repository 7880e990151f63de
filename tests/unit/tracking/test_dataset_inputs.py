"""Data sets as MLflow lists them."""

from __future__ import annotations

import json
from pathlib import Path

from gbactl.data.dataset import open_dataset
from gbactl.tracking.dataset_inputs import dataset_inputs
from tests.support.small_data import options, prepared


def test_what_was_trained_and_evaluated_on(tmp_path: Path) -> None:
    dataset = open_dataset(prepared(tmp_path, 100, days=3))
    train, judged = dataset_inputs(dataset, options(100, 3), {0, 1}, {1, 2})
    assert (train["name"], train["context"], judged["context"]) == ("synthetic", "train", "eval")
    assert train["digest"] != judged["digest"]
    assert json.loads(train["profile"]) == {"num_rows": 200, "splits": ["day0", "day1"]}
    columns = json.loads(train["schema"])["mlflow_colspec"]
    assert [columns[0]["name"], len(columns)] == ["label", 1 + 3 + 4]
    assert "data=synthetic data.rows_per_day=100" in train["source"] and train["source_type"] == "code"
    files = dataset_inputs(dataset, {"name": "libfm", "train": "/data/train.libfm", "cache": "/cache"}, {0}, {1})
    assert json.loads(files[0]["source"]) == {"uri": "/data/train.libfm"} and files[0]["source_type"] == "local"
