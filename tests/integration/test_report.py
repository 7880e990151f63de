"""`gbactl report` and `gbactl ui` as typed, against a real SQLite store."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import gbactl
from gbactl.cli.commands_after_training import report
from gbactl.errors import GbactlError, TrackingError, UsageError
from gbactl.tracking.metrics_and_tags import metrics_of
from gbactl.tracking.mlflow_store import NOTE, VERDICT, connect, tracking_uri
from gbactl.tracking.tracked_run import TrackedRun
from tests.support.sockets import free_port

pytestmark = pytest.mark.beside

ROWS = [("sync", 1, 0.80), ("sync", 2, 0.81), ("gba", 1, 0.79), ("gba", 2, 0.80)]


def result(mode: str, seed: int, auc: float) -> dict[str, object]:
    phases = [{"day": 0, "samples": 50, "seconds": 1.0, "drain_seconds": 0.0, "auc": auc}]
    samples = {"read": 50, "trained": 50, "decayed": 0, "lost": 0}
    told = {"mode": mode, "seed": seed, "status": "FINISHED", "command": f"gbactl train mode={mode} seed={seed}"}
    return {**told, "auc": auc, "eps": 50.0, "samples": samples, "phases": phases, "staleness_histogram": {"0": 5}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a store of two modes by two seeds, and one run that failed."""
    made = tmp_path_factory.mktemp("runs")
    uri = tracking_uri(uri=f"sqlite:///{made}/mlflow.db")
    for mode, seed, auc in [*ROWS, ("gba", 3, 0.5)]:
        run_dir = made / f"{mode}-s{seed}"
        run_dir.mkdir()
        data = result(mode, seed, auc)
        (run_dir / "result.json").write_text(json.dumps(data))
        (run_dir / "config.yaml").write_text(f"mode: {{name: {mode}}}\nseed: {seed}\n")
        params = {"mode.name": mode, "seed": seed, "run_dir": str(run_dir)}
        run = TrackedRun(uri, "gbactl", run_dir.name, params, {}, run_dir, print)
        run.log(metrics_of(data), step=1, seconds=1.0)
        run.artifact(run_dir / "result.json")
        assert run.finish("FAILED" if seed == 3 else "FINISHED", wait=60) is None
    return made


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(report, list(arguments), catch_exceptions=False, standalone_mode=False)


def test_the_table_compares_and_says_what_it_left_out() -> None:
    lines = typed().stdout.splitlines()
    row = next(line for line in lines if line.startswith("gba"))
    assert row.split()[:4] == ["gba", "2", "0.79500", "-0.01000"]
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("Left out, FAILED: gba-s3") for line in lines)


def test_where_and_by() -> None:
    for where in ("params.mode = 'gba'", "mode=gba"):
        out = json.loads(typed("--where", where, "--by", "mode,seed", "--format", "json").stdout)
        assert [group["key"] for group in out["groups"]] == [["gba", "1"], ["gba", "2"]]
        assert out["baseline"] is None
    out = json.loads(typed("--last", "2", "--format", "json").stdout)
    assert [group["n"] for group in out["groups"]] == [1] and len(out["left_out"]) == 1


def test_the_html_page_has_curves_from_the_artifacts_and_a_run_has_its_own() -> None:
    done = typed("--format", "html")
    assert "AUC over samples" in done.stdout and "Against sync: gba" in done.stdout and not done.stderr
    text = typed("gba-s1", "--uri", "sqlite:///none.db").stdout
    assert "gba" in text and "0.79000" in text and "sync" not in text
    page = typed("gba-s1", "sync-s1", "--format", "html").stdout
    assert "Against sync: gba: cannot tell, one seed" in page and "gbactl train mode=gba seed=1" in page


def test_csv_on_a_pipe_is_csv_alone() -> None:
    done = typed("--format", "csv", "--where", "params.seed = '1'", "--where", "status = 'FINISHED'")
    assert [line.split(",")[0] for line in done.stdout.splitlines()] == ["mode", "sync", "gba"]
    assert "vs sync" in done.stderr


def test_time_to_auc_is_read_from_the_artifacts() -> None:
    lines = [line.split() for line in typed("--time-to-auc", "baseline").stdout.splitlines()]
    assert ["gba", "0", "of", "2", ">1.0", ">50"] in lines and ["sync", "2", "of", "2", "1.0", "50"] in lines


