"""A run is found by its directory, by the beginning of its name, by its MLflow id."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbactl.errors import TrackingError, UsageError
from gbactl.launch.run_dir import find
from gbactl.tracking.mlflow_store import connect, ensure_store


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
