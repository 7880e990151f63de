"""Calibrate, train on the local and on the virtual cluster, and write results.md (`make calibration`).

    .venv/bin/python experiments/calibration/run.py [--again]

Finished cells are not run again. The calibration is kept in calibrated.yaml and repeated only if the code changed or
--again is given. A local run during which other processes used the machine is repeated, up to twice. Takes 20 minutes
on 2 cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import accuracy  # noqa: E402  (a script in the same folder, not a package)
import study  # noqa: E402

from gbactl.calibration.short_local_runs import QUIET, undisturbed  # noqa: E402
from gbactl.cpu import available_cores  # noqa: E402
from gbactl.data.cache import prepare  # noqa: E402
from gbactl.data.dataset import open_dataset  # noqa: E402
from gbactl.launch.hydra_config import compose  # noqa: E402

SWEEP = HERE / "sweep.yaml"
MODEL = HERE / "calibrated.yaml"
SECONDS, REPEAT = 8, 2


def say(text: str) -> None:
    """Print progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def calibrate() -> None:
    """Write calibrated.yaml. Raises SystemExit when that fails."""
    command = [
        sys.executable, "-m", "gbactl", "calibrate", "--out", str(MODEL), "--workers", "2,4",
        "--seconds", str(SECONDS), "--repeat", str(REPEAT), "cluster.servers=1",
    ]  # fmt: skip
    if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
        raise SystemExit("The calibration failed.")
    MODEL.write_text(f"{stamp()}\n{MODEL.read_text()}")


def stamp() -> str:
    """First line of a calibration file written by this code."""
    return f"# Code: {study.code_version()}"


def calibrated() -> bool:
    """Whether calibrated.yaml exists and was written by this code."""
    return MODEL.exists() and MODEL.read_text().startswith(stamp())


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Observe a run on real processes: a cell of the part `local` (see study.py)."""
    cfg = compose(list(overrides))
    return dataclasses.asdict(undisturbed(cfg, open_dataset(prepare(cfg.data)), folder, say))


def local(part: study.Part) -> list[dict[str, Any]]:
    """Run the cells of the part on real processes that have no observation by this code of a quiet machine."""
    record = study.Record(study.STUDIES / "calibration" / study.RECORD)
    allowed = QUIET * len(available_cores())
    record.lines = {key: line for key, line in record.lines.items() if line["result"]["others"] <= allowed}
    study.run_parts([part], record, again=True)
    return [record.lines[cell.overrides]["result"] for cell in part.cells]


def virtual(part: study.Part) -> list[dict[str, Any]]:
    """Run every cell of the part on the virtual cluster, and return mode, workers and phase_eps of each."""
    results = [study.trained(cell) for cell in part.cells]
    return [{"mode": r["mode"], "workers": len(r["per_worker"]), "phase_eps": r["eps"]} for r in results]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--again", action="store_true", help="calibrate even if calibrated.yaml is by this code")
    given = parser.parse_args()
    if given.again or not calibrated():
        calibrate()
    parts = {part.name: part for part in study.read_study(SWEEP, os.environ.get("SIZE", "default"))}
    text = accuracy.text(local(parts["local"]), virtual(parts["virtual"]), MODEL.read_text())
    (HERE / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
