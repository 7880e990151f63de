"""Subset of the data for a comparison of modes: before the switch, after it, and judged, in whole global batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gbactl.advise import data_subset as sampling
from gbactl.advise.data_subset import (
    BASE,
    PARTS,
    DataSubset,
    SwitchSplits,
    choose_subset,
    has_batches,
    samples_that_fit,
)
from gbactl.config import TrainConfig
from gbactl.data.dataset import Batch, Dataset, open_dataset
from gbactl.errors import UsageError
from tests.support import small_data

TRAIN = TrainConfig(global_batch=64)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def joined(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([batch.ids for batch in batches])


def test_rows_of_days_are_consecutive_up_to_the_switch_and_after_it(cache: Path) -> None:
    path = small_data.prepared(cache, 1000, 5)
    found = choose_subset(path, TRAIN, 350, 640)
    assert found == DataSubset(path, BASE * 256, 128, PARTS, 256, 640)
    taken, whole = found.dataset(), open_dataset(path)
    assert taken.kind == "parts" and len(taken.splits) == 2 + PARTS + 1
    before = joined([split.whole for split in taken.splits[:2]])
    assert np.array_equal(before, joined([whole.splits[n].whole for n in (1, 2)])[-len(before) :])
    after = joined([split.whole for split in taken.splits[2:-1]])
    assert np.array_equal(after, whole.splits[3].whole.ids[: len(after)])
    assert np.array_equal(taken.splits[-1].whole.labels, whole.splits[4].whole.labels[:256])


def test_two_days_are_divided_and_days_can_be_left_out(cache: Path) -> None:
    path = small_data.prepared(cache, 1000, 5)
    two = SwitchSplits.divide(open_dataset(path), 1)
    assert [split.rows for split in (*two.before, two.after, two.judge)] == [800, 200, 1000]
    assert len(SwitchSplits.divide(open_dataset(path), 2).before) == 1
    assert choose_subset(path, replace(TRAIN, days=1), 10_000, 10_000).trained == 128


def test_the_evaluation_data_are_limited(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_data.prepared(cache, 1000, 5)
    whole = choose_subset(path, TRAIN, 350, 640)
    monkeypatch.setattr(sampling, "MOST_JUDGED", 100)
    limited = choose_subset(path, TRAIN, 350, 640)
    assert limited.judged == limited.judge().rows == 100
    assert limited.fingerprint == limited.dataset().fingerprint != whole.fingerprint


@pytest.mark.parametrize(("before", "after", "enough"), [(46, 15, True), (47, 15, False), (46, 16, False)])
def test_data_may_have_too_few_global_batches(cache: Path, before: int, after: int, enough: bool) -> None:
    assert has_batches(small_data.prepared(cache, 1000, 5), TRAIN, before, after) == enough  # 3,000 and 1,000 samples


def test_as_many_samples_fit_as_the_time_and_the_base_allow() -> None:
    assert samples_that_fit(100, 2, 0.5, 10**6) == 100 / (2 + BASE * 0.5)
    assert samples_that_fit(100, 2, 0.5, 40) == (100 - 40 * 0.5) / 2


def test_a_training_and_a_test_file_are_sampled_at_random(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    path = small_data.prepared(cache, 1200, 3)

    def as_files(place: Path) -> Dataset:
        return replace(open_dataset(place), kind="splits")

    monkeypatch.setattr(sampling, "opened", as_files)
    found = choose_subset(path, TRAIN, 300, 300)
    taken, train = found.dataset(), as_files(path).splits[0]
    base = taken.splits[0].whole.ids
    assert not np.array_equal(base, train.whole.ids[: len(base)])
    rows = {row.tobytes() for row in train.whole.ids[:1066]}
    assert all(row.tobytes() in rows for row in base)
    assert np.array_equal(base, found.dataset().splits[0].whole.ids), "the same rows in every process"


def test_few_steps_make_fewer_parts_and_none_is_told(cache: Path) -> None:
    path = small_data.prepared(cache, 1000, 3)
    assert (found := choose_subset(path, replace(TRAIN, global_batch=600), 5000, 1)).parts == 1
    assert found.timed == found.part == 600
    with pytest.raises(UsageError, match=r"type a smaller train\.global_batch"):
        choose_subset(path, replace(TRAIN, global_batch=1001), 5000, 1)


def test_times_are_simulated_on_the_rows_after_the_switch(cache: Path) -> None:
    path = small_data.prepared(cache, 1000, 4)
    timed = choose_subset(path, TRAIN, 64, 640).timed_dataset()
    assert (timed.kind, timed.splits[0].rows) == ("days", 640)
    assert np.array_equal(timed.splits[0].whole.ids, open_dataset(path).splits[2].whole.ids[:640])
