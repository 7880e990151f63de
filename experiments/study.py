"""Run a study: the cells of a sweep file, one training each; can be interrupted and continued.

    .venv/bin/python experiments/study.py experiments/gba_claims/sweep.yaml [--part NAME] [--size full] [--list]

A cell is a part's `common` overrides with one combination of its `grid`. Its figures are kept as a line of cells.jsonl
beside the sweep file, which is committed; the run itself is under runs/studies/. A cell with a line is not run again,
whatever code version the line is of, unless --again asks for those of other versions. Its key is a hash of the resolved
configuration.
Costs one `gbactl train` a cell; `jobs` cells of a part run in parallel (virtual clusters use one core each).

A part with `base: {common: [...], by: [KEY, ...]}` trains a base for each combination of these keys of its grid, from
the part's `common` and, in place of it, the base's, and its cells go on from the end of their base: its days are
trained once. A value of another key may have overrides of the base too: {base: [...], cell: [...]}.
A part with `runner: MODULE` calls `run(overrides, folder)` of a script in this or the study's folder instead, such as
timing_only.py, which computes no gradient. One with `record: false` needs files of its runs, so it has no lines.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import itertools
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from gbactl.errors import GbactlError

ROOT = Path(__file__).resolve().parent.parent
STUDIES = Path("runs/studies")
LIMIT_SECONDS = 1800.0
BATCHES = "+tracking.tags.batches="
RECORD, BASES = "cells.jsonl", "bases"
NOT_RECORDED = {  # fields of a result that are long, of this machine, or of no use to a table
    "checksums", "curve", "distance", "event_log_bytes", "evaluated_on", "faults", "gbactl", "judged_auc",
    "judged_logloss", "judged_on", "memory", "per_worker", "rounds", "run_dir", "run_id", "staleness_histogram",
    "token_staleness",
}  # fmt: skip
NUMBERS_DO_NOT_DEPEND_ON = ("advise", "calibration", "cli", "report", "tracking", "install", "doctor.py", "__pycache__")


@dataclass(frozen=True)
class Cell:
    """One training of a study. `base`: overrides of the training from whose end it goes on; () for none."""

    study: str
    part: str
    overrides: tuple[str, ...]
    base: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name for messages: the part and the overrides that its grid varies."""
        return f"{self.part}: {' '.join(self.overrides)}"

    @property
    def origin(self) -> Cell | None:
        """Cell that trains the base, which is saved at its end; studies share their bases."""
        return Cell(BASES, BASES, self.base) if self.base else None


@dataclass(frozen=True)
class Part:
    """Group of cells, of which `jobs` run in parallel. `needs`: an environment variable; `runner`: a script's module.

    `recorded`: its cells' figures are kept in the study's record."""

    name: str
    jobs: int
    cells: tuple[Cell, ...]
    common: tuple[str, ...]
    needs: str = ""
    runner: str = ""
    recorded: bool = True

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
    changes = [sweep.get("sizes", {}).get(size, {}), values.get("sizes", {}).get(size, {})]
    more = (override for change in changes for override in change.get("common", ()))
    common = (*sweep.get("common", ()), *values.get("common", ()), *more)
    grid = dict(values.get("grid", {}))
    for change in changes:
        grid |= change.get("grid", {})
    base = values.get("base")
    cells = []
    for chosen in combinations(grid):
        own = tuple(override for each in chosen.values() for override in each.cell)
        origin: tuple[str, ...] = ()
        if base is not None:
            shared = (o for key, each in chosen.items() for o in (each.cell if key in base["by"] else each.base))
            origin = last_of_each((*common, *base["common"], *shared, "checkpoint=full"))
        cells.append(Cell(sweep["study"], name, (*common, *own), origin))
    needs, runner = str(values.get("needs", "")), str(values.get("runner", ""))
    jobs, recorded = int(values.get("jobs", 1)), bool(values.get("record", sweep.get("record", True)))
    return Part(name, jobs, tuple(cells), common, needs, runner, recorded)


def last_of_each(overrides: Iterable[str]) -> tuple[str, ...]:
    """Keep the last override of each key."""
    return tuple({override.split("=", 1)[0]: override for override in overrides}.values())


