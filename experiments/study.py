"""Run a study: the cells of a sweep file, one training each; can be interrupted and continued.

    .venv/bin/python experiments/study.py experiments/gba_claims/sweep.yaml [--part NAME] [--size full] [--list]

A cell is a part's `common` overrides with one combination of its `grid`. Its key is a hash of the resolved
configuration and of gbactl's source; a cell with a result under runs/studies/ is not run again.
Costs one `gbactl train` a cell; `jobs` cells of a part run in parallel (virtual clusters use one core each). A part
with `idle: true` measures times only and computes no gradient (see timing_only.py).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
STUDIES = Path("runs/studies")
LIMIT_SECONDS = 1800.0
BATCHES = "+tracking.tags.batches="
NUMBERS_DO_NOT_DEPEND_ON = ("advise", "calibration", "cli", "report", "tracking", "install", "doctor.py", "__pycache__")


@dataclass(frozen=True)
class Cell:
    """One training of a study."""

    study: str
    part: str
    overrides: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name for messages: the part and the overrides that its grid varies."""
        return f"{self.part}: {' '.join(self.overrides)}"


@dataclass(frozen=True)
class Part:
    """Group of cells, of which `jobs` run in parallel. `needs`: an environment variable; `idle`: see timing_only.py."""

    name: str
    jobs: int
    cells: tuple[Cell, ...]
    common: tuple[str, ...]
    needs: str = ""
    idle: bool = False

    @property
    def missing(self) -> str:
        """Name of the environment variable without which this part cannot run, if it is not set."""
        return "" if os.environ.get(self.needs) else self.needs


def read_study(path: Path, size: str = "default") -> list[Part]:
    """Read the parts of a sweep file; `size` selects the changes under a part's `sizes.SIZE`. Raises ValueError."""
    sweep: dict[str, Any] = yaml.safe_load(path.read_text())
    parts = [_part(sweep, name, values, size) for name, values in sweep["parts"].items()]
    if len({cell.overrides for part in parts for cell in part.cells}) != sum(len(p.cells) for p in parts):
        raise ValueError(f"{path}: two cells of one study are the same.")
    return parts


def _part(sweep: dict[str, Any], name: str, values: dict[str, Any], size: str) -> Part:
    change = values.get("sizes", {}).get(size, {})
    common = (*sweep.get("common", ()), *values.get("common", ()), *change.get("common", ()))
    grid = {**values.get("grid", {}), **change.get("grid", {})}
    cells = tuple(Cell(sweep["study"], name, (*common, *chosen)) for chosen in combinations(grid))
    needs, idle = str(values.get("needs", "")), bool(values.get("idle", False))
    return Part(name, int(values.get("jobs", 1)), cells, common, needs, idle)


def combinations(grid: dict[str, Sequence[Any]]) -> Iterator[tuple[str, ...]]:
    """Iterate over the combinations of a grid's values. A value may be a list of overrides that belong together."""
    for chosen in itertools.product(*grid.values()):
        found: list[str] = []
        for key, value in zip(grid, chosen, strict=True):
            found += [str(v) for v in value] if isinstance(value, list) else [f"{key}={value}"]
        yield tuple(found)


def code_version(package: Path = ROOT / "gbactl") -> str:
    """Hash (12 hex digits) of every source file on which a run's numbers can depend."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        if path.suffix in (".py", ".cpp") and not set(parts) & set(NUMBERS_DO_NOT_DEPEND_ON):
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def key_of(cell: Cell, version: str) -> str:
    """Name of a cell's folder; for a timing-only cell (see timing_only.py) it includes the number of batches."""
    from gbactl.config import to_dict
    from gbactl.launch.hydra_config import compose
    from gbactl.tracking.final_metrics import config_hash

    batches = "".join("-" + o.removeprefix(BATCHES).strip("'") for o in cell.overrides if o.startswith(BATCHES))
    return f"{config_hash(to_dict(compose(list(cell.overrides))))}{batches}-{version}"


def finished(folder: Path) -> bool:
    """Whether a cell has a result."""
    try:
        return bool(json.loads((folder / "result.json").read_text())["status"] == "FINISHED")
    except (OSError, ValueError, KeyError):
        return False


def command(cell: Cell, folder: Path, version: str) -> list[str]:
    """Command line of a cell's training. Tags let `gbactl report --where` find it."""
    return [
        sys.executable, "-m", "gbactl", "train", *cell.overrides, f"run_dir={folder}",
        f"tracking.experiment={cell.study}", f"+tracking.tags.part={cell.part}", f"+tracking.tags.code={version}",
    ]  # fmt: skip


def folder_of(cell: Cell, version: str) -> Path:
    """Folder of a cell's run. Not for threads: Hydra composes one configuration at a time."""
    return STUDIES / cell.study / key_of(cell, version)


def run(cell: Cell, folder: Path, version: str) -> float:
    """Train a cell unless it has a result; return the seconds it took. Raises SystemExit when it fails."""
    if finished(folder):
        return 0.0
    shutil.rmtree(folder, ignore_errors=True)
    began = time.monotonic()
    done = subprocess.run(
        command(cell, folder, version), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"{cell.name}\nfailed: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    return time.monotonic() - began


def run_idle(cell: Cell, folder: Path, version: str) -> float:
    """Run a timing-only cell unless it has a result; return the seconds it took."""
    if finished(folder):
        return 0.0
    import timing_only  # a script in the same folder, not a package

    return timing_only.run(cell.overrides, folder)


def _pool(part: Part) -> Executor:
    """Executor of a part: processes where cells run in them, else threads that wait for processes."""
    if not part.idle:
        return ThreadPoolExecutor(part.jobs)
    os.environ["OMP_NUM_THREADS"] = "1"
    return ProcessPoolExecutor(part.jobs, multiprocessing.get_context("spawn"))


def run_part(part: Part, version: str) -> None:
    """Run every cell of a part, reporting each."""
    folders = [folder_of(cell, version) for cell in part.cells]
    job_of = run_idle if part.idle else run
    with _pool(part) as pool:
        pending = [
            (cell, pool.submit(job_of, cell, folder, version)) for cell, folder in zip(part.cells, folders, strict=True)
        ]
        try:
            for number, (cell, job) in enumerate(pending, 1):
                seconds = job.result()
                took = f"{seconds:.0f} s" if seconds else "was there"
                shown = " ".join(o for o in cell.overrides if o not in part.common)
                print(f"{part.name} {number}/{len(part.cells)}  {shown}  {took}", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the study's sweep.yaml")
    parser.add_argument("--part", action="append", metavar="NAME", help="this part alone; may be repeated")
    parser.add_argument("--size", default=os.environ.get("SIZE", "default"), help="default or full (also: SIZE=full)")
    parser.add_argument("--list", action="store_true", help="say which cells there are, and run none")
    given = parser.parse_args()
    parts = read_study(given.sweep, given.size)
    chosen = [part for part in parts if not given.part or part.name in given.part]
    if not chosen:
        sys.exit(f"There is no such part; --part takes one of: {', '.join(part.name for part in parts)}.")
    version = code_version()
    for part in chosen:
        if given.list:
            print("\n".join(cell.name for cell in part.cells))
        elif part.missing:
            print(f"{part.name}: left out, {part.missing} is not set", file=sys.stderr)
        else:
            run_part(part, version)
            if code_version() != version:
                sys.exit(f"gbactl's source changed while {part.name} ran; type the command again for the new version.")
    if not given.list:
        print(version)


if __name__ == "__main__":
    main()
