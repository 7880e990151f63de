"""The run directory: one a run, never shared, its files whole or not there."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import yaml

from gbactl.config import RunConfig, from_dict
from gbactl.errors import NoRoomError, UsageError
from gbactl.launch import run_dir as run_dirs


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
    assert from_dict(yaml.safe_load((path / run_dirs.CONFIG).read_text())) == cfg


def test_a_named_directory(here: Path) -> None:
    cfg = RunConfig(run_dir="deep/er/mine")
    assert run_dirs.create(cfg) == here / "deep/er/mine"
    with pytest.raises(UsageError, match="deep/er/mine already holds a run; type another run_dir= or remove it"):
        run_dirs.create(cfg)


def test_a_directory_that_is_there_and_empty_is_taken(here: Path) -> None:
    (here / "mine").mkdir()
    assert run_dirs.create(RunConfig(run_dir="mine")) == here / "mine"


def test_the_result_has_its_room_until_it_is_written() -> None:
    path = run_dirs.create(RunConfig())
    assert (path / run_dirs.ROOM).stat().st_blocks * 512 >= run_dirs.ROOM_BYTES
    run_dirs.write_result(path, {"auc": 0.5})
    assert not (path / run_dirs.ROOM).exists()


def test_a_result_that_has_no_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = run_dirs.create(RunConfig())
    monkeypatch.setattr(Path, "replace", full)
    expected = rf"{path}/result.json could not be written \(No space left on device; [\d,]+ bytes are free there\)"
    with pytest.raises(NoRoomError, match=expected):
        run_dirs.write_result(path, {"auc": 0.5})
    assert not [each for each in path.iterdir() if "result" in each.name]


def test_a_directory_that_cannot_be_made(here: Path) -> None:
    (here / "file").touch()
    with pytest.raises(UsageError, match=r"The run directory file/mine cannot be made .*type another run_dir="):
        run_dirs.create(RunConfig(run_dir="file/mine"))


def test_the_result_is_written_whole(here: Path) -> None:
    written = run_dirs.write_result(here, {"auc": 0.75, "phases": []})
    assert written == here / "result.json"
    assert json.loads(written.read_text()) == {"auc": 0.75, "phases": []}
    assert [path.name for path in here.iterdir()] == ["result.json"]


def test_numbers_that_json_cannot_say_become_null() -> None:
    found = run_dirs.plain({"auc": float("nan"), "phases": [{"eps": float("inf"), "n": 3}], "x": "nan"})
    assert found == {"auc": None, "phases": [{"eps": None, "n": 3}], "x": "nan"}
    assert json.loads(json.dumps(found, allow_nan=False)) == found