@dataclass(frozen=True)
class GridValue:
    """Overrides that a value of a grid stands for: of the cell, and of its base alone."""

    cell: tuple[str, ...]
    base: tuple[str, ...] = ()

    @classmethod
    def of(cls, key: str, value: Any) -> GridValue:
        """Read a value: one of `key`, a list of overrides that belong together, or {cell: [...], base: [...]}."""
        if isinstance(value, dict):
            return cls(tuple(value["cell"]), tuple(value["base"]))
        return cls(tuple(map(str, value)) if isinstance(value, list) else (f"{key}={value}",))


def combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, GridValue]]:
    """Iterate over the combinations of a grid's values, by key."""
    for chosen in itertools.product(*grid.values()):
        yield {key: GridValue.of(key, value) for key, value in zip(grid, chosen, strict=True)}


@dataclass
class Record:
    """Figures of a study's finished cells: the lines of its cells.jsonl, by key of the cell."""

    path: Path
    lines: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, sweep: Path, size: str = "default") -> Record:
        """Read the record beside a sweep file; that of a study that is only tried out is under runs/studies/."""
        path = (STUDIES / sweep.parent.name if size == "tiny" else sweep.parent) / RECORD
        lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        return cls(path, {line["key"]: line for line in lines})

    def add(self, cell: Cell, key: str, version: str, seconds: float, result: Mapping[str, Any]) -> None:
        """Write a cell's figures in place of earlier ones."""
        line = {"key": key, "code": version, "part": cell.part, "overrides": list(cell.overrides)}
        with self._lock:
            self.lines[key] = {**line, "took": round(seconds, 1), "result": figures(own_phases(result))}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".partial")
            partial.write_text("".join(json.dumps(each) + "\n" for each in self.lines.values()))
            partial.replace(self.path)


