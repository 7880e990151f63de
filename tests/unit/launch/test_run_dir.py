"""The run directory: one a run, never shared, its files whole or not there."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import yaml

from gbactl.atomic_files import CONFIG, RESULT, ROOM, plain, read_result, write_result
from gbactl.config import RunConfig, from_dict
from gbactl.errors import NoRoomError, TrackingError, UsageError
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.run_dir import find
from gbactl.tracking.mlflow_store import connect, ensure_store


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_by_default_every_run_has_its_own(here: Path) -> None:
    made = {run_dirs.create(RunConfig(seed=3)) for _ in range(20)}
    assert len(made) == 20
    for path in made:
        assert path.parent == here / "runs"
        assert "-sync-s3-" in path.name
        assert (path / "logs").is_dir()


def test_the_resolved_configuration_is_in_it() -> None:
    cfg = from_dict(
        {"seed": 5, "mode": {"name": "gba", "iota": float("inf")}, "data": {"name": "synthetic", "days": 3}}
    )
    path = run_dirs.create(cfg)
    assert from_dict(yaml.safe_load((path / CONFIG).read_text())) == cfg


def test_a_named_directory(here: Path) -> None:
    cfg = RunConfig(run_dir="deep/er/mine")
    assert run_dirs.create(cfg) == here / "deep/er/mine"
    with pytest.raises(UsageError, match="deep/er/mine already holds a run; type another run_dir= or remove it"):
        run_dirs.create(cfg)


def test_a_directory_that_is_there_and_empty_is_taken(here: Path) -> None:
    (here / "mine").mkdir()
    assert run_dirs.create(RunConfig(run_dir="mine")) == here / "mine"


def test_the_files_of_an_earlier_start_get_numbered_names(here: Path) -> None:
    """Also the decisions of switch=auto, which result.json counts."""
    for name in ("auto.jsonl", "config.yaml", "events.log", "norms.jsonl", "result.json"):
        (here / name).touch()
    (here / "logs").mkdir()
    run_dirs.set_aside(here)
    numbered = ["auto.1.jsonl", "config.1.yaml", "events.1.log", "logs.1", "norms.1.jsonl", "result.1.json"]
    assert sorted(path.name for path in here.iterdir()) == numbered


def test_the_result_is_written_into_its_room() -> None:
    path = run_dirs.create(RunConfig())
    room = (path / ROOM).stat()
    assert room.st_blocks * 512 >= run_dirs.ROOM_BYTES
    write_result(path, {"auc": 0.5})
    written = (path / RESULT).stat()
    assert not (path / ROOM).exists() and written.st_ino == room.st_ino
    assert read_result(path) == {"auc": 0.5} and written.st_size < 100
    write_result(path, {"auc": 0.6})
    assert read_result(path) == {"auc": 0.6}


def test_a_result_that_has_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = run_dirs.create(RunConfig())
    monkeypatch.setattr(Path, "replace", full)
    expected = rf"{path}/result.json could not be written \(No space left on device; [\d,]+ bytes are free there\)"
    with pytest.raises(NoRoomError, match=expected):
        write_result(path, {"auc": 0.5})
    assert not [each for each in path.iterdir() if "result" in each.name]


def test_a_directory_that_cannot_be_made(here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(UsageError, match=r"The run directory file/mine cannot be made .*type another run_dir="):
        run_dirs.create(RunConfig(run_dir="file/mine"))


def test_the_result_is_written_whole(here: Path) -> None:
    written = here / "result.json"
    write_result(here, {"auc": 0.75, "phases": []})
    assert json.loads(written.read_text()) == {"auc": 0.75, "phases": []}
    assert [path.name for path in here.iterdir()] == ["result.json"]


def test_numbers_that_json_cannot_say_become_null() -> None:
    found = plain({"auc": float("nan"), "phases": [{"eps": float("inf"), "n": 3}], "x": "nan"})
    assert found == {"auc": None, "phases": [{"eps": None, "n": 3}], "x": "nan"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "events.log").write_bytes(b"")
    return folder


@pytest.fixture
def store(tmp_path: Path) -> str:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    ensure_store(uri)
    return uri


def test_a_directory_or_the_log_in_it(tmp_path: Path) -> None:
    there = run(tmp_path / "here")
    assert find(str(there)) == find(str(there / "events.log")) == there


def test_the_beginning_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, _ = run(tmp_path / "runs" / "20260101-a"), run(tmp_path / "runs" / "20260102-b")
    assert find("20260101") == one
    with pytest.raises(UsageError, match=r"2026 is the beginning of 2 runs \(20260101-a, 20260102-b, ...\); type more"):
        find("2026")
    with pytest.raises(UsageError, match="There is no run 2027"):
        find("2027")
    with pytest.raises(UsageError, match=r"runs holds no events\.log"):
        find("runs")


def test_an_id_or_its_beginning(tmp_path: Path, store: str) -> None:
    client = connect(store)
    experiment = client.create_experiment("clicks")
    ids = {}
    for name in ("a", "b"):
        tags = {"gbactl.run_dir": str(run(tmp_path / name))}
        ids[name] = client.create_run(experiment, tags=tags).info.run_id
    client.create_run(experiment)
    assert find(ids["a"], store) == tmp_path / "a"
    assert find(ids["b"][:16], store) == tmp_path / "b"
    with pytest.raises(UsageError, match="There is no run"):
        find("zz", store)
    (tmp_path / "a" / "events.log").unlink()
    with pytest.raises(UsageError, match=r"holds no events\.log"):
        find(ids["a"], store)


def test_a_store_that_was_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrackingError, match="does not exist"):
        find("abc", f"sqlite:///{tmp_path / 'none.db'}")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(UsageError, match="There is no run abc"):
        find("abc")
