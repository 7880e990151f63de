"""A mode that is added as README says, by two files, and removed again: every command knows it, and forgets it."""

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

from gbactl.policies.base import PolicyOptions, register
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
FILES = {"gbactl/policies/pairs.py": POLICY, "conf/mode/pairs.yaml": "name: pairs\nlocal_batch: null\nsize: 2\n"}
SHORT = ("data.rows_per_day=2000", "mode.local_batch=128", "collective=shm")


@pytest.fixture
def added(launcher: Launcher, tmp_path: Path) -> Path:
    """A checkout of its own with both files."""
    checkout = tmp_path / "checkout"
    for name in ("gbactl", "conf"):
        shutil.copytree(Path(gbactl.__file__).parents[1] / name, checkout / name)
    for name, text in FILES.items():
        (checkout / name).write_text(text)
    launcher.environment["PYTHONPATH"] = str(checkout)
    return checkout


def said(launcher: Launcher, *arguments: str, code: int = 0) -> str:
    """Of a command: what it printed, or the sentence on what was wrong."""
    done = subprocess.run(
        [sys.executable, "-m", "gbactl", *arguments], cwd=launcher.cwd, env=launcher.environment, text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
    return done.stderr if code else done.stdout


def test_two_files_make_a_mode_and_no_other_is_touched(launcher: Launcher, added: Path) -> None:
    real = launcher.train(*SHORT, "mode=pairs", "mode.size=3", tracking=True)
    assert (real["mode"], real["samples"]["trained"]) == ("pairs", 2000) and real["global_step"] == 6
    assert launcher.replayed(launcher.started[0].run_dir)["identical"]
    schedule = "switch.schedule=[{at: {samples: 1000}, to: pairs, set: {local_batch: 128}}]"
    modelled = (*(text for text in SMALL if "threads" not in text), *SHORT, "cluster=virtual")
    there = launcher.train(*modelled, "mode=sync", schedule, small=False, tracking=True)
    assert [phase["mode"] for phase in there["phases"]] == ["sync", "pairs"]

    shown = json.loads(said(launcher, "report", "--format", "json"))
    assert [group["key"][0] for group in shown["groups"]] == ["pairs", "sync>pairs@day0:1024"]
    assert "pairs" in said(launcher, "switch", "--run", str(real["run_dir"]), "--to", "none", code=2)
    assert "sync" in (known := said(launcher, "train", "mode=none", code=2)) and "pairs" in known
    assert "mode.size does not belong" in said(launcher, "train", "mode=gba", "mode.size=3", code=2)

    for name in FILES:
        (added / name).unlink()
    assert "pairs" not in said(launcher, "train", "mode=none", code=2)
    assert "mode/pairs" in said(launcher, "train", "mode=pairs", code=2)
    assert "pairs is not known; type mode=" in said(launcher, "replay", str(real["run_dir"]), code=1)
    assert json.loads(said(launcher, "report", "--format", "json"))["groups"][0]["key"][0] == "pairs"
