"""`pip install .` gives a wheel that works away from the checkout: conf/ and kernels inside."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREE = ("pyproject.toml", "README.md", "gbactl", "conf")


def run(command: list[str | Path], cwd: Path, **environment: str) -> str:
    env = {**os.environ, **environment}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_installed_wheel_works_outside_the_tree(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"gbactl/{path.relative_to(ROOT)}" for path in (ROOT / "conf").rglob("*.yaml")} <= names
    assert any(name.startswith("gbactl/kernels/_native") and name.endswith(".so") for name in names)
    assert {"gbactl/kernels/kernels.cpp", "gbactl/py.typed", "gbactl/__init__.pyi"} <= names
    assert not any(name.startswith(("conf/", "tests/", "experiments/")) for name in names)

    folder, away = tmp_path / "venv", tmp_path / "away"
    away.mkdir()
    installed(wheel, folder)
    gbactl = folder / "bin" / "gbactl"
    assert run([gbactl, "--version"], away).startswith("gbactl, version")
    printed = run([gbactl, "train", "mode=gba", "--cfg", "job"], away)
    assert "name: gba" in printed
    where = "import gbactl, gbactl.conf_catalogue; print(gbactl.__file__, gbactl.conf_catalogue.conf_dir())"
    package, conf = run([folder / "bin" / "python", "-c", where], away).split()
    assert Path(package).is_relative_to(folder)
    assert Path(conf).is_relative_to(folder)
    code = "from gbactl.kernels import load; print(type(load('native')).__name__)"
    assert "Native" in run([folder / "bin" / "python", "-c", code], away)


def built(folder: Path) -> Path:
    """Build a wheel from a copy of the sources, without what an earlier build left there."""
    tree = folder / "tree"
    tree.mkdir()
    ignore = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in TREE:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, tree / name)
    options = ["--no-deps", "--no-build-isolation", "-w", "out", "."]
    run([sys.executable, "-m", "pip", "wheel", "-q", *options], tree)
    return next((tree / "out").glob("gbactl-*.whl"))


def installed(wheel: Path, folder: Path) -> None:
    """Make an environment with the wheel; its libraries are those of this Python, through a .pth file."""
    run([sys.executable, "-m", "venv", folder], folder.parent)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel]
    run(pip, folder)
    packages = next(folder.glob("lib/python*/site-packages"))
    # Plain paths only: the editable finder of the outer environment must not be started here.
    (packages / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n")
