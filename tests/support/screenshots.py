"""Screenshots of the documentation, which `make screenshots` takes: a sweep in MLflow, its report, `gbactl top`.

The sweep runs on the virtual cluster; the job that `gbactl top` watches has real processes.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console

from gbactl.launch.control_socket import ControlClient
from gbactl.launch.live_view import Keys, screen
from tests.support.browser import COMMAND, chromium, close_assistant, environment, mlflow_ui, new_page
from tests.support.processes import wait_for

SETTING = ("experiment=smoke", "faults=one_slow")
MODES, SEEDS = "sync,gba,async", "0,1,2"
SWEEP = ("train", "-m", *SETTING, "cluster=virtual", "data.rows_per_day=60000", f"mode={MODES}", f"seed={SEEDS}")
NAME = f"{MODES} s{SEEDS}"
WATCHED = ("train", *SETTING, "mode=gba", "data.rows_per_day=300000", "tracking.enabled=false", "run_dir=runs/gba")
WIDTH, COLOURS = 1280, 128


def shoot(page: Any, path: Path) -> None:
    """Write what a page shows as a PNG file with a palette."""
    page.wait_for_timeout(2500)  # charts and panels move for a moment
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB", flush=True)


def shoot_mlflow(browser: Any, address: str, pictures: Path) -> None:
    """Take the pictures of the MLflow UI, whose page by mode is at `address`."""
    page = new_page(browser, WIDTH)
    page.goto(address)
    page.get_by_text("Group: gba", exact=True).wait_for()
    close_assistant(page)
    wait_for(lambda: page.locator(".js-plotly-plot").count() >= 2, 60)
    shoot(page, pictures / "by-mode.png")
    page = new_page(browser, WIDTH)
    page.goto(address.partition("&compareRunsMode")[0])
    sweep = page.get_by_role("link", name=NAME)
    sweep.wait_for()
    close_assistant(page)
    path = str(sweep.get_attribute("href"))
    page.set_viewport_size({"width": WIDTH, "height": 400})
    shoot(page, pictures / "runs.png")
    page = new_page(browser, 1600)  # narrower, it cuts off what stands on its right
    page.goto(f"{address.partition('/#')[0]}/{path.lstrip('/')}?workflowType=machine_learning")
    page.get_by_text("Against sync: ").first.wait_for()
    close_assistant(page)
    page.get_by_text("Show more").click()
    shoot(page, pictures / "sweep.png")


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
        subprocess.run([*COMMAND, *SWEEP], cwd=folder, env=environment(), check=True, stdout=subprocess.DEVNULL)
        with (folder / "report.html").open("w") as report:
            subprocess.run(
                [*COMMAND, "report", "--format", "html"], cwd=folder, env=environment(), check=True, stdout=report
            )
        with mlflow_ui(folder) as address:
            shoot_mlflow(browser, address, pictures)
        shoot_report(browser, folder / "report.html", pictures)
        watched(folder, pictures / "top.svg")


if __name__ == "__main__":
    main()