def own_phases(result: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the phases of its base out of a result, and add the mean staleness of each, in steps, as staleness_mean."""
    first = (result.get("checkpoint") or {}).get("resumed_at") or 0
    phases = [phase for phase in result.get("phases", ()) if phase.get("first_step", first) >= first]
    return {**result, "phases": [_with_staleness(phase) for phase in phases]}


def _with_staleness(phase: Mapping[str, Any]) -> dict[str, Any]:
    counts = {int(steps): count for steps, count in phase.get("staleness_histogram", {}).items()}
    if not counts:
        return dict(phase)
    return {**phase, "staleness_mean": sum(steps * n for steps, n in counts.items()) / sum(counts.values())}


def figures(result: Any) -> Any:
    """Leave out of a result what is long or of this machine, and round numbers to seven digits."""
    if isinstance(result, Mapping):
        return {key: figures(value) for key, value in result.items() if key not in NOT_RECORDED}
    if isinstance(result, list):
        return [figures(value) for value in result]
    return float(f"{result:.7g}") if isinstance(result, float) else result


def code_version(package: Path = ROOT / "gbactl") -> str:
    """Hash (12 hex digits) of every source file on which a run's numbers can depend."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        parts = path.relative_to(package).parts
        if path.suffix in (".py", ".cpp") and not set(parts) & set(NUMBERS_DO_NOT_DEPEND_ON):
            digest.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def key_of(cell: Cell) -> str:
    """Hash of a cell's configuration, and of its base's. Not for threads: Hydra composes one at a time.

    That of a timing-only cell (see timing_only.py) includes the number of batches."""
    batches = "".join("-" + o.removeprefix(BATCHES).strip("'") for o in cell.overrides if o.startswith(BATCHES))
    base = "" if cell.origin is None else f"-from-{key_of(cell.origin)}"
    return f"{_hash_of(cell.overrides)}{batches}{base}"


@functools.cache
def _hash_of(overrides: tuple[str, ...]) -> str:
    """Hash of the configuration that some overrides make, with files by their name, wherever this machine has them."""
    from gbactl.config import to_dict
    from gbactl.launch.hydra_config import compose
    from gbactl.tracking.final_metrics import config_hash

    config = to_dict(compose(list(overrides)))
    config["data"] = {
        key: Path(value).name if isinstance(value, str) and "/" in value else value
        for key, value in config["data"].items()
    }
    return config_hash(config)


def finished(folder: Path) -> bool:
    """Whether a cell has a result."""
    try:
        return bool(json.loads((folder / "result.json").read_text())["status"] == "FINISHED")
    except (OSError, ValueError, KeyError):
        return False


def overrides_of(cell: Cell, version: str) -> tuple[str, ...]:
    """Overrides with which a cell is run; one with a base resumes it, and the experiment's keys are the base's own."""
    if cell.origin is None:
        return cell.overrides
    kept = [override for override in cell.overrides if not override.startswith("experiment=")]
    return (f"resume={folder_of(cell.origin, version)}", *kept, "checkpoint=none")


def folder_of(cell: Cell, version: str) -> Path:
    """Folder of a cell's run. Not for threads: see key_of."""
    return STUDIES / cell.study / f"{key_of(cell)}-{version}"


class CellError(Exception):
    """Failure of a cell; the others of its part are run all the same."""


@dataclass(frozen=True)
class Job:
    """Cell that is to be run by some code version. What a thread cannot find out is found out before.

    `overrides`: what to train in `folder`; `runner`: the module that does it, instead of `gbactl train`."""

    cell: Cell
    version: str
    key: str
    folder: Path
    overrides: tuple[str, ...]
    runner: str = ""

    @classmethod
    def of(cls, cell: Cell, version: str, runner: str = "") -> Job:
        """Find out a cell's key, folder and overrides."""
        return cls(cell, version, key_of(cell), folder_of(cell, version), overrides_of(cell, version), runner)

    def run(self) -> float:
        """Train the cell unless it has a result; return the seconds it took. Raises CellError when it fails."""
        if finished(self.folder):
            return 0.0
        shutil.rmtree(self.folder, ignore_errors=True)
        began = time.monotonic()
        if self.runner:
            try:
                importlib.import_module(self.runner).run(self.overrides, self.folder)
            except GbactlError as error:
                raise self._error(str(error)) from None
            return time.monotonic() - began
        done = subprocess.run(command(self), capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
        if done.returncode:
            raise self._error((done.stderr.strip() or "no output").splitlines()[-1])
        return time.monotonic() - began

    def _error(self, why: str) -> CellError:
        return CellError(f"{self.cell.name}\nfailed: {why}")

    @property
    def result(self) -> dict[str, Any]:
        """Result of the finished cell."""
        found: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return found


def command(job: Job) -> list[str]:
    """Command line of a cell's training. Tags let `gbactl report --where` find it."""
    return [
        sys.executable, "-m", "gbactl", "train", *job.overrides, f"run_dir={job.folder}",
        f"tracking.experiment={job.cell.study}", f"+tracking.tags.part={job.cell.part}",
        f"+tracking.tags.code={job.version}",
    ]  # fmt: skip


class Progress:
    """Progress lines of a study, with an estimate of the whole: cells that are left, at their part's mean seconds."""

    def __init__(self, left: Mapping[str, int], jobs: Mapping[str, int]) -> None:
        """Begin with the number of cells that each part has `left`, and the `jobs` that run in parallel."""
        self.left, self.jobs, self.total = dict(left), jobs, sum(left.values())
        self.took: dict[str, list[float]] = {}

    def done(self, part: str, shown: str, seconds: float) -> str:
        """Count a finished cell; return the line that says so."""
        self.left[part] -= 1
        if seconds:
            self.took.setdefault(part, []).append(seconds)
        number = self.total - sum(self.left.values())
        took = f"{seconds:.0f} s" if seconds else "was there"
        return f"{number}/{self.total}  {part}  {shown}  {took}{self.estimate}"

    @property
    def estimate(self) -> str:
        """How long the cells that are left will take; "" before any has been run."""
        every = [seconds for found in self.took.values() for seconds in found]
        if not every:
            return ""
        means = {part: statistics.fmean(self.took.get(part, every)) for part in self.left}
        minutes = sum(count * means[part] / self.jobs[part] for part, count in self.left.items()) / 60
        return f"  ({statistics.fmean(every):.0f} s a cell, {sum(self.left.values())} left: {minutes:.0f} minutes)"


def _pool(jobs: int, runner: str) -> Executor:
    """Executor of a part: processes where cells run in them, else threads that wait for processes."""
    if not runner:
        return ThreadPoolExecutor(jobs)
    os.environ["OMP_NUM_THREADS"] = "1"
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))


