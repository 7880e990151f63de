"""Long commands show that they live, and a failure shows the end of its log."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from gbactl.install import InstallError, heartbeat, run


def test_a_heartbeat_line_comes_while_the_work_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    with heartbeat("building", "3 minutes", every=0.02):
        while "building: 0 s (about 3 minutes)" not in (seen := capsys.readouterr().err):
            assert "done" not in seen
            time.sleep(0.01)
    assert "building: done in" in capsys.readouterr().err


def test_a_failed_command_shows_its_last_lines_and_names_its_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "deep" / "build.log"
    with pytest.raises(InstallError, match=r"compiling failed with exit code 3.*build\.log"):
        run("compiling", [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], log)
    assert "    the reason" in capsys.readouterr().err
    assert "the reason" in log.read_text()
