"""The MLflow UI and the HTML report in a real browser, as a new user meets them after a sweep."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import COMMAND, chromium, close_assistant, environment, mlflow_ui, new_page
from tests.support.processes import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.beside, pytest.mark.timeout(280)]

SMALL = (
    "cluster=virtual", "data.days=3", "data.rows_per_day=4000", "data.max_cardinality=100", "data.numeric=2",
    "data.fields=4", "model.dim=4", "model.hidden=[8]", "train.global_batch=64", "collective=shm",
)  # fmt: skip
MODES, SEEDS = ("sync", "async", "gba"), ("0", "1")
WIDTHS = {"wide": 1400, "narrow": 900}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def folder(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Working directory in which a sweep was run."""
    made = tmp_path_factory.mktemp("ui")
    sweep = ("train", "-m", *SMALL, f"mode={','.join(MODES)}", f"seed={','.join(SEEDS)}")
    subprocess.run([*COMMAND, *sweep], cwd=made, env=environment(), check=True, timeout=200)
    return made


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    """The page that `gbactl ui` says to open, on the store of the sweep."""
    with mlflow_ui(folder) as found:
        yield found


@pytest.fixture
def page(browser: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A page of a browser that was never used."""
    opened = new_page(browser, WIDTHS[getattr(request, "param", "wide")])
    yield opened
    opened.context.close()


@pytest.mark.parametrize("page", WIDTHS, indirect=True)
def test_the_page_shows_the_main_metrics_by_mode_and_compares_three_runs(address: str, page: Any) -> None:
    page.goto(address)
    for mode in MODES:
        page.get_by_text(f"Group: {mode}", exact=True).wait_for()
    close_assistant(page)
    for metric in ("auc", "loss", "eps", "staleness"):
        page.get_by_text(metric, exact=True).first.wait_for()
    wait_for(lambda: page.locator(".js-plotly-plot").count() >= 2, 60)
    assert page.get_by_text("Unassigned").count() == 0, "the sweep's own run has no mode"
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


def test_the_html_report_draws_its_charts_sorts_its_table_and_hides_lines(folder: Path, page: Any) -> None:
    with (folder / "report.html").open("w") as out:
        subprocess.run([*COMMAND, "report", "--format", "html"], cwd=folder, env=environment(), check=True, stdout=out)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((folder / "report.html").as_uri())
    charts = page.locator("figure").count()
    wait_for(lambda: page.locator("figure svg.marks").count() == charts, 60)
    table = page.locator("table").first
    titles = table.locator("th").all_inner_texts()
    for title, begins in (("staleness mean / p50 / p99", float), ("mode", str)):
        for down in (False, True):
            table.locator("th").nth(titles.index(title)).click()
            cells = table.locator(f"td:nth-child({titles.index(title) + 1})").all_inner_texts()
            found = [begins(cell.partition("/")[0].strip()) for cell in cells]
            assert found == sorted(found, reverse=down) and len(set(cells)) == len(MODES)
    line = page.locator("figure").first.locator("path[stroke='var(--c1)']")
    assert line.count() > 0
    page.locator(".legend button").nth(1).click()
    wait_for(lambda: line.count() == 0, 30)
    assert page.pdf().startswith(b"%PDF") and not wrong
    background = "getComputedStyle(document.body).backgroundColor"
    white = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    assert (white, page.evaluate(background)) == ("rgb(255, 255, 255)", "rgb(20, 23, 28)")
    page.set_viewport_size({"width": 718, "height": 1047})  # A4 within Chromium's margins
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(background) == white, "ink is saved"
    ends = "Math.max(...[...document.querySelectorAll('table, figure')].map(e => e.getBoundingClientRect().right))"
    assert page.evaluate(ends) <= 718
    page.emulate_media(color_scheme="light", media="screen")
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    wide = page.locator("figure.wide svg.marks").first.bounding_box()
    assert wide["width"] >= 700, "its text can be read, and the figure is scrolled"
