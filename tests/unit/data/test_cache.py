from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.data import dataset
from gbactl.data.cache import cache_root, prepare
from gbactl.data.cache_writer import write_all
from gbactl.data.dataset import META, Batch, Jagged, Schema, Split, fingerprint, open_dataset
from gbactl.data.readers.criteo import Criteo
from gbactl.data.synthetic import Generator, Synthetic
from gbactl.errors import ConfigError, DataError, GbactlError

READER = """
from dataclasses import dataclass

import numpy as np
from gbactl.data.cache_writer import WrittenArrays, equal_days, write_all
from gbactl.data.dataset import Batch, Schema

@dataclass(frozen=True)
class Reader:
    path: str = "a"
    train: float = 0.5
    label: int = 1
    number: float = 0.5
    user: int = 8
    names: int = 2
    rows: int = 10
    sources_are: str = "[]"
    does: str = "pass"
    kind: str = "days"
    splits: str = "equal_days(10, 2)"
    tables: str = "()"

    def sources(self):
        return eval(self.sources_are)

    def build(self, folder, progress):
        if self.does != "pass":
            return eval(self.does)
        ids = np.array([[3, self.user]] * 10, np.int32)
        numbers = np.full((self.rows, 1), self.number, np.float32)
        write_all(folder, [Batch(np.full(10, self.label, np.uint8), numbers, ids)])
        schema = Schema(1, (4, 9), eval(self.tables))
        return WrittenArrays(self.kind, schema, eval(self.splits), ["x"], ["item", "user"][: self.names])
"""
SMALL = {"name": "synthetic", "rows_per_day": 500, "days": 2, "max_cardinality": 50}


