"""Tracking against real stores: four launchers at once, a store that goes away, a server that dies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException

import gbactl
from gbactl.errors import TrackingError
from gbactl.launch.supervision import CoordinatorConnection
from gbactl.tracking.delivery import FILE_NAME, send_backlog
from gbactl.tracking.mlflow_store import connect, ensure_store, sqlite_path, tracking_uri
from gbactl.tracking.tracked_run import TrackedRun
from tests.support.browser import environment
from tests.support.metric_groups import is_grouped
from tests.support.processes import wait_for
from tests.support.sockets import free_port

ONE_RUN = """
import sys
from pathlib import Path
from gbactl.tracking.tracked_run import TrackedRun
from gbactl.tracking.mlflow_store import tracking_uri
run_dir = Path(sys.argv[1])
run_dir.mkdir()
(run_dir / "result.json").write_text("{}")
sys.stdin.readline()
params = {"mode.name": "gba", "seed": run_dir.name}
run = TrackedRun(tracking_uri(), "four", run_dir.name, params, {}, run_dir, sys.stderr.write)
for step in range(20):
    run.log({"auc": step / 20, "eps": 1.0}, step=step, seconds=step)
run.artifact(run_dir / "result.json")
sentence = run.finish("FINISHED", wait=100)
print(sentence or run.run_id)
"""


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_four_launchers_start_at_once_on_an_empty_store(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_RUN, str(tmp_path / f"run{number}")],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    said = [process.communicate(timeout=150) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, said
    assert [error for _, error in said] == [""] * 4  # no migration chatter, no warning
    client = connect(f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("four")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_id for run in runs} == {out.strip() for out, _ in said}
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert {len(client.get_metric_history(run.info.run_id, "auc")) for run in runs} == {20}
    assert len(list((tmp_path / "mlartifacts").glob("*/artifacts/result.json"))) == 4
    assert not list(tmp_path.glob(f"*/{FILE_NAME}"))
    assert not list(tmp_path.glob(".mlflow.db.*"))


def history(uri: str, run_id: str) -> list[float]:
    """None yet where the thread that sends has yet to make the store."""
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        return []
    return sorted(point.value for point in connect(uri).get_metric_history(run_id, "auc"))


def until_known(uri: str, run: TrackedRun, wanted: list[float]) -> None:
    """The run's id is its own until the store has answered, which making one may put off for seconds."""
    deadline = time.monotonic() + 60
    while history(uri, run.run_id) != wanted:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.beside
@pytest.mark.timeout(120)
def test_a_sqlite_store_that_is_moved_away_and_back_loses_nothing(tmp_path: Path) -> None:
    uri = tracking_uri(uri=f"sqlite:///{tmp_path}/store/mlflow.db")
    ensure_store(uri)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "plot.png").write_bytes(b"p")
    said: list[str] = []
    run = TrackedRun(uri, "moved", None, {"seed": 1}, {}, run_dir, warn=said.append)
    run.log({"auc": 0.5}, step=1, seconds=1.0)
    until_known(uri, run, [0.5])
    shutil.move(tmp_path / "store", tmp_path / "elsewhere")
    run.log({"auc": 0.6}, step=2, seconds=2.0)
    run.artifact(run_dir / "plot.png")
    sentence = run.finish("FINISHED")
    assert sentence is not None
    assert "gbactl report --send" in sentence
    assert len(said) == 1
    assert "removed or replaced" in said[0]
    assert (run_dir / FILE_NAME).exists()
    assert not (tmp_path / "store").exists()

    shutil.move(tmp_path / "elsewhere", tmp_path / "store")
    sent = send_backlog(run_dir)
    assert sent is not None
    assert sent.run_id == run.run_id
    assert send_backlog(run_dir) is None
    client = connect(uri)
    assert history(uri, run.run_id) == [0.5, 0.6]
    assert client.get_run(run.run_id).info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.run_id)] == ["plot.png"]


@pytest.mark.beside
@pytest.mark.timeout(120)
def test_a_store_that_was_deleted_gets_the_whole_run_again(tmp_path: Path) -> None:
    uri = tracking_uri(uri=f"sqlite:///{tmp_path}/mlflow.db")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    run = TrackedRun(uri, "deleted", None, {"mode.name": "gba"}, {"a": "b"}, run_dir, warn=lambda _: None)
    run.log({"auc": 0.5}, step=1, seconds=1.0)
    until_known(uri, run, [0.5])
    (tmp_path / "mlflow.db").unlink()
    run.log({"auc": 0.6}, step=2, seconds=2.0)
    assert run.finish("FINISHED") is not None
    other = f"sqlite:///{tmp_path}/other.db"
    sent = send_backlog(run_dir, uri=other)
    assert sent is not None
    assert sent.run_id != run.run_id
    assert history(other, sent.run_id) == [0.5, 0.6]
    found = connect(other).get_run(sent.run_id)
    assert (found.data.params["mode"], found.data.tags["a"]) == ("gba", "b")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes], list[str]]]:
    ensure_store(f"sqlite:///{tmp_path}/server.db")
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{tmp_path}/server.db"]
    command += ["--artifacts-destination", str(tmp_path / "served")]
    process = start_server(command, port, tmp_path)
    yield f"http://127.0.0.1:{port}", process, command
    stop_server(process)


