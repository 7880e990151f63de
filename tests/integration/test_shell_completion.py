"""Completion in shells with the lines of the page on installation, typed on a terminal, and the time of --help."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import statistics
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.support.pages import blocks
from tests.support.processes import seen

SHELLS = {"bash": ("--norc", "-i"), "zsh": ("-f", "-i"), "fish": ("--no-config", "-i")}


@pytest.mark.parametrize("shell", SHELLS)
def test_groups_and_keys_are_completed_in_a_shell(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (setup,) = (block.text for block in blocks("docs/start/install.md", shell))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        more = {"PATH": path, "HOME": str(tmp_path), "TERM": "xterm"}
        os.execvpe(shell, [shell, *SHELLS[shell]], {**os.environ, **more})
    termios.tcsetwinsize(terminal, (24, 200))
    try:
        os.write(terminal, f"{setup.replace('compinit', 'compinit -u')}echo re''ady\n".encode())
        seen(terminal, "ready")
        os.write(terminal, b"gbactl train mode=hop\t")
        seen(terminal, "_b")  # both that there are begin like this
        os.write(terminal, b"s mode.iot\t3 --tr\t")
        assert re.search("a=.*3.*--tr", seen(terminal, "ace"), re.DOTALL)  # fish moves the cursor between the words
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(terminal)


@pytest.mark.slow
@pytest.mark.alone
def test_help_takes_less_than_a_third_of_a_second() -> None:
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "gbactl", "--help"], capture_output=True, check=True, timeout=100)
        taken.append(time.perf_counter() - began)
    assert statistics.median(taken) < 0.3
