"""Screenshots of the documentation, which `make screenshots` takes: a sweep in MLflow, its report, `gbactl top`.

The sweep is as `make demo`, on the virtual cluster: from a base of two days of sync a job goes on for a day in three
modes, with one slow worker. The job that `gbactl top` watches has real processes.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from gbactl.launch.control_socket import ControlClient
from gbactl.launch.live_view import Keys, screen
from tests.support.browser import COMMAND, chromium, close_assistant, environment, mlflow_ui, new_page
from tests.support.processes import wait_for

MODES, SEEDS, ROUND = "sync,gba,async", "0,1,2", "day 2"
BASE = ("train", "-m", "experiment=demo", "cluster=virtual", f"seed={SEEDS}", "run_dir=runs/base-${seed}")
SWEEP = (
    "train", "-m", f"mode={MODES}", f"seed={SEEDS}", "resume=runs/base-${seed}", "train.days=3", "faults=one_slow",
    "checkpoint.save_seconds=0", "checkpoint.interval_seconds=1000", "train.eval_every=75000",
    "tracking.experiment=demo", "run_dir=runs/${mode.name}-${seed}",
)  # fmt: skip
REPORT = ("report", "--experiment", "demo", "--round", ROUND, "--format", "html")
NAME = f"{MODES} s{SEEDS}"
WATCHED = (
    "train", "experiment=smoke", "faults=one_slow", "mode=gba", "data.rows_per_day=300000", "tracking.enabled=false",
    "run_dir=runs/gba",
)  # fmt: skip
WIDTH, COLOURS = 1280, 200


def shoot(page: Any, path: Path) -> None:
    """Write what a page shows as a PNG file with a palette."""
    page.wait_for_timeout(2500)  # charts and panels move for a moment
    page.screenshot(path=path)
    picture = Image.open(path).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


def named(before: str, mode: str, after: str = "") -> re.Pattern[str]:
    """Return a pattern for the name of the runs that went on in a mode from a base in sync: sync>gba@step294 s1."""
    return re.compile(rf"^{before}(sync>)?{mode}(@\w+)?{after}$")


def widen_list(page: Any, pixels: int) -> None:
    """Drag the border between the list of runs and the charts to the right, so that no name is cut off."""
    box = page.locator(".ag-root").first.bounding_box()
    right, middle = box["x"] + box["width"], box["y"] + box["height"] / 2
    page.mouse.move(right, middle)
    page.mouse.down()
    page.mouse.move(right + pixels, middle)
    page.mouse.up()
    page.mouse.move(0, 0)  # away from the border, which is blue below the mouse


def shoot_mlflow(browser: Any, address: str, pictures: Path) -> None:
    """Take the pictures of the MLflow UI, whose page by mode is at `address`."""
    page = new_page(browser, 1400)  # for the names of groups beside two columns of charts
    page.goto(address)
    page.get_by_text(named("Group: ", "gba")).wait_for()
    close_assistant(page)
    page.get_by_role("button", name="Hide banner").click()
    wait_for(lambda: page.locator(".js-plotly-plot").count() >= 2, 60)
    widen_list(page, 110)
    shoot(page, pictures / "by-mode.png")
    page = new_page(browser, WIDTH)
    page.goto(address.partition("&compareRunsMode")[0])
    sweep = page.get_by_role("link", name=NAME)
    sweep.wait_for()
    close_assistant(page)
    path = str(sweep.get_attribute("href"))
    page.locator("[role=row]", has=sweep).first.get_by_role("button").first.click(force=True)
    page.get_by_role("link", name=named("", "gba", " s1")).wait_for()
    page.set_viewport_size({"width": WIDTH, "height": 660})
    shoot(page, pictures / "runs.png")
    page = new_page(browser, 1600)  # narrower, it cuts off what stands on its right
    page.goto(f"{address.partition('/#')[0]}/{path.lstrip('/')}?workflowType=machine_learning")
    page.get_by_text("Against sync: ").first.wait_for()
    close_assistant(page)
    page.get_by_text("Show more").click()
    shoot(page, pictures / "sweep.png")
    page = new_page(browser, WIDTH)
    page.goto(address)
    page.get_by_text(named("Group: ", "gba")).wait_for()
    close_assistant(page)
    for mode in MODES.split(","):
        row = page.locator("[role=row]", has=page.get_by_text(named("", mode, " s0"))).first
        row.get_by_role("checkbox").first.check(force=True)
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Comparing 3 Runs from 1 Experiment").wait_for()
    page.goto(f"{page.url}&workflowType=machine_learning")
    page.set_viewport_size({"width": WIDTH, "height": 1000})
    page.get_by_text("Visualizations", exact=True).click(timeout=10000)
    page.get_by_role("switch").first.click()  # of the parameters, those that differ
    shoot(page, pictures / "compare.png")


def shoot_report(browser: Any, report: Path, pictures: Path) -> None:
    """Take the top of the page of `gbactl report --format html`, and who was slow."""
    page = new_page(browser, WIDTH)
    page.goto(report.as_uri())
    shoot(page, pictures / "report.png")
    page.set_viewport_size({"width": WIDTH, "height": 960})
    page.get_by_role("heading", name="Who was slow, and when").evaluate("found => scrollTo(0, found.offsetTop - 70)")
    shoot(page, pictures / "report-slow.png")


def watched(folder: Path, text: Path) -> None:
    """Train on real processes, and write what `gbactl top` shows of that on a terminal of 90 columns, as SVG."""
    training = subprocess.Popen([*COMMAND, *WATCHED], cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    run_dir = folder / "runs/gba"
    wait_for(lambda: (run_dir / "control.json").exists())
    with ControlClient(run_dir) as client:
        wait_for(lambda: client.status().get("auc") is not None)
        time.sleep(1.5)
        client.status()
        time.sleep(1.0)
        console = Console(record=True, width=90, file=io.StringIO(), force_terminal=True)
        console.print(screen("runs/gba", client.status(), Keys.HINT))
        svg = console.export_svg(title="gbactl top")
        text.write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))  # fonts from elsewhere
    training.terminate()
    training.wait(60)


def main() -> None:
    """Run the sweep and the job in a temporary folder, and take the pictures into the folder that is typed."""
    pictures = Path(sys.argv[1])
    pictures.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, chromium() as browser:
        folder = Path(name)
        for verb, to in ((BASE, os.devnull), (SWEEP, os.devnull), (REPORT, folder / "report.html")):
            with open(to, "w") as out:
                subprocess.run([*COMMAND, *verb], cwd=folder, env=environment(), check=True, stdout=out)
        with mlflow_ui(folder) as address:
            shoot_mlflow(browser, address, pictures)
        shoot_report(browser, folder / "report.html", pictures)
        watched(folder, pictures / "top.svg")


if __name__ == "__main__":
    try:
        main()
    except pytest.skip.Exception as missing:
        sys.exit(f"{missing}; type: apt install chromium, and pip install -e '.[browser]'")
