"""Files and manifests: read by others, whole or refused by name, and the one before is used instead."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from gbactl.checkpoint import tensor_file_writer
from gbactl.checkpoint.folder import CheckpointFolder, FileEntry, _sum, check, write_manifest
from gbactl.checkpoint.publishing import DENSE, Publication
from gbactl.checkpoint.restore import load_newest, load_shard
from gbactl.checkpoint.tensor_file_writer import TensorFileWriter, write_tensors
from gbactl.errors import CheckpointError, NotFiniteError
from gbactl.launch import resume
from gbactl.store.shard import Shard
from tests.support.checkpoint_files import fill, save, shards_of, spec

TENSORS = {
    "rows": np.arange(12, dtype=np.float32).reshape(4, 3), "row_counts": np.arange(4, dtype=np.uint32),
    "index": np.array([1, 5], np.int32), "none": np.empty((0, 3), np.float32), "step": np.array([7], np.int64),
}  # fmt: skip
SAME = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)


def test_the_library_reads_what_was_written_in_pieces(tmp_path: Path) -> None:
    file = TensorFileWriter(tmp_path / "a.safetensors", tensor_file_writer.layout_of(TENSORS), {"step": "7"})
    for rows in (slice(0, 1), slice(1, 4)):
        file.add("rows", TENSORS["rows"][rows])
        file.add("row_counts", TENSORS["row_counts"][rows])
    for name in ("index", "step"):
        file.add(name, TENSORS[name])
    assert not (tmp_path / "a.safetensors").exists()
    written = file.finish()
    found = load_file(tmp_path / "a.safetensors")
    assert set(found) == set(TENSORS)
    for name, values in TENSORS.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
    assert (tmp_path / "a.safetensors").stat().st_size == written.bytes
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]


def test_in_half_the_bytes_it_is_rounded_to_bf16(tmp_path: Path) -> None:
    values = np.array([[1.0, 1.00390625, -3.1415927], [2.0**-100, np.inf, np.nan]], np.float32)
    tensors = {"rows": values, "row_counts": TENSORS["row_counts"]}
    layout = tensor_file_writer.with_bf16(tensor_file_writer.layout_of(tensors), tensors)
    file = TensorFileWriter(tmp_path / "a.safetensors", layout, {})
    for row in (0, 1):
        file.add("rows", values[row : row + 1])
    file.add("row_counts", tensors["row_counts"])
    file.finish()
    found = load_file(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(found["row_counts"], tensors["row_counts"])
    assert (found["rows"].dtype, found["rows"].nbytes) == (np.uint16, values.nbytes // 2)
    expected = np.array([[1.0, 1.0, -3.140625], [2.0**-100, np.inf, np.nan]])  # 1 + 2^-8 is half-way: to even
    np.testing.assert_array_equal(tensor_file_writer.from_bf16(found["rows"]), expected)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("fp32", [3.4e38, 1.0], ""), ("fp32", [1.0, np.nan], "rows"), ("fp32", [-np.inf, 1.0], "rows"),
        ("bf16", [1.0, -3e38], ""), ("bf16", [np.nan, 1.0], "rows"), ("bf16", [1.0, -np.inf], "rows"),
        ("bf16", [3.4028e38, 1.0], "rows"),  # beyond what bf16 can hold, it is rounded to infinity
    ],
)  # fmt: skip
def test_a_file_says_which_tensor_is_not_finite(tmp_path: Path, dtype: str, values: list[float], expected: str) -> None:
    """Integers with the bits of NaN are not."""
    odd = np.array([0x7FC00000, 0xFFFFFFFF], np.uint32)
    tensors = {"row_counts": odd, "index": odd.view(np.int32), "rows": np.array(values, np.float32)}
    layout = tensor_file_writer.with_bf16(tensor_file_writer.layout_of(tensors), ["rows"] if dtype == "bf16" else [])
    file = TensorFileWriter(tmp_path / "S0.safetensors", layout, {})
    for name, array in tensors.items():
        file.add(name, array)
    assert file.not_finite == expected
    written = file.finish()
    entry = FileEntry("S0.safetensors", 0, written.bytes, 2, written.sums)
    if not expected:
        check(tmp_path / "S0.safetensors", entry)
        return
    with pytest.raises(NotFiniteError, match=r"S0\.safetensors is not finite: rows holds infinities or NaN"):
        check(tmp_path / "S0.safetensors", entry)


def test_a_checkpoint_that_is_not_finite_is_not_loaded(two: Path) -> None:
    """Of an older gbactl, which did not look: the one before is used, for a run and for a server that comes back."""
    shards = shards_of(2)
    shards[1].table[2, 1] = np.nan
    save(two, shards, 3)
    told: list[str] = []
    folder = CheckpointFolder(two)
    assert folder.newest(told.append).last.number == 2
    found = load_newest(Shard(spec(1, 2)), folder, told.append)
    assert found is not None and found.number == 2
    assert len(told) == 2 and all("S1.safetensors is not finite: rows" in why for why in told)
    with pytest.raises(NotFiniteError, match="not finite"):
        resume.find(str(two / "cut-000003"))


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, pwrite = 150, os.pwrite

    def write_at(fd: int, data: memoryview, at: int) -> int:
        if at >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(fd, data[: room - at], at)

    monkeypatch.setattr(os, "pwrite", write_at)
    with pytest.raises(OSError, match="No space left"):
        write_tensors(tmp_path / "a.safetensors", TENSORS, {})
    assert list(tmp_path.iterdir()) == []


def test_a_file_takes_its_room_before_its_first_byte_and_leaves_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_at(fd: int, data: memoryview, at: int) -> int:
        written.append(os.fstat(fd).st_blocks * 512)
        return pwrite(fd, data, at)

    written, pwrite = list[int](), os.pwrite
    monkeypatch.setattr(os, "pwrite", write_at)
    free = shutil.disk_usage(tmp_path).free
    expected = r"it needs [\d,]+ bytes; [\d,]+ are free there, of which [\d,]+ are kept for"
    with pytest.raises(OSError, match=expected) as told:
        write_tensors(tmp_path / "a.safetensors", TENSORS, {}, spare=2 * free)
    assert told.value.errno == errno.ENOSPC
    assert written == [] and list(tmp_path.iterdir()) == []
    size = write_tensors(tmp_path / "a.safetensors", TENSORS, {}, spare=1 << 20).bytes
    assert written[0] >= size == (tmp_path / "a.safetensors").stat().st_size


def test_what_is_no_complete_checkpoint_is_swept(two: Path) -> None:
    for name in ("cut-000003", ".gone-cut-000001", "other"):
        (two / name).mkdir()
        (two / name / ".S0.safetensors.partial").touch()
    CheckpointFolder(two).sweep()
    assert sorted(path.name for path in two.iterdir()) == ["cut-000001", "cut-000002", "other"]
    CheckpointFolder(two / "nowhere").sweep()


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rowwise_adagrad", "sgd"])
@pytest.mark.parametrize(("before", "after"), [(1, 1), (1, 3), (2, 2), (3, 2), (2, 5)])
def test_rows_are_dealt_anew(tmp_path: Path, before: int, after: int, optimizer: str) -> None:
    saved, wanted = shards_of(before, optimizer=optimizer), shards_of(after, optimizer=optimizer)
    for shard in (*saved, *wanted):
        fill(shard)
    save(tmp_path, saved)
    chain = CheckpointFolder(tmp_path).newest()
    for expected in wanted:
        loaded = Shard(spec(expected.spec.shard, after, optimizer=optimizer))
        load_shard(loaded, chain)
        assert loaded.checksum() == expected.checksum()
        assert (loaded.version, loaded.dense_block().step) == (3, 4)


@pytest.mark.parametrize(
    ("before", "after"), [((3, 1), (2, 2)), ((3, 1), (3, 3)), ((2, 2), (3, 1)), ((3, 3), (3, 2)), ((3, 1), (3, 1))]
)
def test_the_dense_part_is_dealt_anew(tmp_path: Path, before: tuple[int, int], after: tuple[int, int]) -> None:
    """(servers, those that hold some of it); a lost server finds its slice, too, where others had it."""
    saved, wanted = shards_of(before[0], dense_shards=before[1]), shards_of(after[0], dense_shards=after[1])
    for shard in (*saved, *wanted):
        fill(shard)
    save(tmp_path, saved)
    for expected in wanted:
        loaded, lost = Shard(expected.spec), Shard(expected.spec)
        load_shard(loaded, CheckpointFolder(tmp_path).newest())
        assert loaded.checksum() == expected.checksum() and loaded.dense_block().step == 4
        assert load_newest(lost, CheckpointFolder(tmp_path), pytest.fail) is not None
        assert lost.checksum() == expected.checksum() and lost.dense_block().step == 4


def test_a_base_and_what_came_after_it_are_merged(tmp_path: Path) -> None:
    shards, expected = shards_of(2), shards_of(2)
    for shard in shards:
        fill(shard, 0)
    save(tmp_path, shards, 1)
    for shard, both in zip(shards, expected, strict=True):
        fill(both, 0)
        fill(shard, 1)
        for name, values in both.rows.arrays.items():
            values[[1, 3]] = shard.rows.arrays[name][[1, 3]]
        both.dense_block().load_state(shard.dense_state())
    save(tmp_path, shards, 2, base=["cut-000001"], index=[np.array([1, 3], np.int32)] * 2)
    for shard in expected:
        loaded = Shard(spec(shard.spec.shard, 2))
        load_shard(loaded, CheckpointFolder(tmp_path).newest())
        assert loaded.checksum() == shard.checksum()


def test_rows_that_were_never_saved_are_as_they_began(tmp_path: Path) -> None:
    shards = shards_of(1)
    initial = shards[0].table.copy()
    fill(shards[0])
    save(tmp_path, shards, index=[np.array([4], np.int32)])
    loaded = Shard(spec(0, 1))
    load_shard(loaded, CheckpointFolder(tmp_path).newest())
    np.testing.assert_array_equal(loaded.table[4], shards[0].table[4])
    np.testing.assert_array_equal(np.delete(loaded.table, 4, 0), np.delete(initial, 4, 0))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"optimizer": "sgd"}, "row_moment.first.*, not rows"),
        ({"rows": 12}, "has a table of 11 rows of 3 values, but this run has 12 rows of 3"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    save(tmp_path, shards_of(1))
    with pytest.raises(CheckpointError, match=message):
        load_shard(Shard(spec(0, 1, **more)), CheckpointFolder(tmp_path).newest())


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two checkpoints."""
    shards = shards_of(2)
    for number in (1, 2):
        for shard in shards:
            fill(shard, number)
        save(tmp_path, shards, number, step=number)
    return tmp_path