def start_server(command: list[str], port: int, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(), stdout=log, stderr=log, start_new_session=True
        )
    deadline = time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return process
        except OSError:
            if time.monotonic() > deadline or process.poll() is not None:
                stop_server(process)
                raise AssertionError((folder / "server.log").read_text()) from None
            time.sleep(0.2)


def stop_server(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_tracking_server_that_is_killed_loses_nothing(
    tmp_path: Path, server: tuple[str, subprocess.Popen[bytes], list[str]]
) -> None:
    uri, process, command = server
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "result.json").write_text("{}")
    run = TrackedRun(uri, "served", "r", {"seed": 1}, {}, run_dir, warn=lambda _: None)
    run.log({"auc": 0.5}, step=1, seconds=1.0)
    until_known(uri, run, [0.5])
    stop_server(process)
    before = time.monotonic()
    run.log({"auc": 0.6}, step=2, seconds=2.0)
    run.artifact(run_dir / "result.json")
    assert time.monotonic() - before < 1.0
    assert run.finish("FINISHED") is not None
    with pytest.raises(TrackingError, match="type the same again"):
        send_backlog(run_dir)

    again = start_server(command, int(uri.rpartition(":")[2]), tmp_path)
    try:
        sent = send_backlog(run_dir)
        assert sent is not None
        assert sent.run_id == run.run_id
        assert history(uri, run.run_id) == [0.5, 0.6]
        client = connect(uri)
        assert client.get_run(run.run_id).info.status == "FINISHED"
        assert [file.path for file in client.list_artifacts(run.run_id)] == ["result.json"]
    finally:
        stop_server(again)
    assert not (run_dir / FILE_NAME).exists()


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(290)
def test_a_server_with_a_password_is_killed_and_started_again_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flask_wtf", reason="Flask-WTF is not installed: the extra gbactl[browser]")
    port = free_port()
    uri, stored = f"http://127.0.0.1:{port}", f"sqlite:///{tmp_path}/server.db"
    (tmp_path / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = admin\nadmin_password = a-long-password-1\n"
        f"database_uri = sqlite:///{tmp_path}/auth.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(tmp_path / "auth.ini"))
    monkeypatch.setenv("MLFLOW_FLASK_SERVER_SECRET_KEY", "for-this-test")
    monkeypatch.setenv("MLFLOW_SERVER_ENABLE_JOB_EXECUTION", "false")
    ensure_store(stored)
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "basic-auth", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--workers", "1", "--backend-store-uri", stored]
    command += ["--artifacts-destination", str(tmp_path / "served")]
    server = start_server(command, port, tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "a-long-password-1")
    train = ["train", "cluster=virtual", "mode=gba", "data.days=5", "data.rows_per_day=60000"]
    train += ["data.max_cardinality=500", f"run_dir={tmp_path / 'run'}", f"tracking.uri={uri}"]
    run = subprocess.Popen(
        [sys.executable, "-m", "gbactl", *train], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    client = connect(uri)
    found = wait_for(lambda: [each for each in searched(client) if "loss" in each.data.metrics])
    stop_server(server)
    assert run.poll() is None, "the run goes on"
    time.sleep(3.0)
    again = start_server(command, port, tmp_path)
    try:
        out, err = run.communicate(timeout=200)
        assert run.returncode == 0, (out, err)
        send_backlog(tmp_path / "run")  # where the run has ended before the server was there again
        whole = client.get_run(found[0].info.run_id)
        assert (whole.info.status, whole.info.run_name) == ("FINISHED", "gba cluster=virtual s0")
        assert {"auc", "eps", "staleness", "train/samples_read"} <= set(whole.data.metrics)
        assert [name for name in whole.data.metrics if not is_grouped(name)] == []
        assert len(client.get_metric_history(whole.info.run_id, "auc")) >= 4, "no evaluation is lost"
        assert {"config.yaml", "result.json"} <= {file.path for file in client.list_artifacts(whole.info.run_id)}
        assert whole.inputs.dataset_inputs and whole.data.tags["mlflow.note.content"]
        assert not (tmp_path / "run" / FILE_NAME).exists()
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "another")
        with pytest.raises(Exception, match=r"401|UNAUTHENTICATED|not authenticated"):
            connect(uri).get_run(whole.info.run_id)
    finally:
        stop_server(again)


def searched(client: Any) -> list[Any]:
    """The runs that a server has; none while it is too busy to answer."""
    try:
        experiment = client.get_experiment_by_name("gbactl")
        return [] if experiment is None else list(client.search_runs([experiment.experiment_id]))
    except MlflowException:
        return []


@pytest.mark.beside
def test_training_begins_after_mlflow_was_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator waits for the launcher, and the launcher for the store: samples per second are of training."""
    order: list[str] = []
    opened, connected = TrackedRun.opened, CoordinatorConnection.connect
    monkeypatch.setattr(TrackedRun, "opened", lambda *of: (opened(*of), order.append("store"))[0])
    monkeypatch.setattr(CoordinatorConnection, "connect", lambda *of: (order.append("coordinator"), connected(*of))[1])
    run = gbactl.train(
        "experiment=smoke", "mode=async", "data.days=2", "data.rows_per_day=2000", "train.global_batch=64",
        "cluster.workers=2", "cluster.servers=1", f"run_dir={tmp_path / 'run'}", f"data.cache={tmp_path}",
        f"tracking.uri=sqlite:///{tmp_path}/mlflow.db",
    )  # fmt: skip
    assert order == ["store", "coordinator"] and run.result["samples"]["trained"] == 2000
