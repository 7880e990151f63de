"""Every command of README.md and of the pages under docs/ runs. How each is tested: tests/support/pages.py."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import run as gbactl
from tests.support.pages import ROOT, commands, pages, scripts
from tests.support.samples import write_samples

SECONDS = 240
LONG_SECONDS = 1200
START = tuple(Path("docs/start") / name for name in ("install.md", "first-run.md", "reading-the-table.md"))
# the pages of a sequence share a directory
MEASURED = tuple(Path("docs/how-to") / name for name in ("size-a-cluster.md", "ask-which-mode.md"))
# of the same runs, and a sweep trains none twice
COMPARED = tuple(
    Path("docs") / name
    for name in ("how-to/choose-a-mode.md", "how-to/async-worse-than-one-machine.md", "tutorials/a-bad-day.md")
)
TOGETHER = (START, MEASURED, COMPARED)
SEQUENCES = [*TOGETHER, *((page,) for page in pages() if not any(page in sequence for sequence in TOGETHER))]


def environment(workplace: Path) -> dict[str, str]:
    tools = str(Path(sys.executable).parent)
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    return {**kept, "PATH": f"{tools}:{os.environ['PATH']}", "GBACTL_CACHE": str(workplace / "cache")}


def one_by_one(script: str, folder: Path, workplace: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    """Of a script that is nothing but gbactl commands: no shell is needed, nor one Python after the other started."""
    for line in script.splitlines():
        typed, _, file = line.partition(" > ")
        done = gbactl(*shlex.split(typed)[1:], cwd=folder, environment=environment(workplace), seconds=seconds)
        if done.returncode:
            break
        if file:
            (folder / file).write_text(done.stdout)
    return done


def by_bash(script: str, folder: Path, workplace: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment(workplace), capture_output=True,
        text=True, timeout=seconds,
    )  # fmt: skip


def run(script: str, folder: Path, workplace: Path, seconds: float = SECONDS) -> None:
    """Exit code 0, and something to read."""
    commands_alone = all(re.fullmatch(r"gbactl [^;&|<>$`]*( > [\w.-]+)?", line) for line in script.splitlines())
    done = (one_by_one if commands_alone else by_bash)(script, folder, workplace, seconds)
    assert done.returncode == 0, f"{script}\n{done.stderr}"
    assert done.stdout.strip(), script


def sequences(mark: str) -> list[object]:
    """Sequences of pages with a block of that mark."""
    found = [pages for pages in SEQUENCES if any(scripts(page, mark) for page in pages)]
    return [pytest.param(pages, id=str(pages[0])) for pages in found]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the data cache that all commands share."""
    return tmp_path_factory.mktemp("pages")


@pytest.mark.beside
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sequence", sequences(""))
def test_commands(sequence: Sequence[Path], workplace: Path, tmp_path: Path) -> None:
    """In order, in one directory: later commands read what earlier ones wrote."""
    for page in sequence:
        for script in scripts(page, ""):
            run(script, tmp_path, workplace)


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("sequence", sequences("slow"))
def test_long_commands(sequence: Sequence[Path], workplace: Path, tmp_path: Path) -> None:
    """After those that write a file or a schema here."""
    shutil.copy(ROOT / "conf" / "cost" / "busy.yaml", tmp_path / "mine.yaml")  # what a calibration writes
    for page in sequence:
        for script in scripts(page, "", "slow"):
            if "<<" in script or "infer-schema" in script or script in scripts(page, "slow"):
                run(script, tmp_path, workplace, LONG_SECONDS)


@pytest.mark.slow
@pytest.mark.beside
def test_own_data_commands(workplace: Path) -> None:
    """They take the formats they name."""
    folder = workplace / "own"
    write_samples(folder)
    small = ["model.hidden=[8]", "model.dim=4", "train.global_batch=64", "cluster.workers=2", "cluster.servers=1"]
    lines = [line for page in pages() for line in commands(page, "own data")]
    assert {word for line in lines for word in line.split() if word.startswith("data=")} >= {
        f"data={name}" for name in ("criteo", "criteo_multihot", "avazu", "taobao", "libfm", "movielens", "table")
    }
    for line in lines:
        words = shlex.split(line)
        extra = [w for w in small if not any(given.split("=")[0] == w.split("=")[0] for given in words)]
        run(line if words[1] == "data" else shlex.join([*words, *extra]), folder, workplace)


@pytest.mark.beside
def test_make_targets_are_there() -> None:
    """Every `make` target that a page names is in `make help`."""
    command = ["make", "-s", "--no-print-directory", "-C", str(ROOT), "help"]
    help_text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for page in pages() for line in commands(page, "make")]
    assert all(line.startswith("make ") for line in lines), lines
    named = {words.split()[1] for words in lines}
    named |= {target for page in pages() for target in re.findall(r"`make ([a-z-]+)", (ROOT / page).read_text())}
    assert {"demo", "test"} <= named
    for target in named:
        assert f"make {target} " in help_text
