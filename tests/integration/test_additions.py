"""The templates, as a package of the user's own that pip has installed: a model, a mode and a reader, without a fork.

And an engine, which is a file of the tree: every command knows it, and forgets it when it is removed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gbactl
from gbactl.checkpoint.folder import MANIFEST
from tests.support.commands import ROOT
from tests.support.pages import commands, text_of
from tests.support.processes import Launcher, wait_for
from tests.support.slow import slow

pytestmark = [pytest.mark.beside, pytest.mark.timeout(900)]

TEMPLATES = Path(ROOT) / "experiments" / "templates"
SEARCHED = "hydra.searchpath=[pkg://click_parts.conf]"
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
        from gbactl.engine.local_processes import RunProcesses

        name = self.options(launch.cfg.cluster).file

        class NotedProcesses(RunProcesses):
            def _begin(self, boot, environment, log):
                with (self.run_dir / name).open("a") as file:
                    print(boot.peer, file=file)
                super()._begin(boot, environment, log)

        launch.follow(NotedProcesses(launch))


ENGINE = Noted()
'''
ENGINE = {
    "gbactl/engine/noted.py": NOTED,
    "conf/cluster/noted.yaml": "name: noted\nworkers: 2\nservers: 1\ntransport: shm\nthreads: null\nfile: started\n",
}
SHORT = ("data.rows_per_day=2000", "mode.local_batch=128", "collective=shm")
UNTRACKED = "tracking.enabled=false"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed a copy of the templates."""
    copied, folder = tmp_path_factory.mktemp("source") / "templates", tmp_path_factory.mktemp("site")
    shutil.copytree(TEMPLATES, copied)
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--target", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(copied)], check=True)
    assert (folder / "click_parts" / "conf" / "mode" / "pairs.yaml").is_file()
    return folder


@pytest.fixture
def own(launcher: Launcher, installed: Path) -> Launcher:
    """The launcher, with the package and 20,000 clicks of its reader."""
    launcher.environment["PYTHONPATH"] = os.pathsep.join([launcher.environment["PYTHONPATH"], str(installed)])
    subprocess.run([sys.executable, str(TEMPLATES / "make_clicks.py")], cwd=launcher.cwd, check=True)
    return launcher


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


def test_the_tutorials_are_made_of_the_files_of_the_package() -> None:
    shown = set[str]()
    for part in ("model", "mode", "data-set"):
        included = re.findall(r'--8<--\s"?(experiments/[^"\n]+)', text_of(f"docs/tutorials/add-a-{part}.md"))
        assert len(included) >= 2, "a class and a configuration file"
        shown |= set(included)
    files = (path for path in (TEMPLATES / "click_parts").rglob("*") if path.suffix in (".py", ".yaml"))
    assert shown == {str(path.relative_to(ROOT)) for path in files if path.name != "__init__.py"}


def test_a_mode_of_a_package_trains_is_switched_to_and_replayed(own: Launcher) -> None:
    train, replay, switch = commands("docs/tutorials/add-a-mode.md", "additions")
    trained, replayed = result_of(train, own), result_of(replay, own)
    assert trained["mode"] == "pairs" and trained["samples"]["trained"] == 40000 and replayed["identical"]
    assert SEARCHED in trained["command"].replace("'", "")
    switched = result_of(switch, own)
    assert [phase["mode"] for phase in switched["phases"]] == ["sync", "pairs", "pairs"]
    assert sorted(modes_reported(own)) == ["pairs", "sync>pairs@samples10000"]
    assert "There is no key mode.size" in said(own, "train", "mode=gba", "mode.size=3", SEARCHED, code=2)
    del own.environment["PYTHONPATH"]
    assert "click_parts" in said(own, "replay", trained["run_dir"], code=1)


