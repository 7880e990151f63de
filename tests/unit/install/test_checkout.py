"""The checkout's own set-up: the stamp, the torch pin, the Makefile's help."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import gbactl.install.__main__ as install

ROOT = Path(__file__).resolve().parents[3]
TARGETS = {"demo", "install", "test", "test-slow", "check", "docs", "bench", "curves", "ui", "clean", "help"} | {
    "frappe", "calibration", "gba-claims", "switching", "shadowsync", "cpr", "hosts", "precision", "map", "tuning",
    "scale", "mechanism", "prefetch", "advise", "soak", "fuzz", "audit", "screenshots", "slurm-cluster", "models",
    "vega",
}  # fmt: skip


def test_torch_is_pinned_exactly_and_installed_by_that_pin() -> None:
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", install.torch_requirement())


def test_the_stamp_changes_with_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in install.INPUTS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(install, "ROOT", tmp_path)
    before = install.fingerprint(True)
    assert install.fingerprint(True) == before
    assert install.fingerprint(False) != before
    for name in ("pyproject.toml", "gbactl/kernels/kernels.cpp"):
        (tmp_path / name).write_text("changed")
        assert install.fingerprint(True) != before
        (tmp_path / name).write_text(name)
    assert install.fingerprint(True) == before


def test_make_help_lists_every_target_with_its_comment() -> None:
    command = ["make", "--no-print-directory", "help"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    assert {line[1] for line in lines} == TARGETS
    assert all(len(line) == 3 for line in lines)