def jobs_of(part: Part, version: str, record: Record | None = None, again: bool = False) -> list[list[Job]]:
    """List what a part has to run: bases, then cells. What is there is left out: finished bases, and recorded cells.

    With `again` those that it has of another code version are not."""

    def there(key: str) -> bool:
        line = None if record is None or not part.recorded else record.lines.get(key)
        return line is not None and (not again or line["code"] == version)

    cells = [cell for cell in part.cells if not there(key_of(cell))]
    bases = [Job.of(base, version) for base in {cell.base: cell.origin for cell in cells}.values() if base is not None]
    todo = [job for job in bases if not finished(job.folder)]
    return [todo, [Job.of(cell, version, part.runner) for cell in cells]]


def run_part(
    part: Part, version: str, record: Record | None = None, todo: list[list[Job]] | None = None,
    progress: Progress | None = None,
) -> None:  # fmt: skip
    """Run what a part has `todo` (None: all of it), reporting and recording each cell."""
    todo = jobs_of(part, version, record) if todo is None else todo
    progress = progress or Progress({part.name: sum(map(len, todo))}, {part.name: part.jobs})
    for jobs in todo:  # bases, then cells
        failed = []
        with _pool(part.jobs, part.runner) as pool:
            pending = {pool.submit(job.run): job for job in jobs}
            try:
                for future in as_completed(pending):
                    job = pending[future]
                    if isinstance(error := future.exception(), CellError):
                        failed.append(str(error))
                        continue
                    seconds = future.result()
                    if record is not None and part.recorded and job.cell in part.cells:
                        record.add(job.cell, job.key, version, seconds, job.result)
                    shown = " ".join(o for o in job.cell.overrides if o not in part.common)
                    print(progress.done(part.name, shown, seconds), file=sys.stderr, flush=True)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        if failed:
            raise SystemExit("\n".join(failed))


def run_parts(parts: Iterable[Part], version: str, record: Record, again: bool = False) -> None:
    """Run what some parts have to do. Raises SystemExit where gbactl's source changes meanwhile."""
    todo = {}
    for part in parts:
        if part.missing:
            print(f"{part.name}: left out, {part.missing} is not set", file=sys.stderr)
        else:
            todo[part] = jobs_of(part, version, record, again)
    left = {part.name: sum(map(len, jobs)) for part, jobs in todo.items()}
    progress = Progress(left, {part.name: part.jobs for part in todo})
    there = sum(len(part.cells) for part in todo) - sum(len(jobs[-1]) for jobs in todo.values())
    print(f"{progress.total} trainings to do, {there} cells recorded", file=sys.stderr)
    for part, jobs in todo.items():
        run_part(part, version, record, jobs, progress)
        if code_version() != version:
            sys.exit(f"gbactl's source changed while {part.name} ran; type the command again for the new version.")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the study's sweep.yaml")
    parser.add_argument("--part", action="append", metavar="NAME", help="this part alone; may be repeated")
    parser.add_argument(
        "--size", default=os.environ.get("SIZE") or "default", help="full, tiny or default; also: SIZE=full"
    )
    parser.add_argument("--only", metavar="KEY=VALUE", help="the cells with this override alone, for instance seed=1")
    parser.add_argument("--list", action="store_true", help="say which cells there are, and run none")
    parser.add_argument("--again", action="store_true", help="run again what another code version has run")
    given = parser.parse_args()
    parts = read_study(given.sweep, given.size)
    chosen = [part for part in parts if not given.part or part.name in given.part]
    if not chosen:
        sys.exit(f"There is no such part; --part takes one of: {', '.join(part.name for part in parts)}.")
    if given.only:
        chosen = [replace(part, cells=tuple(c for c in part.cells if given.only in c.overrides)) for part in chosen]
    if given.list:
        print("\n".join(cell.name for part in chosen for cell in part.cells))
        return
    sys.path.insert(0, str(given.sweep.resolve().parent))
    version = code_version()
    run_parts(chosen, version, Record.of(given.sweep, given.size), given.again)
    print(version)


if __name__ == "__main__":
    main()
