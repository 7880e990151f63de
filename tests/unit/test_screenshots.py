"""`make screenshots` where it cannot take any."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.browser import environment


def test_what_is_missing_is_told_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.screenshots", str(tmp_path)]
    done = subprocess.run(command, env=environment() | {"PATH": ""}, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert "not installed" in done.stderr and "; type: " in done.stderr
