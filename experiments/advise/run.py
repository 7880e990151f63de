"""Measure, ask `gbactl advise`, train every mode on real processes, and write results.md (`make advise`).

    .venv/bin/python experiments/advise/run.py [--setting NAME] [--sparse]

Each step of a setting is kept under runs/studies/advise/ and not repeated: a calibration, the advice, a base in sync
for each seed, and a day in each mode from each base. Takes 15 minutes a setting on 2 cores that do nothing else;
what other processes used meanwhile stands in the table. --sparse tries it out: one seed, a day of 20,000 samples.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study  # noqa: E402  (a script in the same folder, not a package)
import truth  # noqa: E402

from gbactl.advise.advise_command import default_modes  # noqa: E402
from gbactl.calibration.short_local_runs import machine_cpu  # noqa: E402

DAYS = 2  # of the base
SPARSE = ("data.rows_per_day=20000",)


@dataclass(frozen=True)
class Setting:
    """Setting of the study: overrides of the machine's measurement, and of the load."""

    name: str
    machine: tuple[str, ...]
    load: tuple[str, ...]
    seeds: tuple[int, ...]
    minutes: float

    @property
    def key(self) -> str:
        """Hash of what a calibration and a base depend on."""
        return hashlib.sha256(" ".join(self.machine).encode()).hexdigest()[:8]


def settings(sparse: bool) -> list[Setting]:
    """Read settings.yaml."""
    told = yaml.safe_load((HERE / "settings.yaml").read_text())
    common = (*told["common"], *(SPARSE if sparse else ()))
    seeds, minutes = tuple(told["seeds"][:1] if sparse else told["seeds"]), 0.5 if sparse else told["minutes"]
    return [
        Setting(name, (*common, *own["machine"]), tuple(own["load"]), seeds, minutes)
        for name, own in told["settings"].items()
    ]


def command(arguments: Sequence[str]) -> tuple[str, float, float]:
    """Run a gbactl command; return its output, its seconds, and the cores that others used. Raises SystemExit."""
    began, before, own = time.monotonic(), machine_cpu(), _own()
    done = subprocess.run([sys.executable, "-m", "gbactl", *arguments], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode:
        raise SystemExit(f"gbactl {' '.join(arguments)}\nfailed: {(done.stderr.strip() or 'no output')[-500:]}")
    others = (machine_cpu() - before - (_own() - own)) / seconds
    return done.stdout, seconds, max(0.0, others)


def _own() -> float:
    """CPU seconds of this process's finished descendants."""
    used = os.times()
    return used.children_user + used.children_system


def once(kept: Path, arguments: Sequence[str], what: str) -> dict[str, Any]:
    """Run a command whose last line is JSON unless this was kept, and keep it with the cores that others used."""
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        out, seconds, others = command(arguments)
        told = {**json.loads(out.splitlines()[-1]), "step_seconds": seconds, "others": others}
        kept.write_text(json.dumps(told) + "\n")
        print(f"{what}: {seconds:.0f} s, others used {others:.2f} cores", file=sys.stderr, flush=True)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def trained(folder: Path, arguments: Sequence[str], what: str) -> dict[str, Any]:
    """Train in a folder unless there is a result."""
    kept = folder.with_suffix(".json")
    if not kept.exists():
        shutil.rmtree(folder, ignore_errors=True)
    return once(kept, ["train", "--json", *arguments, f"run_dir={folder}", TRACKED], what)


TRACKED = "tracking.experiment=advise_truth"


def calibrated(setting: Setting, folder: Path) -> Path:
    """Measure the machine for a setting, once for the settings that share it."""
    path = folder / f"cost-{setting.key}.yaml"
    arguments = ["calibrate", "--json", "--out", str(path), "--workers", "2,4", "--repeat", "2", *setting.machine]
    once(path.with_suffix(".json"), arguments, f"{setting.name}: calibration")
    return path


def run(setting: Setting, folder: Path) -> dict[str, Any]:
    """All steps of a setting; returns what results.md needs."""
    cost, own = calibrated(setting, folder), folder / setting.name
    version = study.code_version(study.ROOT / "gbactl" / "advise")
    asked = [
        "advise", f"cost={cost}", *setting.machine, *setting.load, "tracking.enabled=false", "--format", "json",
        "--minutes", str(setting.minutes),
    ]  # fmt: skip
    advice = once(own / f"advice-{version}.json", asked, f"{setting.name}: advice")
    runs: dict[str, list[dict[str, Any]]] = {mode: [] for mode in default_modes()}
    for seed in setting.seeds:
        base = folder / f"base-{setting.key}-s{seed}"
        keys = ("mode=sync", f"train.days={DAYS}", "checkpoint=full", f"seed={seed}")
        trained(base, [*setting.machine, *keys], f"{setting.name}: base of seed {seed}")
        for mode in runs:
            later = (f"resume={base}", f"mode={mode}", f"train.days={DAYS + 1}", "checkpoint=none", *setting.load)
            runs[mode].append(trained(own / f"{mode}-s{seed}", later, f"{setting.name}: {mode}, seed {seed}"))
    return {"setting": setting, "cost": cost.read_text(), "advice": advice, "runs": runs}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", action="append", metavar="NAME", help="this setting alone; may be repeated")
    parser.add_argument("--sparse", action="store_true", help="try it out; writes no results.md")
    given = parser.parse_args()
    chosen = [each for each in settings(given.sparse) if given.setting is None or each.name in given.setting]
    folder = study.STUDIES / "advise" / (study.code_version() + ("-sparse" if given.sparse else ""))
    text = truth.text([run(setting, folder) for setting in chosen], study.code_version())
    if not given.sparse and given.setting is None:
        (HERE / "results.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