@pytest.fixture
def options(cache: Path) -> dict[str, Any]:
    return {**SMALL, "cache": str(cache)}


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders that were really built."""
    folders: list[Path] = []
    original = Synthetic.build

    def counted(self: Synthetic, folder: Path, progress: Any) -> Any:
        folders.append(folder)
        return original(self, folder, progress)

    monkeypatch.setattr(Synthetic, "build", counted)
    return folders


def test_a_whole_cache_is_reused_and_other_options_make_another(options: dict[str, Any], builds: list[Path]) -> None:
    first = prepare(options)
    assert prepare(options) == first
    assert len(builds) == 1
    assert prepare({**options, "seed": 5}) != first
    assert len(builds) == 2


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.quick(6)
@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink, lambda p: p.write_bytes(b"")])
@pytest.mark.parametrize("name", ["labels.npy", "numeric.npy", "ids.npy"])
def test_damage_is_detected_and_rebuilt(
    damage: Callable[[Path], None], name: str, options: dict[str, Any], builds: list[Path]
) -> None:
    place = prepare(options)
    whole = (place / name).read_bytes()
    damage(place / name)
    with pytest.raises(DataError, match=name):
        open_dataset(place)
    assert prepare(options) == place
    assert (place / name).read_bytes() == whole
    assert len(builds) == 2


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_damaged_meta_is_rebuilt(content: str, options: dict[str, Any], builds: list[Path]) -> None:
    place = prepare(options)
    (place / META).write_text(content)
    with pytest.raises(DataError, match="prepare it again"):
        open_dataset(place)
    prepare(options)
    assert len(builds) == 2
    assert open_dataset(place).rows == 1000


def test_splits_of_rows_that_are_not_there_are_rebuilt(options: dict[str, Any], builds: list[Path]) -> None:
    place = prepare(options)
    meta = json.loads((place / META).read_text())
    meta["splits"][-1]["hi"] += 1
    (place / META).write_text(json.dumps(meta))
    with pytest.raises(DataError, match="names rows that the arrays do not have"):
        open_dataset(place)
    assert prepare(options) == place and len(builds) == 2
    assert open_dataset(place).rows == 1000


def test_a_flipped_byte_between_samples_is_found_by_the_full_check(
    options: dict[str, Any], builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "SAMPLE", 8)
    monkeypatch.setattr(dataset, "SAMPLES", 3)
    place = prepare(options)
    path = place / "numeric.npy"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    open_dataset(place)
    with pytest.raises(DataError, match=r"numeric\.npy is damaged"):
        open_dataset(place, full=True)
    prepare(options)
    assert len(builds) == 2


def test_a_build_that_is_cut_off_leaves_nothing(options: dict[str, Any], caches: Callable[[], list[str]]) -> None:
    def interrupt(stage: str, fraction: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(options, interrupt)
    assert caches() == []


def test_an_interrupted_generation_does_not_go_on(
    options: dict[str, Any], caches: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = Generator.chunk

    def counted(self: Generator, day: int, chunk: int, rows: int) -> Any:
        made.append(day)
        return original(self, day, chunk, rows)

    def interrupt(stage: str, fraction: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "chunk", counted)
    with pytest.raises(KeyboardInterrupt):
        prepare({**options, "days": 400, "rows_per_day": 2000}, interrupt)
    assert 1 <= len(made) < 200
    assert caches() == []


def test_what_a_killed_build_left_is_swept_away(options: dict[str, Any], caches: Callable[[], list[str]]) -> None:
    place = prepare(options)
    shutil.copytree(place, f"{place}.partial")
    (place.with_name(place.name + ".partial") / "junk").write_text("half")
    shutil.rmtree(place)
    assert prepare(options) == place
    assert caches() == [place.name]
    assert open_dataset(place, full=True).rows == 1000


def test_progress_ends_at_one_and_names_stages(options: dict[str, Any]) -> None:
    seen: list[tuple[str, float]] = []
    prepare(options, lambda stage, fraction: seen.append((stage, fraction)))
    assert {stage for stage, _ in seen} == {"generating", "checksums"}
    assert [f for s, f in seen if s == "generating"] == pytest.approx([0.5, 1.0])


def _launch(options: dict[str, Any], results: Any) -> None:
    stages: list[str] = []
    path = prepare(options, lambda stage, fraction: stages.append(stage))
    results.put((str(path), "generating" in stages))


def test_launchers_at_once_build_one_cache(options: dict[str, Any], caches: Callable[[], list[str]]) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_launch, args=(options, results)) for _ in range(3)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(10)
    assert len({path for path, _ in found}) == 1
    assert [built for _, built in found].count(True) == 1
    assert caches() == [Path(found[0][0]).name]


def test_the_key_is_the_content_not_the_path(
    criteo_lines: Callable[[int], list[str]], cache: Path, tmp_path: Path
) -> None:
    one, two = tmp_path / "a.tsv", tmp_path / "elsewhere.tsv"
    one.write_text("\n".join(criteo_lines(20)))
    shutil.copy(one, two)
    options = {"name": "criteo", "cache": str(cache)}
    place = prepare({**options, "path": str(one)})
    assert prepare({**options, "path": str(two)}) == place
    two.write_text("\n".join(criteo_lines(21)))
    assert prepare({**options, "path": str(two)}) != place


def test_a_large_file_is_known_by_size_time_and_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "SMALL", 10)
    path = tmp_path / "f"
    path.write_bytes(b"x" * 100)
    before = fingerprint(path)
    os.utime(path, ns=(1, 1))
    touched = fingerprint(path)
    path.write_bytes(b"x" * 99 + b"y")
    os.utime(path, ns=(1, 1))
    assert len({before, touched, fingerprint(path)}) == 3


def test_where_caches_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GBACTL_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root({}) == tmp_path / ".cache" / "gbactl" / "data"
    monkeypatch.setenv("GBACTL_CACHE", "/somewhere")
    assert cache_root({"cache": None}) == Path("/somewhere")
    assert cache_root({"cache": "/else"}) == Path("/else")


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written .*set data\.cache or GBACTL_CACHE"):
        prepare({**SMALL, "cache": str(tmp_path / "file" / "below")})


def test_unknown_data_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"avazu, criteo, criteo_multihot, frappe, .*, table, taobao"):
        prepare({"name": "kriteo"})


def test_a_folder_that_is_no_cache(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a complete data cache"):
        open_dataset(tmp_path)


@pytest.mark.parametrize("name", ["../labels.npy", "/etc/passwd", "..", "", "ids.npy/../ids.npy"])
def test_no_name_in_meta_leads_out_of_its_folder(options: dict[str, Any], name: str) -> None:
    place = prepare(options)
    meta = json.loads((place / "meta.json").read_text())
    for files in ({**meta["files"], name: meta["files"]["ids.npy"]}, {name: meta["files"]["ids.npy"]}, {}):
        (place / "meta.json").write_text(json.dumps({**meta, "files": files}))
        with pytest.raises(DataError, match="names files that are not those of a data cache"):
            open_dataset(place)


def test_an_array_that_leads_elsewhere_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    place = prepare(options)
    (place / "ids.npy").rename(tmp_path / "elsewhere.npy")
    (place / "ids.npy").symlink_to(tmp_path / "elsewhere.npy")
    with pytest.raises(DataError, match=r"ids\.npy leads out of its folder"):
        open_dataset(place)


def test_meta_holds_no_machine_path(options: dict[str, Any]) -> None:
    place = prepare(options)
    assert str(place.parent) not in json.dumps(open_dataset(place).meta)


def test_schema_offsets_follow_the_cardinalities() -> None:
    schema = Schema(3, (10, 5, 7))
    assert (schema.fields, schema.rows, schema.offsets.tolist()) == (3, 22, [0, 10, 15])
    assert schema.offsets.dtype == np.int64
    assert Criteo().buckets == 131072


def test_slices_are_views_that_cannot_be_written(options: dict[str, Any]) -> None:
    split = open_dataset(prepare(options)).splits[1]
    batch = split.slice(10, 20)
    assert np.shares_memory(batch.ids, split.whole.ids)
    with pytest.raises(ValueError, match="read-only"):
        batch.ids[0, 0] = 1
    taken = split.take(np.array([3, 1, 3]))
    assert taken.numeric.tolist() == [split.slice(i, i + 1).numeric[0].tolist() for i in (3, 1, 3)]


@pytest.mark.parametrize(("lo", "hi"), [(-1, 2), (2, 1), (0, 4)])
def test_a_slice_outside_is_refused(lo: int, hi: int) -> None:
    split = Split("d", Batch(np.zeros(3, np.uint8), np.zeros((3, 1), np.float32), np.zeros((3, 2), np.int32)))
    with pytest.raises(IndexError):
        split.slice(lo, hi)
    with pytest.raises(IndexError):
        split.take(np.array([0, -1]))
    with pytest.raises(IndexError):
        split.take(np.array([3]))


@pytest.fixture
def foreign(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Options of a reader in a module of the user's own."""
    (tmp_path / "foreign_reader.py").write_text(READER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign_reader", raising=False)
    return {"name": "mine", "target": "foreign_reader.Reader", "cache": str(cache)}


def test_a_cache_of_a_foreign_reader_is_made_again_for_other_options_and_other_code(
    foreign: dict[str, Any], tmp_path: Path
) -> None:
    first = prepare(foreign)
    assert open_dataset(first).rows == 10
    assert prepare({**foreign, "path": "b"}) == first, "the content of files counts, not where they are"
    assert prepare({**foreign, "train": 0.6}) != first, "of gbactl's readers it is a path"
    (tmp_path / "foreign_reader.py").write_text(f"{READER}\n# as other numbers\n")
    assert prepare(foreign) != first


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"sources_are": "'a.csv'"}, r"foreign_reader\.Reader\.sources returns 'a\.csv', not a list of paths; gbactl"),
        ({"sources_are": "['a.csv']"}, r"foreign_reader\.Reader\.sources returns \['a\.csv'\], not a list of paths"),
        (
            {"sources_are": "self.no"},
            r"data\.target=foreign_reader\.Reader fails \(AttributeError: .*reader\.py:\d+\)",
        ),
        (
            {"does": "None"},
            r"foreign_reader\.Reader\.build returns None, not gbactl\.data\.cache_writer\.Writ",
        ),
        (
            {"does": "[][3]"},
            r"target=foreign_reader\.Reader fails \(IndexError: list index .*, in .*reader\.py:\d+",
        ),
        ({"does": "open('/no/file')"}, r"fails \(FileNotFoundError: .*'/no/file', in .*foreign_reader\.py:\d+\)\."),
        (
            {"does": "WrittenArrays('days', Schema(0, (2,)), [], [], [])"},
            r"^foreign_reader\.Reader writes no labels\.npy; gbactl\.data\.cache_writer\.write_all writes all arrays",
        ),
        (
            {"does": "np.save(folder / 'labels.npy', [0]) or WrittenArrays('days', Schema(0, (2,)), [], [], [])"},
            r"^foreign_reader\.Reader writes labels\.npy of int64 and shape \[1\], not uint8 with 1 axes\.",
        ),
        (
            {"does": "WrittenArrays('days', None, [], [], [])"},
            r"returns WrittenArrays with a value of a wrong type",
        ),
        ({"kind": "day"}, r"Reader writes data of kind 'day', not one of days, splits, parts\."),
        ({"splits": "[('a', 0, 11)]"}, r"Reader writes 10 rows, and says that a has those from 0 to 11\."),
        ({"splits": "[('a', 0, 10), ('b', 10, 10)]"}, r"^foreign_reader\.Reader writes no rows of b; leave it out\.$"),
        (
            {"kind": "splits", "splits": "[('train', 0, 5), ('test', 5, 10)]"},
            r"Reader writes 2 splits; data of kind splits have three: train, validation and test\.$",
        ),
        ({"tables": "(0,)"}, r"Reader gives the tables \(0,\) to its 2 fields; each field needs the number"),
        ({"tables": "(0, 2)"}, r"Reader gives the tables \(0, 2\) to its 2 fields; .*, from 0 on without gaps\.$"),
        ({"splits": "[5, 10]"}, r"returns WrittenArrays with a value of a wrong type \(TypeError: cannot unpack .*int"),
    ],
)
def test_a_foreign_reader_that_breaks_its_contract(
    foreign: dict[str, Any], caches: Callable[[], list[str]], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(GbactlError, match=told) as raised:
        prepare({**foreign, **given})
    assert caches() == [] and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"labels": np.array([0.5, 1])}, r"The value 0\.5 cannot be written to labels\.npy, which is of uint8\."),
        ({"labels": np.array([np.nan, 1])}, r"The value nan cannot be written to labels\.npy, which is of uint8\."),
        ({"labels": np.array([0, 256])}, r"The value 256 cannot be written to labels\.npy"),
        ({"ids": np.array([[3], [2**32 + 5]])}, r"The value 4294967301 cannot be written to ids\.npy, which is of"),
        ({"ids": np.zeros((2, 3), np.int32)}, r"rows of the shapes .*'ids': \(3,\).*, the first chunk .*'ids': \(1,\)"),
        (
            {"jagged": Jagged(1, np.array([0, 1]), np.zeros(1, np.int32))},
            r"^A chunk has 2 offsets for 2 lists; it needs 3\.$",
        ),
    ],
)
def test_a_chunk_that_its_arrays_cannot_hold_is_not_written_as_something_else(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    lists = Jagged(1, np.array([0, 1, 1]), np.array([7]))
    good = Batch(np.array([True, False]), np.ones((2, 1)), np.array([[1], [2**31 - 1]]), lists)
    assert write_all(tmp_path, [good, good]) == 4, "of other types, but nothing changes"
    assert np.load(tmp_path / "ids.npy").tolist() == [[1], [2**31 - 1]] * 2
    with pytest.raises(DataError, match=told):
        write_all(tmp_path, [good, replace(good, **change)])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"label": 2}, r"a label other than 0 and 1, in row 0\."),
        ({"number": np.nan}, "a numeric feature that is NaN or infinite, in row 0"),
        ({"user": 9}, "an id of the field user that is not from 0 to 8, in row 0"),
        ({"names": 1}, r"2 columns of ids and 1 names of fields, but its schema has 1 .* and 2 names of fields\."),
        ({"rows": 9}, r"10 labels, 9 rows of numeric features and 10 rows of ids\."),
    ],
)
def test_arrays_of_a_foreign_reader_that_its_schema_does_not_allow(
    foreign: dict[str, Any], caches: Callable[[], list[str]], given: dict[str, Any], told: str
) -> None:
    with pytest.raises(DataError, match=rf"^foreign_reader\.Reader writes .*{told}"):
        prepare({**foreign, **given})
    assert caches() == []
