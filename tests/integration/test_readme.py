"""Every command of the README runs. Blocks marked `sh` run here as they stand; the rest is named below."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.readme import README, commands

pytestmark = pytest.mark.beside

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all commands, in order: later ones read what earlier ones wrote."""
    return tmp_path_factory.mktemp("readme")


def environment(workplace: Path) -> dict[str, str]:
    tools = str(Path(sys.executable).parent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    return {**kept, "PATH": f"{tools}:{os.environ['PATH']}", "GBACTL_CACHE": str(workplace / "cache")}


@pytest.mark.parametrize("command", commands("sh"))
def test_command(workplace: Path, command: str) -> None:
    """Exit code 0 and something to read."""
    done = subprocess.run(
        shlex.split(command), cwd=workplace, env=environment(workplace), capture_output=True, text=True,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.slow
def test_own_data_commands(workplace: Path) -> None:
    """They take the formats they name. (Those of "Several machines" run in test_hosts.py.)"""
    from tests.support.samples import write_samples

    folder = workplace / "own"
    write_samples(folder)
    small = ["model.hidden=[8]", "model.dim=4", "train.global_batch=64", "cluster.workers=2", "cluster.servers=1"]
    for command in commands("text", "Your data"):
        if not command.startswith("gbactl "):
            continue
        words = shlex.split(command)
        extra = [w for w in small if not any(given.split("=")[0] == w.split("=")[0] for given in words)]
        extra = [] if words[1] == "data" else extra
        done = subprocess.run(
            [*words, *extra], cwd=folder, env=environment(workplace), capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_make_targets_are_there() -> None:
    """Every `make` target that the README names is in `make help`."""
    command = ["make", "-s", "--no-print-directory", "-C", str(ROOT), "help"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = README.split("make install |")[1].split("\n")[0]
    named = set(re.findall(r"make ([a-z-]+)", README)) | set(re.findall(r"([a-z-]+)", listed))
    assert {"demo", "test"} <= named
    for target in named:
        assert f"make {target} " in help_text
