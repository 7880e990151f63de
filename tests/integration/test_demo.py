"""`make demo`: what it runs is trained, compared, drawn and written."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.commands import run as gbactl

ROOT = Path(__file__).resolve().parents[2]
MODES = ("sync", "sync>async@day2", "sync>gba@day2")
SMALL = "cluster=virtual data.rows_per_day=3000 model.hidden=[8] model.dim=4"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy of the checkout that shares its environment, so that no store or run of the user is touched."""
    for name in ("Makefile", "pyproject.toml", "gbactl", "conf", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def make(checkout: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    command = ["make", "-s", "demo", *more]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr
    return done


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    """First line of each mode; a wide table goes on below, with the same names."""
    found: dict[str, list[str]] = {}
    for words in map(str.split, done.stdout.splitlines()):
        if words and words[0] in MODES:
            found.setdefault(words[0], words)
    return found


def typed(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """The commands that `make demo` would run, to their end, in forked processes: what they wrote, and make's echo."""
    planned = subprocess.run(["make", "-n", "demo", *more], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    out, err = "", ""
    for line in planned.replace("\\\n", "").splitlines():
        words = shlex.split(line)
        if words[0] == "echo":
            out += words[1]
        if words[0].endswith("/gbactl"):
            arguments, target = (words[1:-2], words[-1]) if words[-2] == ">" else (words[1:], "")
            done = gbactl(*arguments, cwd=folder, environment=environment, seconds=300)
            assert done.returncode == 0, done.stderr
            err += done.stderr
            if target:
                (folder / target).write_text(done.stdout)
            else:
                out += done.stdout
    return subprocess.CompletedProcess(["make", "demo", *more], 0, out, err)


@pytest.mark.beside
@pytest.mark.slow
def test_a_small_demo_goes_on_from_its_bases_and_again_where_it_was(tmp_path: Path) -> None:
    done = typed(tmp_path, f"DEMO=experiment=demo {SMALL}", "SEEDS=0,1")
    assert {mode: row[1] for mode, row in rows(done).items()} == dict.fromkeys(MODES, "2")
    assert done.stderr.count("The run goes on in gba from step") == 2
    assert "EPS / sync" in done.stdout
    assert "All columns are of day 2 alone; of the whole run: virtual s, wall s." in done.stdout
    made = tmp_path / "runs/demo"
    page = (made / "report.html").read_text()
    assert page.rstrip().endswith("</html>") and page.count("<figure") >= 5 and len(list(made.glob("*.svg"))) >= 4
    assert "runs/demo/report.html" in done.stdout and "make ui" in done.stdout
    (made / "gba-1/result.json").write_text('{"status": "KILLED"}')
    again = typed(tmp_path, f"DEMO=experiment=demo {SMALL}", "SEEDS=0,1")
    assert again.stderr.count(", finished before, runs/demo/") == 7
    assert {mode: row[1:4] for mode, row in rows(again).items()} == {m: r[1:4] for m, r in rows(done).items()}


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_make_demo_shows_what_a_switch_does(checkout: Path) -> None:
    """With a slow worker, both modes are faster than sync; async loses AUC, gba far less."""
    found = rows(make(checkout))
    assert {mode: row[1] for mode, row in found.items()} == dict.fromkeys(MODES, "4")
    auc = {mode: float(row[2]) for mode, row in found.items()}
    assert min(auc.values()) > 0.7
    assert auc["sync"] - auc["sync>async@day2"] > 3 * abs(auc["sync"] - auc["sync>gba@day2"])
