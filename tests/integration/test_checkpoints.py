"""Real processes, killed: the job goes on from what was saved, in the same MLflow run, as if it had never stopped."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Finished, Launched, Launcher, collective, wait_for
from tests.support.slow import slow
from tests.support.typed import Typist

MORE = ("data.rows_per_day=16000", "checkpoint=full", "checkpoint.interval_steps=4", "checkpoint.keep=3")


def killed_after(launched: Launched, cut: str) -> None:
    """Kill the launcher with -9 once a checkpoint exists; everything of it is gone."""
    path = launched.run_dir / "checkpoints" / cut / "manifest.json"
    wait_for(lambda: path.exists() or launched.process.poll() is not None)
    assert launched.process.poll() is None, launched.process.communicate()[1]
    launched.nodes()
    os.kill(launched.process.pid, signal.SIGKILL)
    launched.process.communicate()
    wait_for(lambda: not launched.left_behind())


def resumed(launcher: Launcher, first: Launched, *overrides: str, tracking: bool = False) -> Finished:
    run_dir = f"run_dir={first.run_dir}"
    done = launcher.start(f"resume={first.run_dir}", run_dir, *overrides, small=False, tracking=tracking).finish()
    assert done.code == 0, done.err
    done.run_dir = first.run_dir
    return done


@pytest.mark.beside
@pytest.mark.slow
def test_sync_goes_on_bit_for_bit_and_in_its_mlflow_run(launcher: Launcher, tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    mode = ("mode=sync", f"collective={collective()}")
    first = launcher.start(*MORE, *mode, f"tracking.uri=sqlite:///{store}", tracking=True)
    killed_after(first, "cut-000003")
    done = resumed(launcher, first, tracking=True)
    never_stopped = launcher.train(*MORE[:1], *mode)
    assert done.result["checksums"] == never_stopped["checksums"]
    for key in ("auc", "samples", "global_step", "gradients"):
        assert done.result[key] == never_stopped[key], key
    assert done.result["checkpoint"]["resumed_at"] >= 12
    assert (first.run_dir / "events.1.log").exists() and (first.run_dir / "logs.1").is_dir()
    with sqlite3.connect(store) as connection:
        runs = connection.execute("select run_uuid, status from runs").fetchall()
        models = connection.execute("select source_run_id, name from logged_models").fetchall()
    assert runs == [(done.result["run_id"], "FINISHED")]
    assert models == [(done.result["run_id"], "deepfm")]
    shown = launcher.gbactl("report", str(first.run_dir), "--uri", f"sqlite:///{store}", "--format", "html")
    assert "all_reduce" in shown.stdout and "times since second" not in shown.stdout, shown.stderr


@pytest.mark.beside
@pytest.mark.parametrize("mode", ["sync", slow("gba"), slow("shadow_easgd"), slow("fr_bmuf")])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(launcher: Launcher, mode: str) -> None:
    """It had no checkpoints; sync goes on bit for bit. Its times by activity are of both parts."""
    run = (*MORE[:1], f"mode={mode}", "collective=shm")
    first = launcher.start(*run)
    first.training()
    first.process.send_signal(signal.SIGTERM)
    ended = first.finish()
    stopped = ended.result["stopped"]
    assert ended.code == 143 and stopped["state"] == "saved", ended.err
    before = json.loads((first.run_dir / "times.json").read_text())
    done = resumed(launcher, first)
    done.accounted(16000)
    assert done.result["checkpoint"]["resumed_at"] == stopped["step"] > 0
    for key in ("origin", "cell", "command"):  # so it is compared with runs that were not stopped
        assert done.result[key] == ended.result[key], key
    times, computed = done.result["time"], done.result["per_worker"]
    assert times["since_second"] == 0.0 and len(times["processes"]) == 4
    assert all(times["processes"][name]["batches"] >= told["batches"] for name, told in computed.items()), "of both"
    assert json.loads((first.run_dir / "times.json").read_text())["ended"] == before["beats"], "of the first servers"
    if mode == "sync":
        never_stopped = launcher.train(*run)
        for key in ("checksums", "auc", "samples", "global_step", "gradients"):
            assert done.result[key] == never_stopped[key], key


@pytest.mark.beside
@pytest.mark.slow
def test_a_run_that_is_stopped_while_it_evaluates_goes_on_with_that(launcher: Launcher) -> None:
    run = ("mode=sync", "collective=shm", "train.eval_batch=4", "model.hidden=[256]")
    first = launcher.start(*run)
    journal = first.run_dir / "coordinator.json"
    wait_for(lambda: journal.exists() and json.loads(journal.read_text())["standstill"]["stage"] == "evaluate")
    first.process.send_signal(signal.SIGINT)
    stopped = first.finish()
    assert stopped.code == 130 and stopped.result["stopped"]["state"] == "saved", stopped.err
    done, never_stopped = resumed(launcher, first), launcher.train(*run)
    assert done.result["checkpoint"]["resumed_at"] == never_stopped["global_step"]
    for key in ("checksums", "auc", "samples", "global_step", "gradients"):
        assert done.result[key] == never_stopped[key], key


@pytest.mark.beside
@pytest.mark.slow
def test_another_mode_on_other_processes_goes_on_with_a_damaged_newest_checkpoint(launcher: Launcher) -> None:
    first = launcher.start(*MORE, "mode=gba")
    killed_after(first, "cut-000003")
    names = sorted(path.name for path in (first.run_dir / "checkpoints").glob("cut-*/manifest.json"))
    assert names
    newest = max((first.run_dir / "checkpoints").glob("cut-*/manifest.json")).parent
    with (newest / "S1.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xff\xff\xff")
    done = resumed(launcher, first, "mode=async", "mode.local_batch=128", "cluster.workers=3", "cluster.servers=3")
    assert f"{newest.name}/S1.safetensors is damaged" in done.err
    assert done.result["samples"]["read"] == 16000
    assert [phase["mode"] for phase in done.result["phases"]] == ["gba", "async"]
    assert len(done.result["memory"]) >= 6
    listed = command(launcher, "ls", str(first.run_dir), "--json")
    rows = [json.loads(line) for line in listed.splitlines()]
    assert rows[-1]["samples"] == 16000 and rows[-1]["servers"] == 3
    assert "good" in command(launcher, "verify", str(first.run_dir))
    paths = [Path(line) for line in command(launcher, "export", str(first.run_dir)).splitlines()]
    assert [path.name for path in paths] == ["model.safetensors", "model.pt", "model.json"]


def command(launcher: Launcher, *arguments: str) -> str:
    done = launcher.gbactl("checkpoint", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.beside
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("model.dim=3",), "another model"),
        ((), "nothing is left to train"),
    ],
)
def test_what_cannot_go_on_is_told_in_a_sentence(
    typed: Typist, finished: Path, overrides: tuple[str, ...], message: str
) -> None:
    done = typed("train", f"resume={finished}", "tracking.enabled=false", *overrides)
    assert done.code != 0
    assert message in done.err and "Traceback" not in done.err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, shared_cache: Path) -> Any:
    from tests.support.processes import environment

    made = Launcher(tmp_path_factory.mktemp("finished"), environment(shared_cache))
    launched = made.start("mode=async", "checkpoint=full")
    done = launched.finish()
    assert done.code == 0, done.err
    yield launched.run_dir
    assert not launched.reap()


@pytest.mark.beside
@pytest.mark.slow
def test_cuts_around_the_loss_of_a_worker_of_sync_are_whole(launcher: Launcher) -> None:
    """Those left compute its batches: a cut's dense part is that of its step, whoever was asked and when."""
    run = ("mode=sync", "collective=shm", "train.global_batch=384", "mode.local_batch=128", "cluster.workers=3",
           "data.rows_per_day=16000")  # fmt: skip
    plain = launcher.train(*run)
    saved = ("checkpoint=full", "checkpoint.interval_steps=1", "checkpoint.keep=99", "cluster.lost_worker=continue")
    killed = launcher.start(*run, *saved, "faults.plans=[{kind: kill, workers: [1], step: 12}]")
    done = killed.finish()
    assert done.code == 0, done.err
    assert done.result["checksums"]["model"] == plain["checksums"]["model"]
    cuts = [row for row in map(json.loads, command(launcher, "ls", str(killed.run_dir), "--json").splitlines())]
    after = [row["name"] for row in cuts if 10 <= row["step"] <= 41][:4]
    assert len(after) >= 2, cuts
    for name in after:
        again = launcher.start(
            f"resume={killed.run_dir}/checkpoints/{name}", "faults.plans=[]", "checkpoint=none", small=False
        ).finish()
        assert again.code == 0, again.err
        assert again.result["checksums"]["model"] == plain["checksums"]["model"], name