@SAME
@given(data=st.data())
def test_a_flipped_bit_is_found_and_the_one_before_is_used(two: Path, data: st.DataObject) -> None:
    path = two / "cut-000002" / data.draw(st.sampled_from(["S0.safetensors", "S1.safetensors", "manifest.json"]))
    good = path.read_bytes()
    place, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
    bad = bytearray(good)
    bad[place] ^= 1 << bit
    refused_by_name(two, path, good, bytes(bad))


@SAME
@given(data=st.data())
def test_a_torn_file_is_found_and_the_one_before_is_used(two: Path, data: st.DataObject) -> None:
    path = two / "cut-000002" / data.draw(st.sampled_from(["S0.safetensors", "S1.safetensors", "manifest.json"]))
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 2))
    refused_by_name(two, path, good, data.draw(st.sampled_from([good[:at], good[:at] + bytes(len(good) - at)])))


def refused_by_name(folder: Path, path: Path, good: bytes, bad: bytes) -> None:
    """Of a JSON file a change may mean the same; then it is good."""
    told: list[str] = []
    path.write_bytes(bad)
    try:
        newest = CheckpointFolder(folder).newest(told.append).last.number
    finally:
        path.write_bytes(good)
    if path.suffix == ".json" and newest == 2:
        assert json.loads(bad) == json.loads(good)
    else:
        assert bad == good or (newest == 1 and path.name in told[0])


