"""A mode and an engine, each added by two files and removed again: every command knows them, and forgets them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gbactl
from tests.support.processes import SMALL, Launcher

POLICY = '''"""`pairs`: every `size` gradients that arrived make one step."""

from __future__ import annotations

from dataclasses import dataclass

from gbactl.policies.policy import PolicyOptions, register
from gbactl.policies.buffered import BufferedPolicy


@dataclass(frozen=True)
class PairsOptions(PolicyOptions):
    size: int = 2


@register("pairs")
class PairsPolicy(BufferedPolicy):
    Options = PairsOptions

    def buffer_size(self) -> int:
        return self.options.size

    def factor(self, token_staleness: int) -> float:
        return 1.0
'''
MODE = {"gbactl/policies/pairs.py": POLICY, "conf/mode/pairs.yaml": "name: pairs\nlocal_batch: null\nsize: 2\n"}
NOTED = '''"""`cluster=noted`: processes of this host that are written down as they are started."""

from __future__ import annotations

from dataclasses import dataclass

from gbactl.config.engine_capabilities import Place, PlaceOptions


@dataclass(frozen=True)
class NotedOptions(PlaceOptions):
    file: str = "started"


class Noted(Place):
    Options = NotedOptions

    def train(self, launch):
        from gbactl.engine.base import Children

        name = self.options(launch.cfg.cluster).file

        class NotedChildren(Children):
            def _begin(self, boot, environment, log):
                with (self.run_dir / name).open("a") as file:
                    print(boot.peer, file=file)
                super()._begin(boot, environment, log)

        launch.follow(NotedChildren(launch.cfg, launch.run_dir, launch.key, launch.dataset.path, launch.config))


PLACE = Noted()
'''
ENGINE = {
    "gbactl/engine/noted.py": NOTED,
    "conf/cluster/noted.yaml": "name: noted\nworkers: 2\nservers: 1\ntransport: shm\nthreads: null\nfile: started\n",
}
SHORT = ("data.rows_per_day=2000", "mode.local_batch=128", "collective=shm")


@pytest.fixture
def checkout(launcher: Launcher, tmp_path: Path) -> Path:
    """A copy of gbactl, which `launcher` and its processes use."""
    made = tmp_path / "checkout"
    for name in ("gbactl", "conf"):
        shutil.copytree(Path(gbactl.__file__).parents[1] / name, made / name)
    launcher.environment["PYTHONPATH"] = str(made)
    return made


def add(checkout: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        assert not (checkout / name).exists()
        (checkout / name).write_text(text)


def remove(checkout: Path, files: dict[str, str]) -> None:
    for name in files:
        (checkout / name).unlink()


def said(launcher: Launcher, *arguments: str, code: int = 0) -> str:
    """Of a command: what it printed, or the sentence on what was wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "gbactl", *arguments], cwd=launcher.cwd, env=launcher.environment, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stderr if code else done.stdout


def test_two_files_make_a_mode_and_no_other_is_touched(launcher: Launcher, checkout: Path) -> None:
    add(checkout, MODE)
    real = launcher.train(*SHORT, "mode=pairs", "mode.size=3", tracking=True)
    assert (real["mode"], real["samples"]["trained"]) == ("pairs", 2000) and real["global_step"] == 6
    assert launcher.replayed(launcher.started[0].run_dir)["identical"]
    schedule = "switch.schedule=[{at: {samples: 1000}, to: pairs, set: {local_batch: 128}}]"
    modelled = (*(text for text in SMALL if "threads" not in text), *SHORT, "cluster=virtual")
    there = launcher.train(*modelled, "mode=sync", schedule, small=False, tracking=True)
    assert [phase["mode"] for phase in there["phases"]] == ["sync", "pairs"]

    shown = json.loads(said(launcher, "report", "--format", "json"))
    assert [group["key"][0] for group in shown["groups"]] == ["pairs", "sync>pairs@samples1000"]
    assert "pairs" in said(launcher, "switch", "--run", str(real["run_dir"]), "--to", "none", code=2)
    assert "sync" in (known := said(launcher, "train", "mode=none", code=2)) and "pairs" in known
    assert "mode.size does not belong" in said(launcher, "train", "mode=gba", "mode.size=3", code=2)

    remove(checkout, MODE)
    assert "pairs" not in said(launcher, "train", "mode=none", code=2)
    assert "mode/pairs" in said(launcher, "train", "mode=pairs", code=2)
    assert "pairs is not known; type mode=" in said(launcher, "replay", str(real["run_dir"]), code=1)
    assert json.loads(said(launcher, "report", "--format", "json"))["groups"][0]["key"][0] == "pairs"


def test_two_files_make_an_engine_and_no_other_is_touched(launcher: Launcher, checkout: Path) -> None:
    add(checkout, ENGINE)
    result = launcher.train(*SHORT, "mode=bsp", "cluster=noted", "cluster.file=begun", tracking=True)
    assert (result["clock"], result["samples"]["trained"]) == ("wall", 2000)
    run_dir = launcher.started[0].run_dir
    assert (run_dir / "begun").read_text().split() == ["C", "S0", "W0", "W1"]
    assert launcher.replayed(run_dir)["identical"]
    assert "has ended" in said(launcher, "switch", "--run", str(run_dir), "--to", "async", code=2)
    assert "noted" in said(launcher, "train", "cluster=none", code=2)
    assert "type cluster= one of: noted" in said(launcher, "train", "cluster=local", "cluster.file=begun", code=2)

    remove(checkout, ENGINE)
    assert "cluster/noted" in said(launcher, "train", "cluster=noted", code=2)
    why = "cluster=noted is not known; type cluster= one of: hosts, local, virtual."
    assert why in said(launcher, "replay", str(run_dir), code=1)
    assert json.loads(said(launcher, "report", "--format", "json"))["groups"][0]["key"] == ["bsp"]