def test_a_model_of_a_package_trains_by_its_file_and_by_its_target_alone(own: Launcher) -> None:
    train, bare = commands("docs/tutorials/add-a-model.md", "additions")
    trained, named = result_of(train, own, UNTRACKED), result_of(bare, own, UNTRACKED)
    assert trained["samples"]["trained"] == named["samples"]["trained"] == 40000
    assert trained["auc"] > 0.6 and "warnings" not in trained


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "target"),
    [("fuxictr", "fuxictr_dcnv2.FuxiDCNv2"), ("torchrec", "torchrec_dcnv2.TorchRecDCNv2")],
)
def test_a_model_of_a_librarys_layers_trains(own: Launcher, library: str, target: str) -> None:
    pytest.importorskip(library)
    assert f"model.target=click_parts.{target}" in text_of("docs/tutorials/add-a-model.md")
    _, bare = commands("docs/tutorials/add-a-model.md", "additions")
    cross = "model.target=click_parts.cross.Cross"
    trained = result_of(bare.replace(cross, f"model.target=click_parts.{target}"), own, UNTRACKED)
    assert cross in bare and trained["samples"]["trained"] == 40000
    assert trained["auc"] > 0.6 and "warnings" not in trained


def test_a_reader_of_a_package_is_described_and_trained_on(own: Launcher) -> None:
    described, train = commands("docs/tutorials/add-a-data-set.md", "additions")
    assert "clicks: 20,000 rows, 0 numeric features, 2 fields" in said(own, *shlex.split(described)[1:])
    trained = result_of(train, own, UNTRACKED)
    assert trained["samples"]["read"] == 20000 * 6 // 7 and trained["auc"] > 0.6

    (own.cwd / "clicks.csv").write_text("1,2,3\n1,two,3\n")
    alone = ("data.target=click_parts.clicks.Clicks", "data.path=clicks.csv")
    assert "clicks.csv, from line 1 on" in said(own, "train", *alone, code=1)
    folder = ("--config-dir", str(TEMPLATES / "click_parts" / "conf"), "data=clicks")
    assert "has no key users; keys are: path" in said(own, "data", "describe", *folder, "+data.users=3", code=2)


PARTS = (
    SEARCHED, "model=cross", "data=clicks", "data.path=clicks.csv", "data.rows=200", "optim.lr=0.01", "model.dim=4",
    "train.global_batch=128", "cluster.workers=2", "cluster.servers=2", "collective=shm",
)  # fmt: skip
ALL = shlex.join(["gbactl", "train", *PARTS, UNTRACKED])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async", "gba", "pairs"])
def test_model_mode_and_reader_train_together_on_real_processes(own: Launcher, mode: str) -> None:
    undecayed = ["mode.iota=1000"] if mode == "gba" else []  # on a busy machine a worker may be slow
    trained = result_of(ALL, own, f"mode={mode}", *undecayed, "run_dir=runs/own")
    assert trained["samples"]["trained"] == 17142 and trained["auc"] > 0.6
    assert result_of("gbactl replay runs/own", own)["identical"]


@pytest.mark.slow
def test_they_are_switched_to_and_recover_after_kills(own: Launcher) -> None:
    undecayed = "{at: {day: 4}, to: gba, set: {iota: 1000}}"  # on a busy machine a worker may be slow
    schedule = f"switch.schedule=[{{at: {{day: 2}}, to: pairs}}, {undecayed}]"
    kill = "faults.plans=[{kind: kill, workers: [1], step: 40}, {kind: kill, servers: [0], step: 80}]"
    result = result_of(ALL, own, "mode=sync", schedule, kill, "checkpoint=full", "checkpoint.interval_steps=20")
    assert [*dict.fromkeys(phase["mode"] for phase in result["phases"])] == ["sync", "pairs", "gba"]
    assert result["samples"]["trained"] == 17142 and len(result["recovery"]) == 2


@pytest.mark.slow
def test_a_killed_run_of_theirs_is_resumed_where_the_package_is_named(own: Launcher) -> None:
    slow = "faults.plans=[{kind: constant, workers: all, factor: 20}]"
    begun = own.start(*PARTS, "mode=pairs", "checkpoint=full", "checkpoint.interval_steps=5", slow, small=False)
    wait_for(lambda: any((begun.run_dir / "checkpoints").glob(f"cut-*/{MANIFEST}")))
    begun.process.send_signal(signal.SIGKILL)
    begun.process.wait()
    again = f"gbactl train resume={begun.run_dir} faults=none {UNTRACKED}"
    assert "is not gbactl's" in said(own, *shlex.split(again)[1:], code=2)
    assert result_of(again, own, SEARCHED)["status"] == "FINISHED"