def test_a_foreign_file_is_refused(two: Path) -> None:
    path = two / "cut-000002" / "S0.safetensors"
    path.write_bytes((two / "cut-000001" / "S0.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match=r"cut-000002/S0\.safetensors is damaged"):
        CheckpointFolder(two).verified("cut-000002")
    path.unlink()
    with pytest.raises(CheckpointError, match=r"S0\.safetensors"):
        CheckpointFolder(two).verified("cut-000002")
    path.symlink_to(two / "cut-000001" / "S0.safetensors")
    with pytest.raises(CheckpointError, match=r"S0\.safetensors"):
        CheckpointFolder(two).verified("cut-000002")


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "S0.safetensors/../x", "S0", "", "S-1.safetensors"])
def test_no_name_in_a_manifest_leads_out_of_its_folder(two: Path, name: str) -> None:
    path = two / "cut-000002" / "manifest.json"
    for change in ({"files": name}, {"base": [name]}):
        values = json.loads(path.read_text())
        values.pop("sum")
        values["files"][0]["name"] = change.get("files", "S0.safetensors")
        values["base"] = change.get("base", [])
        (two / "cut-000002" / "manifest.json").write_text(json.dumps({**values, "sum": _sum(values)}))
        with pytest.raises(CheckpointError, match=r"manifest\.json is damaged \(it names"):
            CheckpointFolder(two).chain("cut-000002")


