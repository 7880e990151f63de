"""Synthetic data, with lists and without: its bytes, its ids, and the best AUC of its true probabilities."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from gbactl.data import synthetic
from gbactl.data.data_summary import summarise
from gbactl.data.dataset import Batch, Dataset
from gbactl.data.synthetic import Generator, Synthetic, sigmoid, zipf
from gbactl.errors import ConfigError, DataError
from tests.unit.data.test_lists import WITH_LISTS

Load = Callable[..., Dataset]
SMALL = {"name": "synthetic", "rows_per_day": 3000, "days": 2, "max_cardinality": 500}


def content(data: Dataset) -> list[bytes]:
    return [(data.path / f"{name}.npy").read_bytes() for name in data.schema.arrays]


@pytest.mark.parametrize(("options", "chunk"), [(SMALL, 700), (WITH_LISTS, 5600)])
def test_the_same_seed_gives_the_same_bytes_on_one_core_and_on_many(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], chunk: int
) -> None:
    monkeypatch.setattr(synthetic, "CHUNK", chunk)
    first = content(load(**options))
    monkeypatch.setattr(synthetic, "available_cores", lambda: [0])
    assert content(load(**{**options, "cache": str(tmp_path / "other")})) == first
    monkeypatch.setattr(synthetic, "available_cores", lambda: list(range(7)))
    assert content(load(**{**options, "cache": str(tmp_path / "third")})) == first
    assert content(load(**options, seed=2)) != first


def test_shape_is_criteos_and_ids_are_in_range(load: Load) -> None:
    data = load(**SMALL)
    assert (data.schema.numeric, data.schema.fields, len(data.splits)) == (13, 26, 2)
    assert (min(data.schema.cardinalities), max(data.schema.cardinalities)) == (10, 500)
    ids = data.splits[0].slice(0, 3000).ids
    assert (ids >= 0).all()
    assert (ids < np.array(data.schema.cardinalities)).all()
    days = [s.slice(0, 3000).ids for s in data.splits]
    assert not np.array_equal(*days)


@given(size=st.integers(1, 5_000_000), skew=st.floats(0, 2.5), u=st.floats(0, 1, exclude_max=True))
def test_zipf_ids_are_bounded(size: int, skew: float, u: float) -> None:
    assert 0 <= zipf(np.array([u]), size, skew)[0] < size


@pytest.mark.parametrize("skew", [0.0, 0.8, 1.0, 1.3])
def test_zipf_frequencies_follow_the_power_law(skew: float) -> None:
    ids = zipf(np.random.default_rng(0).random(400_000), 1000, skew)
    counts = np.bincount(ids, minlength=1000)
    edges = np.arange(1, 1002.0)
    whole = np.log(edges) if skew == 1 else edges ** (1 - skew) / (1 - skew)
    expected = np.diff(whole) / (whole[-1] - whole[0]) * len(ids)
    assert (np.abs(counts - expected) < 6 * np.sqrt(expected) + 1).all()


def test_best_auc_is_that_of_the_true_probabilities(load: Load) -> None:
    data = load(**{**SMALL, "rows_per_day": 20_000})
    options = Synthetic(rows_per_day=20_000, days=2, max_cardinality=500)
    hidden = Generator(options).hidden
    for day, split in enumerate(data.splits):
        batch = split.slice(0, split.rows)
        true = sigmoid(hidden.logits(batch, day))
        assert data.best_auc[split.name] == pytest.approx(roc_auc_score(batch.labels, true), abs=2e-4)
        assert 0.80 < data.best_auc[split.name] < 0.86
        assert batch.labels.mean() == pytest.approx(0.25, abs=0.03)


def test_without_noise_labels_follow_the_true_probabilities() -> None:
    generator = Generator(Synthetic(noise=0, days=2, max_cardinality=500))
    batch, _ = generator.chunk(1, 0, 60_000)
    true = sigmoid(generator.hidden.logits(batch, 1))
    for low in (0.0, 0.1, 0.3, 0.6):
        chosen = (true >= low) & (true < low + 0.2)
        assert batch.labels[chosen].mean() == pytest.approx(true[chosen].mean(), abs=0.02)


@pytest.mark.parametrize(("drift", "least", "most"), [(0.0, 0.9999, 1.001), (1.5, 0.1, 0.6)])
def test_drift_turns_the_first_order_and_leaves_the_pairs(drift: float, least: float, most: float) -> None:
    generator = Generator(Synthetic(drift=drift, max_cardinality=500))
    batch, _ = generator.chunk(0, 0, 5000)
    logits = [generator.hidden.logits(batch, day) for day in (0, 1)]
    assert least <= np.corrcoef(logits)[0, 1] <= most


def test_a_few_thousand_samples_teach_something(load: Load) -> None:
    data = load(**{**SMALL, "rows_per_day": 30_000})
    day, after = (split.slice(0, split.rows) for split in data.splits)
    score = after.numeric @ (day.labels - day.labels.mean()).T.dot(day.numeric)
    score = score / score.std() * 0.5
    for f, size in enumerate(data.schema.cardinalities):
        count = np.bincount(day.ids[:, f], minlength=size) + 20
        clicks = np.bincount(day.ids[:, f], day.labels, minlength=size) + 20 * 0.25
        score = score + np.log(clicks / count)[after.ids[:, f]]
    assert roc_auc_score(after.labels, score) > 0.68


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"days": 1}, r"data\.days=1 is not a whole number from 2 to 100000; type for instance data\.days=5\.$"),
        ({"max_cardinality": 3}, r"data\.max_cardinality=3 is not a whole number from 10 to 2147483647; type"),
        ({"ctr": 1.5}, r"data\.ctr=1\.5 is not a number from 1e-06 to 0\.999999; type"),
        ({"rows_per_day": 10**12}, r"data\.rows_per_day=1000000000000 is not a whole number from 1 to 10000000000"),
        ({"rows": 5}, r"data=synthetic has no key rows; keys are: rows_per_day"),
        ({"noise": True}, r"data\.noise=True is not a number"),
    ],
)
def test_options_that_cannot_work(options: dict[str, object], message: str, load: Load) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**{**SMALL, **options})


def test_data_that_the_disk_has_no_room_for_is_refused_before_it_is_made(load: Load) -> None:
    with pytest.raises(DataError, match=r"takes [\d,.]+ GB, of which .* free; type a smaller data\.rows_per_day or"):
        load(**{**SMALL, "rows_per_day": 10**10, "days": 100_000})


@pytest.mark.parametrize(("numeric", "fields"), [(0, 3), (2, 1)])
def test_other_shapes(numeric: int, fields: int, load: Load) -> None:
    batch = load(**SMALL, numeric=numeric, fields=fields).splits[1].slice(5, 10)
    assert (batch.numeric.shape, batch.ids.shape) == ((5, numeric), (5, fields))


def test_synthetic_lists_have_their_lengths_and_the_best_auc_is_that_of_the_true_probabilities(load: Load) -> None:
    data = load(**{**WITH_LISTS, "rows_per_day": 20_000})
    hidden = Generator(Synthetic(**{key: value for key, value in WITH_LISTS.items() if key != "name"})).hidden
    for day, split in enumerate(data.splits):
        batch = split.slice(0, split.rows)
        assert batch.jagged is not None
        lengths = batch.jagged.checked_lengths(data.schema).reshape(-1, 3)
        assert lengths.min(0).tolist() == [0, 0, 0] and lengths.max(0).tolist() == [6, 6, 9]
        assert lengths.mean(0) == pytest.approx([3, 3, 4.5], rel=0.03)
        true = sigmoid(hidden.logits(batch, day))
        assert data.best_auc[split.name] == pytest.approx(roc_auc_score(batch.labels, true), abs=2e-4)
        without = sigmoid(hidden.logits(Batch(batch.labels, batch.numeric, batch.ids), day))
        assert roc_auc_score(batch.labels, without) < data.best_auc[split.name] - 0.08, "the lists matter"


def test_the_summary_counts_values_and_names_shared_tables(load: Load) -> None:
    data = load(**WITH_LISTS)
    fields = summarise(data)["fields"]
    batch = data.splits[0].slice(0, 3000)
    assert [field["name"] for field in fields] == ["C1", "C2", "C3", "C4", "L1", "L2", "history"]
    assert [field["table"] for field in fields] == ["C1", "C2", "C3", "C4", "L1", "L2", "C4"]
    assert [(field["pooling"], field["longest"]) for field in fields[3:]] == [
        (None, 1), ("mean", 6), ("mean", 6), ("mean", 9),
    ]  # fmt: skip
    history = [split.slice(0, split.rows).jagged for split in data.splits]
    values = np.concatenate([each.of_field(2).values for each in history if each is not None])
    assert fields[-1]["mean_length"] == len(values) / data.rows
    assert fields[-1]["distinct"] == len(np.unique(values)) and len(batch) == 3000


def test_a_pooling_that_does_not_exist_is_refused(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"data\.pooling=median is not known; type .* one of: sum, mean, max"):
        load(**{**WITH_LISTS, "pooling": "median"})