LATE = """
import torch
from gbactl.policies.async_and_bsp import AsyncPolicy

class Model(torch.nn.Module):
    seen = 0

    def __init__(self, fields, dim):
        super().__init__()
        self.last = torch.nn.Linear(fields * dim, 1)

    def forward(self, numeric, fields):
        self.seen += self.training
        if self.seen > 20:
            raise ValueError("no more")
        return self.last(fields.flatten(1))[:, 0]

class Mode(AsyncPolicy):
    def take(self, worker):
        if self.step > 20:
            raise ValueError("no more")
        return super().take(worker)
"""


@pytest.mark.parametrize(
    ("cluster", "node", "part", "line"),
    [
        ("virtual", "", "model.target=late_parts.Model", 15),
        slow("local", "W", "model.target=late_parts.Model", 15),
        slow("local", "C", "mode.target=late_parts.Mode", 21),  # the coordinator could be replaced, if it were killed
    ],
)
def test_a_part_that_fails_in_training_ends_the_run_with_its_cause(
    launcher: Launcher, cluster: str, node: str, part: str, line: int
) -> None:
    (launcher.cwd / "late_parts.py").write_text(LATE)
    launcher.environment["PYTHONPATH"] += f"{os.pathsep}{launcher.cwd}"
    data = ("experiment=smoke", "data.rows_per_day=20000", "checkpoint=full", "checkpoint.interval_steps=5", UNTRACKED)
    told = said(launcher, "train", f"cluster={cluster}", "mode=async", part, *data, code=1)
    start, end = (rf"{node}\d* \(pid \d+\) failed: ", " Logs: .*") if node else ("", "")
    cause = rf"\(ValueError: no more, in {launcher.cwd}/late_parts\.py:{line}\)\."
    assert re.fullmatch(f"gbactl: {start}{part} fails {cause}{end}", told.splitlines()[-1])
    assert "C is gone" not in told
    [result] = launcher.cwd.glob("runs/*/result.json")
    assert "(ValueError: no more" in json.loads(result.read_text())["error"]


@pytest.fixture
def checkout(launcher: Launcher, tmp_path: Path) -> Path:
    """A copy of gbactl, which `launcher` and its processes use."""
    made = tmp_path / "checkout"
    for name in ("gbactl", "conf"):
        shutil.copytree(Path(gbactl.__file__).parents[1] / name, made / name, symlinks=True)
    launcher.environment["PYTHONPATH"] = str(made)
    return made


@pytest.mark.slow
def test_two_files_make_an_engine_and_no_other_is_touched(launcher: Launcher, checkout: Path) -> None:
    for name, text in ENGINE.items():
        assert not (checkout / name).exists()
        (checkout / name).write_text(text)
    real = launcher.train(*SHORT, "mode=gba", "mode.iota=1000", "cluster=noted", "cluster.file=begun", tracking=True)
    assert (real["mode"], real["samples"]["trained"], real["clock"]) == ("gba", 2000, "wall")
    run_dir = launcher.started[0].run_dir
    assert (run_dir / "begun").read_text().split() == ["C", "S0", "W0", "W1"]
    assert launcher.replayed(run_dir)["identical"]
    assert "has ended" in said(launcher, "switch", "--run", str(run_dir), "--to", "async", code=2)
    assert "noted" in said(launcher, "train", "cluster=none", code=2)
    assert "type cluster= one of: noted" in said(launcher, "train", "cluster=local", "cluster.file=begun", code=2)
    for name in ENGINE:
        (checkout / name).unlink()
    assert "cluster/noted" in said(launcher, "train", "cluster=noted", code=2)
    why = "cluster=noted is not known; type cluster= one of: auto, exec, hosts, local, ray, slurm, virtual."
    assert why in said(launcher, "replay", str(run_dir), code=1)
    assert modes_reported(launcher) == ["gba"]
