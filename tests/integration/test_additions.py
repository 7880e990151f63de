"""A mode, a model and a data set added as the tutorials show, and an engine: every command knows them.

Mode and engine are removed again, and every command forgets them. Their runs are tracked, those of the tutorials not.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gbactl
from tests.support.pages import apply_changes, commands, files
from tests.support.processes import Launcher

pytestmark = [pytest.mark.beside, pytest.mark.timeout(900)]

MODE = files("docs/tutorials/add-a-mode.md")
NOTED = '''"""`cluster=noted`: processes of this host that are written down as they are started."""

from __future__ import annotations

from dataclasses import dataclass

from gbactl.config.engine_interface import EngineInterface, EngineOptions


@dataclass(frozen=True)
class NotedOptions(EngineOptions):
    file: str = "started"


class Noted(EngineInterface):
    Options = NotedOptions

    def train(self, launch):
        from gbactl.engine.base import RunProcesses

        name = self.options(launch.cfg.cluster).file

        class NotedProcesses(RunProcesses):
            def _begin(self, boot, environment, log):
                with (self.run_dir / name).open("a") as file:
                    print(boot.peer, file=file)
                super()._begin(boot, environment, log)

        launch.follow(NotedProcesses(launch.cfg, launch.run_dir, launch.key, launch.dataset.path, launch.config))


ENGINE = Noted()
'''
ENGINE = {
    "gbactl/engine/noted.py": NOTED,
    "conf/cluster/noted.yaml": "name: noted\nworkers: 2\nservers: 1\ntransport: shm\nthreads: null\nfile: started\n",
}
SHORT = ("data.rows_per_day=2000", "mode.local_batch=128", "collective=shm")
UNTRACKED = "tracking.enabled=false"


@pytest.fixture
def checkout(launcher: Launcher, tmp_path: Path) -> Path:
    """A copy of gbactl, which `launcher` and its processes use."""
    made = tmp_path / "checkout"
    for name in ("gbactl", "conf"):
        shutil.copytree(Path(gbactl.__file__).parents[1] / name, made / name)
    launcher.environment["PYTHONPATH"] = str(made)
    return made


def add(checkout: Path, added: dict[str, str]) -> None:
    for name, text in added.items():
        assert not (checkout / name).exists()
        (checkout / name).write_text(text)


def remove(checkout: Path, added: dict[str, str]) -> None:
    for name in added:
        (checkout / name).unlink()


def said(launcher: Launcher, *arguments: str, code: int = 0) -> str:
    """Of a command: what it printed, or the sentence on what was wrong."""
    done = launcher.gbactl(*arguments, seconds=240)
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stderr if code else done.stdout


def result_of(line: str, launcher: Launcher, *more: str) -> dict[str, Any]:
    """Last line of what a command prints."""
    found: dict[str, Any] = json.loads(said(launcher, *shlex.split(line)[1:], *more, "--json").splitlines()[-1])
    return found


def modes_reported(launcher: Launcher) -> list[str]:
    groups = json.loads(said(launcher, "report", "--format", "json"))["groups"]
    return [group["key"][0] for group in groups]


def test_two_files_make_a_mode_and_two_an_engine_and_no_other_is_touched(launcher: Launcher, checkout: Path) -> None:
    page = "docs/tutorials/add-a-mode.md"
    add(checkout, MODE)
    add(checkout, ENGINE)
    train, replay, switch = commands(page, "additions")
    trained, replayed = result_of(train, launcher, UNTRACKED), result_of(replay, launcher)
    assert trained["mode"] == "pairs" and trained["samples"]["trained"] == 40000 and replayed["identical"]

    mine = ("mode=pairs", "mode.size=3", "cluster=noted", "cluster.file=begun")
    real = launcher.train(*SHORT, *mine, tracking=True)
    assert (real["mode"], real["samples"]["trained"]) == ("pairs", 2000) and real["global_step"] == 6
    assert real["clock"] == "wall"
    run_dir = launcher.started[0].run_dir
    assert (run_dir / "begun").read_text().split() == ["C", "S0", "W0", "W1"]
    assert launcher.replayed(run_dir)["identical"]
    modelled = result_of(switch, launcher)
    assert [phase["mode"] for phase in modelled["phases"]] == ["sync", "pairs", "pairs"]

    reported = ["sync>pairs@samples10000", "pairs"]
    assert modes_reported(launcher) == reported
    assert "pairs" in said(launcher, "switch", "--run", str(run_dir), "--to", "none", code=2)
    assert "has ended" in said(launcher, "switch", "--run", str(run_dir), "--to", "async", code=2)
    assert "sync" in (known := said(launcher, "train", "mode=none", code=2)) and "pairs" in known
    assert "mode.size does not belong" in said(launcher, "train", "mode=gba", "mode.size=3", code=2)
    assert "noted" in said(launcher, "train", "cluster=none", code=2)
    assert "type cluster= one of: noted" in said(launcher, "train", "cluster=local", "cluster.file=begun", code=2)

    remove(checkout, MODE)
    assert "pairs" not in said(launcher, "train", "mode=none", code=2)
    assert "mode/pairs" in said(launcher, "train", "mode=pairs", code=2)
    assert "pairs is not known; type mode=" in said(launcher, "replay", str(run_dir), code=1)

    add(checkout, MODE)
    remove(checkout, ENGINE)
    assert "cluster/noted" in said(launcher, "train", "cluster=noted", code=2)
    why = "cluster=noted is not known; type cluster= one of: exec, hosts, local, ray, slurm, virtual."
    assert why in said(launcher, "replay", str(run_dir), code=1)

    remove(checkout, MODE)
    assert modes_reported(launcher) == reported


def test_a_model_is_added_as_the_tutorial_shows(launcher: Launcher, checkout: Path) -> None:
    page = "docs/tutorials/add-a-model.md"
    assert "mf_deep" not in said(launcher, "train", "model.name=none", code=2)
    add(checkout, files(page))
    apply_changes(page, checkout)
    (train,) = commands(page, "additions")
    trained = result_of(train, launcher, UNTRACKED)
    assert trained["samples"]["trained"] == 40000
    assert "mf_deep" in said(launcher, "train", "model.name=none", code=2)


def test_a_data_set_is_added_as_the_tutorial_shows(launcher: Launcher, checkout: Path) -> None:
    page = "docs/tutorials/add-a-data-set.md"
    added = files(page)
    (launcher.cwd / "make_clicks.py").write_text(added.pop("make_clicks.py"))
    add(checkout, added)
    apply_changes(page, checkout)
    described, train = commands(page, "additions")
    make, _, describe = described.partition(" && ")
    subprocess.run([sys.executable, *shlex.split(make)[1:]], cwd=launcher.cwd, check=True)
    assert "clicks: 20,000 rows, 0 numeric features, 2 fields" in said(launcher, *shlex.split(describe)[1:])
    trained = result_of(train, launcher, UNTRACKED)
    assert trained["samples"]["read"] == 20000 * 6 // 7 and trained["auc"] > 0.6

    (launcher.cwd / "clicks.csv").write_text("1,2,3\n1,two,3\n")
    assert "clicks.csv, from line 1 on" in said(launcher, *shlex.split(train)[1:], code=1)
    assert "data.users" in said(launcher, *shlex.split(train)[1:], "+data.users=3", code=2)
