"""Which store, and where its artifacts lie."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import gbactl
from gbactl.errors import TrackingError, UsageError
from gbactl.launch.run_dir import find
from gbactl.tracking.mlflow_store import (
    NOTE,
    artifact_root,
    connect,
    ensure_store,
    experiment_id,
    read_runs,
    read_start_times,
    sqlite_path,
    tracking_uri,
)
from tests.support.sockets import free_port


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def description(uri: str, name: str) -> str:
    """Description of a new experiment."""
    ensure_store(uri)
    client = connect(uri)
    found = client.get_experiment(experiment_id(client, name, uri))
    return str(found.tags[NOTE])


def test_the_default_is_a_file_in_the_working_directory(tmp_path: Path) -> None:
    assert tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_environment_is_honoured_and_a_typed_uri_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there:5000")
    assert tracking_uri() == tracking_uri(None) == "http://there:5000"
    assert tracking_uri("http://typed") == "http://typed"


def test_relative_sqlite_files_become_absolute(tmp_path: Path) -> None:
    assert tracking_uri(uri="sqlite:///a/b.db?timeout=3") == f"sqlite:///{tmp_path}/a/b.db?timeout=3"
    assert tracking_uri(uri="sqlite:////x/b.db") == "sqlite:////x/b.db"
    assert sqlite_path("http://there") is None


def test_artifacts_lie_beside_a_sqlite_store(tmp_path: Path) -> None:
    assert artifact_root(tracking_uri()) == f"file://{tmp_path}/mlartifacts"
    assert artifact_root("http://there") is None


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "file:///tmp/mlruns"])
def test_a_file_store_is_refused_with_what_to_type(uri: str) -> None:
    with pytest.raises(TrackingError, match=r"sqlite:///mlflow\.db") as caught:
        tracking_uri(uri=uri)
    assert uri in str(caught.value)


def test_connecting_does_not_create_a_store(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="does not exist"):
        connect(tracking_uri())
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(TrackingError, match=f"The tracking store {uri} cannot be opened: API request to "):
        read_runs(uri, ["gbactl"], [])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(UsageError, match="There is no run 4f1c"):
        find("4f1c")


def test_an_experiment_s_description_links_to_the_published_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    assert "`docs/how-to/compare-in-mlflow.md` (`make docs`" in description(uri, "before")
    published = tmp_path / "site" / "gbactl-0.1.0.dist-info" / "METADATA"
    published.parent.mkdir(parents=True)
    published.write_text(
        "Metadata-Version: 2.1\nName: gbactl\nVersion: 0.1.0\nProject-URL: Documentation, https://example.org/gbactl/\n"
    )
    monkeypatch.syspath_prepend(str(published.parent.parent))
    assert "(https://example.org/gbactl/how-to/compare-in-mlflow/)." in description(uri, "after")


def test_start_times_are_those_of_runs_that_the_store_has() -> None:
    uri = tracking_uri()
    ensure_store(uri)
    client = connect(uri)
    experiment = experiment_id(client, "sweeps", uri)
    ids = [client.create_run(experiment, start_time=start).info.run_id for start in (7, 9)]
    assert read_start_times(uri, [*ids, "gone"]) == dict(zip(ids, (7, 9), strict=True))


def test_the_package_imports_neither_mlflow_nor_torch() -> None:
    code = (
        "import sys, gbactl.tracking.tracked_run, gbactl.tracking.delivery, gbactl.tracking.metrics_and_tags\n"
        "import gbactl.report\n"
        "sys.exit(bool({'mlflow', 'torch', 'pandas', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    root = Path(gbactl.__file__).parents[1]  # the test's own working directory is another
    done = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, env={"PYTHONPATH": str(root)})
    assert done.returncode == 0