@pytest.mark.parametrize("name", ["cut-000002", "cut-000002/manifest.json", "cut-000002/S0.safetensors"])
def test_what_leads_out_of_the_folder_is_no_checkpoint(two: Path, tmp_path: Path, name: str) -> None:
    """Good as it is, it lies elsewhere."""
    CheckpointFolder(two).verified("cut-000002")
    elsewhere = tmp_path / "elsewhere"
    (two / name).rename(elsewhere)
    (two / name).symlink_to(elsewhere)
    with pytest.raises(CheckpointError, match=r"is damaged \(it leads out of its folder\)"):
        CheckpointFolder(two).verified("cut-000002")


def test_a_recovering_server_takes_the_newest_good_one(two: Path) -> None:
    (two / "cut-000002" / "S1.safetensors").write_bytes(b"")
    told: list[str] = []
    other, shard, third = Shard(spec(0, 2)), Shard(spec(1, 2)), Shard(spec(0, 3))
    folder = CheckpointFolder(two)
    assert load_newest(other, folder, told.append) is not None and other.version == 2, "its own files are good"
    assert not told
    for each in (shard, third):  # where there were other servers, a server loads rows of all of them
        found = load_newest(each, folder, told.append)
        assert found is not None and (found.number, each.version) == (1, 1)
        assert "S1.safetensors" in told.pop()
    assert load_newest(shard, CheckpointFolder(two / "nowhere"), told.append) is None


def test_a_recovering_server_takes_no_damaged_dense_part(two: Path) -> None:
    """Which workers told."""
    made, path = save(two, shards_of(2), 3), two / "cut-000003"
    written = write_tensors(path / DENSE, {"dense.step": TENSORS["step"]}, {})
    files = [*made.files, FileEntry(DENSE, -1, written.bytes, 0, written.sums)]
    write_manifest(path, dataclasses.replace(made, home="workers", files=files))
    (path / DENSE).write_bytes(bytes(written.bytes))
    told: list[str] = []
    found = load_newest(Shard(spec(0, 2)), CheckpointFolder(two), told.append)
    assert found is not None and found.number == 2 and DENSE in told[0]


