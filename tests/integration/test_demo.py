"""`make demo`, from the installation on: what it runs is trained and printed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.beside
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_make_demo_prints_the_comparison(tmp_path: Path) -> None:
    """In a copy of the checkout that shares its environment, so that no store or run of the user is touched."""
    for name in ("Makefile", "pyproject.toml", "gbactl", "conf", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MLFLOW")}
    done = subprocess.run(["make", "demo"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("gbactl report --experiment demo")[2]
    lines = [line.split() for line in table.splitlines()]
    rows: dict[str, list[str]] = {}
    for words in lines:
        if words and words[0] in ("sync", "async", "gba"):
            rows.setdefault(words[0], words)  # a wide table goes on below, with the same names
    assert set(rows) == {"sync", "async", "gba"}, table
    assert all(row[1] == "3" and float(row[2]) > 0.7 for row in rows.values())
    assert "make ui" in done.stdout
