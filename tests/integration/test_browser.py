"""The MLflow UI in a real browser, as a new user meets it after a sweep."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gbactl
from tests.support.processes import wait_for
from tests.support.sockets import free_port

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(280)]

SMALL = (
    "cluster=virtual", "data.days=3", "data.rows_per_day=4000", "data.max_cardinality=100", "data.numeric=2",
    "data.fields=4", "model.dim=4", "model.hidden=[8]", "train.global_batch=64", "collective=shm",
)  # fmt: skip
MODES, SEEDS = ("sync", "async", "gba"), ("0", "1")
WAIT = 60_000.0  # ms for a page that a busy machine serves
WIDTHS = {"wide": 1400, "narrow": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, headless."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: the extra gbactl[browser]")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: Debian's package of that name")
    with api.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def address(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page that `gbactl ui` says to open, on the store of a sweep."""
    folder = tmp_path_factory.mktemp("ui")
    environment = {key: value for key, value in os.environ.items() if key != "MLFLOW_TRACKING_URI"}
    environment |= {"PYTHONPATH": str(Path(gbactl.__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "gbactl"]
    sweep = ("train", "-m", *SMALL, f"mode={','.join(MODES)}", f"seed={','.join(SEEDS)}")
    subprocess.run([*command, *sweep], cwd=folder, env=environment, check=True, timeout=200)
    ui = subprocess.Popen(
        [*command, "ui", "--port", str(free_port())], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert ui.stdout is not None
    ui.stdout.readline()
    found = re.fullmatch(r"Open (\S+) \(Ctrl-C ends it\)\n", ui.stdout.readline())
    assert found is not None
    yield found[1]
    ui.send_signal(signal.SIGTERM)
    ui.wait(30)


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of a browser that was never used; without MLflow's assistant, which a first visit opens."""
    context = browser.new_context(viewport={"width": WIDTHS[getattr(request, "param", "wide")], "height": 900})
    context.set_default_timeout(WAIT)
    opened = context.new_page()
    yield opened
    context.close()


def close_assistant(page: Any) -> None:
    closing = page.get_by_role("button", name="Close")
    closing.last.wait_for()
    closing.last.click()


@pytest.mark.parametrize("page", WIDTHS, indirect=True)
def test_the_page_shows_the_main_metrics_by_mode_and_compares_three_runs(address: str, page: Any) -> None:
    page.goto(address)
    for mode in MODES:
        page.get_by_text(f"Group: {mode}", exact=True).wait_for()
    close_assistant(page)
    for metric in ("auc", "loss", "eps", "staleness"):
        page.get_by_text(metric, exact=True).first.wait_for()
    wait_for(lambda: page.locator(".js-plotly-plot").count() >= 2, 60)
    for mode in MODES:
        row = page.locator("[role=row]", has=page.get_by_text(f"{mode} s0", exact=True)).first
        row.get_by_role("checkbox").first.check(force=True)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Comparing 3 Runs from 1 Experiment").wait_for()
    for mode in MODES:
        page.get_by_text(f"{mode} s0", exact=True).first.wait_for()
    assert page.locator(".js-plotly-plot").count() >= 1


def test_a_sweep_is_one_line_whose_page_says_what_was_found(address: str, page: Any) -> None:
    page.goto(address.partition("&compareRunsMode")[0])
    page.get_by_role("link", name="sync,async,gba s0,1").wait_for()
    assert page.get_by_text("gba s0", exact=True).count() == 0, "its runs are below it"
    close_assistant(page)
    page.get_by_role("link", name="sync,async,gba s0,1").click()
    page.get_by_text("Against sync: ").first.wait_for()
    page.get_by_role("link", name="gba s1", exact=True).click()
    page.get_by_text("mode gba: 4 workers").first.wait_for()
    page.get_by_text("train/samples_read").first.wait_for()
    assert page.get_by_text("synthetic (").first.is_visible(), "its data sets"