def test_log_writes_the_table_below_the_notes_own_text_and_the_verdicts(folder: Path) -> None:
    client = connect(tracking_uri())
    experiment = client.get_experiment_by_name("gbactl").experiment_id
    client.set_experiment_tag(experiment, NOTE, "What I wanted to know.")
    for _ in range(2):
        assert "the verdicts on 2 runs" in typed("--log").stderr
    note = client.get_experiment(experiment).tags[NOTE]
    assert note.startswith("What I wanted to know.") and note.count("| gba | 2 |") == 1
    assert "- gba: worse by 0.01000" in note
    tags = {run.info.run_name: run.data.tags.get(VERDICT, "") for run in client.search_runs([experiment])}
    assert tags["gba-s1"] == tags["gba-s2"] and tags["gba-s1"].startswith("worse by 0.01000")
    assert tags["sync-s1"] == tags["gba-s3"] == ""
    assert "the verdicts on 0 runs" in typed("--log", "--where", "mode=gba").stderr, "there is no baseline"
    assert not any(VERDICT in run.data.tags for run in client.search_runs([experiment]))


@pytest.mark.slow
def test_plots_are_written_from_the_artifacts(tmp_path: Path) -> None:
    done = typed("--plots", str(tmp_path / "p"))
    written = sorted(path.name for path in (tmp_path / "p").iterdir())
    assert {"auc-over-samples.svg", "staleness-of-the-gradients.svg"} <= set(written)
    assert done.stderr.count("wrote ") == len(written)
    assert "no result.json" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        (["--where", "nonsense"], UsageError, "is no filter"),
        (
            ["--where", "auc>0.5"],
            UsageError,
            "--where 'auc>0.5' is no filter (auc is no attribute of a run); type for a metric: "
            "--where 'metrics.auc>0.5'",
        ),
        (["--where", "params.mode = 'hop'"], TrackingError, "type: gbactl train"),
        (
            ["--where", "params.seed = '3'"],
            TrackingError,
            "None of the 1 runs can be compared. Left out, FAILED",
        ),
        (["--where", "mode=hop"], UsageError, "there are: gba, sync"),
        (["--sweep", "last"], UsageError, "None of the runs is of sweep last"),
        (["gba-s1", "--last", "2"], UsageError, "RUN already names the runs"),
        (["nowhere"], UsageError, "There is no run nowhere"),
        (["--experiment", "nope"], TrackingError, "one of: gbactl"),
        (["--uri", "sqlite:///none.db"], TrackingError, "type: gbactl train"),
        (["--uri", "./mlruns"], TrackingError, "sqlite:///mlflow.db"),
        (["--by", "color"], UsageError, "No run has the parameter color"),
        (["--baseline", "bsp"], UsageError, "type one of: gba, sync"),
        (["--time-to-auc", "high"], UsageError, "type a number between 0 and 1, or: baseline"),
        (["--send", "nowhere"], TrackingError, "no run directory nowhere"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], kind: type[GbactlError], sentence: str) -> None:
    with pytest.raises(kind) as caught:
        typed(*arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("none.db").exists()


def test_sending_a_run_that_was_sent() -> None:
    assert typed("--send", "gba-s1").stdout.startswith("Nothing to send")


UI = "import sys; from gbactl.cli.commands_after_training import ui; ui(sys.argv[1:])"


@pytest.mark.slow
@pytest.mark.timeout(150)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_ui_answers_and_leaves_nothing_behind(folder: Path, how: signal.Signals) -> None:
    port = free_port()
    environment = os.environ | {"PYTHONPATH": str(Path(gbactl.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", UI, "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline(), process.stdout.readline()]
        assert str(folder / "mlflow.db") in said[0]
        assert f"http://127.0.0.1:{port}" in said[1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30) as page:
            assert page.status == 200
        process.send_signal(how)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait(10)
    deadline = time.monotonic() + 10
    while children_on(port):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def children_on(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_has_a_ui_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    from gbactl.tracking.mlflow_ui import serve

    serve("http://there:5000", 5000, print)
    assert "open http://there:5000" in capsys.readouterr().out
