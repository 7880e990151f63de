from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.config import from_dict
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, map_arrays, open_dataset
from gbactl.data.readers import criteo_multihot
from gbactl.data.readers.criteo_multihot import CriteoMultihot
from gbactl.errors import DataError
from gbactl.simulation.simulated_run import run_virtual
from tests.support.samples import HOT, MlperfDay, write_mlperf_day

Load = Callable[..., Dataset]
ONE, LISTS = [f for f, size in enumerate(HOT) if size == 1], [f for f, size in enumerate(HOT) if size > 1]


def check_rows(data: Dataset, days: list[MlperfDay], buckets: int) -> None:
    at = 0
    every = [np.concatenate([day[2][f] for day in days]) % buckets for f in range(26)]
    for split in data.splits:
        batch, rows = split.slice(0, split.rows), slice(at, at + split.rows)
        assert batch.jagged is not None
        batch.jagged.checked_lengths(data.schema)
        assert (batch.labels == np.concatenate([day[0] for day in days])[rows, 0]).all()
        assert (batch.numeric == np.concatenate([day[1] for day in days])[rows]).all()
        assert (batch.ids == np.concatenate([every[f][rows] for f in ONE], axis=1)).all()
        for place, f in enumerate(LISTS):
            field = batch.jagged.of_field(place)
            assert (field.values.reshape(-1, HOT[f]) == every[f][rows]).all()
        at += split.rows
    assert at == sum(len(day[0]) for day in days)
    assert data.schema.cardinalities == tuple(int(every[f].max()) + 1 for f in (*ONE, *LISTS))


