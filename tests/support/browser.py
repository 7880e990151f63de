"""The MLflow UI in Chromium, for tests and for the screenshots of the documentation."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import gbactl
from tests.support.sockets import free_port

COMMAND = [sys.executable, "-m", "gbactl"]
WAIT = 60_000.0  # ms for a page that a busy machine serves


def environment() -> dict[str, str]:
    """Return the environment of a command with the tracking store of its working directory."""
    found = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    return found | {"PYTHONPATH": str(Path(gbactl.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}


@contextmanager
def chromium() -> Iterator[Any]:
    """Open Chromium, headless; a test is skipped where it or Playwright is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: the extra gbactl[browser]")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: Debian's package of that name")
    with api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@contextmanager
def mlflow_ui(folder: Path) -> Iterator[str]:
    """Run `gbactl ui` on the store of a folder; yield the address that it says to open."""
    ui = subprocess.Popen(
        [*COMMAND, "ui", "--port", str(free_port())], cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert ui.stdout is not None
        ui.stdout.readline()
        found = re.fullmatch(r"Open (\S+) \(Ctrl-C ends it\)\n", ui.stdout.readline())
        assert found is not None
        yield found[1]
    finally:
        ui.send_signal(signal.SIGTERM)
        ui.wait(30)


def new_page(browser: Any, width: int) -> Any:
    """Open a page of a browser that was never used."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    context.set_default_timeout(WAIT)
    return context.new_page()


def close_assistant(page: Any) -> None:
    """Close MLflow's assistant, which a first visit opens."""
    closing = page.get_by_role("button", name="Close")
    closing.last.wait_for()
    closing.last.click()