@pytest.mark.parametrize("shards", [2, 3])
def test_one_of_another_run_is_refused_by_name_and_the_one_before_is_used(two: Path, shards: int) -> None:
    """It fits, as a whole; its number of servers says nothing about whose it is."""
    foreign = shards_of(shards)
    for shard in foreign:
        fill(shard, 3)
    save(two, foreign, 3, identity="of another seed")
    told: list[str] = []
    folder, shard = CheckpointFolder(two, "same"), Shard(spec(1, 2))
    assert folder.newest(told.append).last.number == 2
    found = load_newest(shard, folder, told.append)
    assert found is not None and (found.number, shard.version) == (2, 2)
    assert len(told) == 2 and all("cut-000003 is of another run" in why for why in told)
    assert CheckpointFolder(two).newest().last.number == 3, "where nobody knows whose they should be"


def test_pruning_keeps_what_others_rest_on(tmp_path: Path) -> None:
    shards, index = shards_of(1), [np.array([0], np.int32)]
    save(tmp_path, shards, 1)
    save(tmp_path, shards, 2)
    save(tmp_path, shards, 3, base=["cut-000002"], index=index)
    save(tmp_path, shards, 4, base=["cut-000002", "cut-000003"], index=index)
    (tmp_path / "cut-000000").mkdir()  # torn
    (tmp_path / "cut-000005").mkdir()  # being written
    (tmp_path / ".gone-cut-000000" / "part").mkdir(parents=True)  # whoever took it away was killed
    folder = CheckpointFolder(tmp_path)
    assert folder.next_number() == 6
    folder.keep(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"cut-00000{number}" for number in (2, 3, 4, 5)]
    assert folder.newest().last.number == 4
    (tmp_path / "cut-000003" / "S0.safetensors").unlink()
    assert folder.newest().last.number == 2, "the one that it rests on is as important as itself"


def test_a_removal_that_failed_is_done_by_the_next_pruning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CheckpointFolder(tmp_path)
    for number in (1, 2):
        save(tmp_path, shards_of(1), number)
    with monkeypatch.context() as dying:
        dying.setattr("gbactl.checkpoint.folder.shutil.rmtree", lambda *_, **__: None)
        folder.keep(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".gone-cut-000001", "cut-000002"]
    folder.keep(1)
    assert [path.name for path in tmp_path.iterdir()] == ["cut-000002"]


def test_a_name_is_given_to_what_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file before its name, its name before the manifest, the manifest before its own, and that before the cut's:
    after a power cut there is a whole checkpoint or none."""
    done: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def synced(fd: int) -> None:
        fsync(fd)
        done.append(("on the disk", Path(os.readlink(f"/proc/self/fd/{fd}")).name))

    def renamed(path: Path, target: Path) -> Path:
        done.append(("named", target.name))
        return replace(path, target)

    (shard,) = shards_of(1)
    made = dataclasses.replace(save(tmp_path / "other", [shard]), files=[])
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    folder = CheckpointFolder(tmp_path / "checkpoints")
    write_tensors(folder.begin(1) / "S0.safetensors", shard.rows.arrays, {})
    publication = Publication(folder, made, {"dense.step": TENSORS["step"]}, 1)
    publication.wait()
    assert publication.error == ""
    expected: list[tuple[str, str]] = []
    for name in ("S0.safetensors", "dense.safetensors", "manifest.json"):
        expected += [("on the disk", f".{name}.partial"), ("named", name), ("on the disk", "cut-000001")]
    assert done == [*expected, ("on the disk", "checkpoints")]


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    assert CheckpointFolder(tmp_path / "none").names() == []
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        CheckpointFolder(tmp_path / "none").newest()