def test_each_three_files_are_a_day(load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(criteo_multihot, "CHUNK", 16)
    days = [write_mlperf_day(tmp_path / "d", day, rows) for day, rows in ((2, 30), (10, 45), (11, 16))]
    data = load(name="criteo_multihot", path=str(tmp_path / "d"), buckets=300)
    assert [(split.name, split.rows) for split in data.splits] == [("day0", 30), ("day1", 45), ("day2", 16)]
    assert not data.days_by_rows
    assert data.meta["field_names"] == [f"C{f + 1}" for f in (*ONE, *LISTS)]
    assert [field.max_length for field in data.schema.lists] == [HOT[f] for f in LISTS]
    assert {field.pooling for field in data.schema.lists} == {"sum"}
    check_rows(data, days, 300)
    parts = load(name="criteo_multihot", path=str(tmp_path / "d"), days=4)
    assert [split.rows for split in parts.splits] == [22, 23, 23, 23] and parts.days_by_rows
    check_rows(parts, days, 131072)


def test_a_single_day_is_cut_also_of_remote_files(load: Load, tmp_path: Path) -> None:
    day = write_mlperf_day(tmp_path / "d", 23, 21)
    data = load(name="criteo_multihot", path=[str(tmp_path / "d" / "day_23_*")])
    assert [split.rows for split in data.splits] == [3] * 7 and data.days_by_rows
    check_rows(data, [day], 131072)
    for path in (tmp_path / "d").iterdir():
        fsspec.filesystem("memory").pipe(f"/mlperf/{path.name}", path.read_bytes())
    check_rows(load(name="criteo_multihot", path="memory://mlperf"), [day], 131072)


@settings(max_examples=8, deadline=None)
@given(chunk=st.integers(1, 70), rows=st.integers(2, 60))
def test_the_size_of_a_chunk_changes_nothing(chunk: int, rows: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, found = tmp_path_factory.mktemp("days"), []
    write_mlperf_day(folder, 0, rows)
    for size in (chunk, 1 << 14):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(criteo_multihot, "CHUNK", size)
            built = CriteoMultihot(str(folder), days=2).build(folder, lambda stage, fraction: None)
        whole = map_arrays(folder, built.schema)
        assert whole.jagged is not None
        arrays = (whole.labels, whole.numeric, whole.ids, whole.jagged.offsets, whole.jagged.values)
        found.append([array.tobytes() for array in arrays])
    assert found[0] == found[1]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


WRONG: dict[str, tuple[str, Callable[[Path], Any], str]] = {
    "missing": ("labels.npy", Path.unlink, r"has no day_1_labels\.npy beside it; set data\.path to a folder"),
    "text": ("dense.npy", lambda path: path.write_text("label\n"), "is no array of NumPy"),
    "cut": ("dense.npy", _cut, "ends too early; fetch"),
    "empty": ("labels.npy", lambda path: path.write_bytes(b""), "is no array of NumPy"),
    "other rows": ("labels.npy", lambda path: np.save(path, np.ones((4, 1))), r"20 rows and .*labels\.npy 4; fetch"),
    "no rows": ("labels.npy", lambda path: np.save(path, np.ones((0, 1))), r"has 20 rows and .*labels\.npy 0; fetch"),
    "label": ("labels.npy", lambda path: np.save(path, np.full((20, 1), 2)), "not all 0 or 1"),
    "shape": ("labels.npy", lambda path: np.save(path, np.ones((20, 1, 2))), r"\[rows, columns\]"),
    "columns": ("dense.npy", lambda path: np.save(path, np.ones((20, 13), order="F")), r"\[rows, columns\]"),
    "NaN": ("dense.npy", lambda path: np.save(path, np.full((20, 13), np.nan)), "or NaN; fetch"),
    "fewer numbers": ("dense.npy", lambda path: np.save(path, np.ones((20, 12))), "other fields than the first day"),
    "names": ("sparse_multi_hot.npz", lambda path: np.savez(path, x=np.ones((20, 1))), r"arrays x\.npy; they have to"),
    "no archive": ("sparse_multi_hot.npz", _cut, "is damaged .*; fetch"),
    "no numbers": ("sparse_multi_hot.npz", lambda path: np.savez(path, **{"0": np.ones((20, 3))}), "of whole numbers"),
    "damaged": ("sparse_multi_hot.npz", _flip, "is damaged .*; fetch"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_wrong_with_a_file_is_one_sentence(
    kind: str, load: Load, caches: Callable[[], list[str]], tmp_path: Path
) -> None:
    name, spoil, told = WRONG[kind]
    for day in (0, 1):
        write_mlperf_day(tmp_path / "d", day, 20)
    spoil(tmp_path / "d" / f"day_1_{name}")
    with pytest.raises(DataError, match=told) as error:
        load(name="criteo_multihot", path=str(tmp_path / "d"))
    assert "\n" not in str(error.value) and "day_1" in str(error.value)
    assert caches() == []


def test_files_of_the_same_names_in_two_folders_are_two_days(load: Load, tmp_path: Path) -> None:
    for folder, rows in (("monday", 20), ("tuesday", 30)):
        write_mlperf_day(tmp_path / folder, 0, rows)
    data = load(name="criteo_multihot", path=[str(tmp_path / "monday"), str(tmp_path / "tuesday")])
    assert [split.rows for split in data] == [20, 30]


def test_another_file_is_refused(load: Load, tmp_path: Path) -> None:
    (tmp_path / "day_0.gz").touch()
    with pytest.raises(DataError, match=r"none of MLPerf's files; set data\.path to a folder"):
        load(name="criteo_multihot", path=str(tmp_path / "day_0.gz"))


def test_a_model_trains_on_it_and_learns_from_a_list(tmp_path: Path) -> None:
    for day in (0, 1):
        write_mlperf_day(tmp_path / "d", day, 1500, largest=20)
    data = {"name": "criteo_multihot", "path": str(tmp_path / "d"), "cache": str(tmp_path / "cache")}
    cfg = from_dict({
        "model": {"dim": 4, "hidden": [8]}, "train": {"global_batch": 32}, "optim": {"lr": 0.001}, "data": data,
        "cluster": {"name": "virtual", "workers": 2, "servers": 1}, "mode": {"name": "gba"},
    })  # fmt: skip
    result = run_virtual(cfg, open_dataset(prepare(data)), tmp_path)
    assert result["auc"] > 0.8, result
