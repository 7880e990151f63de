"""Run a study: the cells of a sweep file, one training each; can be interrupted and continued.

    .venv/bin/python experiments/study.py experiments/gba_claims/sweep.yaml [--part NAME] [--size full] [--list]

A cell is a part's `common` overrides with one combination of its `grid`; these overrides are its identity. Its figures
are kept as a line of cells.jsonl beside the sweep file, which is committed. A cell with a line is not run again,
whatever code version the line is of, unless --again asks for those of other versions. A cell that diverged has a line,
too, which says so. The others are runs like those of `gbactl train -m`: one that has finished is taken as it is. `jobs`
cells of a part run in parallel (virtual clusters use one core each).

A part with `base: {common: [...], by: [KEY, ...]}` trains a base for each combination of these keys of its grid, from
the part's `common` and, in place of it, the base's, and its cells go on from the end of their base: its days are
trained once. A value of another key may have overrides of the base too: {base: [...], cell: [...]}.
A part with `runner: MODULE` calls `run(overrides, folder)` of a script in this or the study's folder instead, such as
timing_only.py, which computes no gradient. It returns the figures; the folder is removed. A part with a base needs a
runner, as a resumed run goes on in the directory of its base. One with `record: false` needs files of its runs, so it
has no lines.
--write calls `main()` of the study's module `results`, which writes results.md.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from gbactl.errors import DivergedError, GbactlError, Stopped
from gbactl.launch.finished_sweep_cells import code_version, find
from gbactl.launch.hydra_config import compose
from gbactl.launch.progress import duration
from gbactl.nodes.child_main import die_with_parent
from gbactl.tracking.metrics_and_tags import phases_since_resume
from gbactl.tracking.run_description import CommandLine, SweepPlace

ROOT = Path(__file__).resolve().parent.parent
STUDIES = Path("runs/studies")
RECORD, BASES, DIVERGED = "cells.jsonl", "bases", "diverged"
NOT_RECORDED = {  # fields of a result that are long, of this machine, or of no use to a table
    "cell", "checksums", "command", "curve", "distance", "event_log_bytes", "evaluated_on", "faults", "gbactl",
    "judged_auc", "judged_logloss", "judged_on", "memory", "per_worker", "rounds", "run_dir", "run_id",
    "staleness_histogram", "time", "token_staleness",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One training of a study. `base`: overrides of the training from whose end it goes on; () for none.

    `runner`: module of the script that runs it; "" for gbactl."""

    study: str
    part: str
    overrides: tuple[str, ...]
    base: tuple[str, ...] = ()
    runner: str = ""

    @property
    def name(self) -> str:
        """Name for messages: the part and the overrides that its grid varies."""
        return f"{self.part}: {' '.join(self.overrides)}"

    @property
    def origin(self) -> Cell | None:
        """Cell that trains the base of this cell; studies share bases. None without a base."""
        return Cell(BASES, BASES, self.base) if self.base else None


@dataclass(frozen=True)
class Part:
    """Group of cells, of which `jobs` run in parallel. `needs`: an environment variable.

    `recorded`: its cells' figures are kept in the study's record."""

    name: str
    jobs: int
    cells: tuple[Cell, ...]
    common: tuple[str, ...]
    needs: str = ""
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
    base, runner = values.get("base"), str(values.get("runner", ""))
    if base is not None and not runner:
        raise ValueError(
            f"{name}: a part with a base needs a runner; a resumed run would go on in its base's directory."
        )
    cells = []
    for chosen in combinations(grid):
        own = tuple(override for each in chosen.values() for override in each.cell)
        origin: tuple[str, ...] = ()
        if base is not None:
            shared = (o for key, each in chosen.items() for o in (each.cell if key in base["by"] else each.base))
            origin = last_of_each((*common, *base["common"], *shared, "checkpoint=full"))
        cells.append(Cell(sweep["study"], name, (*common, *own), origin, runner))
    recorded = bool(values.get("record", sweep.get("record", True)))
    return Part(name, int(values.get("jobs", 1)), tuple(cells), common, str(values.get("needs", "")), recorded)


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


class Record:
    """Figures of a study's finished cells: the lines of its cells.jsonl, by overrides of the cell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
        self.lines: dict[tuple[str, ...], dict[str, Any]] = {tuple(line["overrides"]): line for line in lines}

    @classmethod
    def of(cls, sweep: Path, size: str = "default") -> Record:
        """Read the record beside a sweep file; that of a study that is only tried out is under runs/studies/."""
        return cls((STUDIES / sweep.parent.name if size == "tiny" else sweep.parent) / RECORD)

    def has(self, cell: Cell, version: str | None = None) -> bool:
        """Whether a cell has a line, of the code `version` if that is given. Older lines do not tell their base."""
        line = self.lines.get(cell.overrides)
        if line is None or line.get("base", list(cell.base)) != list(cell.base):
            return False
        return version in (None, line["code"])

    def add(self, cell: Cell, version: str, seconds: float, result: Mapping[str, Any]) -> None:
        """Write a cell's figures in place of earlier ones."""
        line = {"code": version, "part": cell.part, "overrides": list(cell.overrides), "base": list(cell.base)}
        self.lines[cell.overrides] = {**line, "took": round(seconds, 1), "result": figures(without_base_phases(result))}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(json.dumps(each) + "\n" for each in self.lines.values()))
        partial.replace(self.path)


def without_base_phases(result: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the phases of its base out of a result, and add the mean staleness of each, in steps, as staleness_mean."""
    return {**result, "phases": [_with_staleness(phase) for phase in phases_since_resume(result)]}


def _with_staleness(phase: Mapping[str, Any]) -> dict[str, Any]:
    counts = {int(steps): count for steps, count in phase.get("staleness_histogram", {}).items()}
    if not counts:
        return dict(phase)
    return {**phase, "staleness_mean": sum(steps * n for steps, n in counts.items()) / sum(counts.values())}


def figures(result: Any) -> Any:
    """Leave out of a result what is long or of this machine, and round numbers to seven digits."""
    if isinstance(result, Mapping):
        return {key: figures(value) for key, value in result.items() if key not in NOT_RECORDED}
    if isinstance(result, list | tuple):
        return [figures(value) for value in result]
    return float(f"{result:.7g}") if isinstance(result, float) else result


def overrides_of(cell: Cell) -> tuple[str, ...]:
    """Overrides with which a cell is run; one with a base goes on from it, which is run first unless it has finished.

    What was typed for the base is not typed again: choosing a group anew, as model=dlrm, would undo the experiment's
    keys of it. Tags let `gbactl report --where` find the run."""
    given, tags = cell.overrides, (f"+tracking.tags.part={cell.part}", f"+tracking.tags.code='{code_version()}'")
    if cell.origin is not None:
        kept = (override for override in given if override not in cell.base)
        given = (f"resume={trained(cell.origin)['run_dir']}", *kept, "checkpoint=none")
    return given if cell.runner else (*given, f"tracking.experiment={cell.study}", *tags)


def finished(cell: Cell) -> dict[str, Any] | None:
    """Result of the finished run of a cell; None without one."""
    return find(compose(list(overrides_of(cell))))


def trained(cell: Cell) -> dict[str, Any]:
    """Run a cell, or take its finished run, and return the result. Nothing is shown. Raises GbactlError."""
    from gbactl.launch.training_run import train

    given = overrides_of(cell)
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        if not cell.runner:
            cfg = compose(list(given))
            return find(cfg) or train(cfg, CommandLine("train", given, place=SweepPlace(1, 1)))
        STUDIES.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=STUDIES) as folder:
            found: dict[str, Any] = importlib.import_module(cell.runner).run(given, Path(folder))
            return found


def timed(cell: Cell) -> tuple[float, dict[str, Any] | str]:
    """Run a cell; return its seconds, and its result or why it failed. Divergence fails a base alone."""
    began = time.monotonic()
    try:
        found: dict[str, Any] | str = trained(cell)
    except DivergedError as error:
        found = str(error) if cell.part == BASES else {DIVERGED: True}
    except GbactlError as error:
        found = str(error)
    return time.monotonic() - began, found


def side_by_side(cells: Sequence[Cell], jobs: int) -> Iterator[tuple[Cell, float, dict[str, Any] | str]]:
    """Run cells in other processes, `jobs` at a time, their bases first; yield each with what `timed` returns.

    After Ctrl-C none is begun, nor a cell where a base has failed."""
    bases, whole = list(dict.fromkeys(cell.origin for cell in cells if cell.origin is not None)), True
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=die_with_parent, initargs=(os.getpid(),)) as pool:
        for waiting in (bases, list(cells)):
            running = dict[Future[tuple[float, dict[str, Any] | str]], Cell]()
            while (whole or waiting is bases) and (waiting or running):
                while waiting and len(running) < jobs:
                    cell = waiting.pop(0)
                    running[pool.submit(timed, cell)] = cell
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    seconds, found = done.result()
                    whole = whole and not (waiting is bases and isinstance(found, str))
                    yield running.pop(done), seconds, found


def run_parts(parts: Iterable[Part], record: Record, again: bool = False) -> None:
    """Run the cells without a line, with `again` those without one of this code version; record and report each.

    Raises SystemExit where cells of a part have failed, or gbactl's source changes meanwhile."""
    version, todo = code_version(), dict[Part, list[Cell]]()
    for part in parts:
        if part.missing:
            print(f"{part.name}: left out, {part.missing} is not set", file=sys.stderr)
            continue
        lines = {cell: part.recorded and record.has(cell, version if again else None) for cell in part.cells}
        todo[part] = [cell for cell, there in lines.items() if not there]
    of, took = sum(map(len, todo.values())), list[float]()
    print(f"{of} cells to run, {sum(len(part.cells) for part in todo) - of} recorded", file=sys.stderr)
    for part, cells in todo.items():
        failed = []
        for cell, seconds, found in side_by_side(cells, part.jobs):
            told = " ".join(override for override in cell.overrides if override not in part.common)
            if isinstance(found, str):
                failed.append(f"{cell.name}\nfailed: {found}")
                told += ": failed"
            else:
                told += f": {duration(seconds)}" + (", diverged" if DIVERGED in found else "")
                if part.recorded and cell.part != BASES:
                    record.add(cell, version, seconds, found)
            if cell.part == BASES:
                told = f"base of {part.name}: {told}"
            else:
                took.append(seconds / part.jobs)
                place = SweepPlace(len(took), of, tuple(took))
                told = f"{place}: {part.name}: {told}, {duration(place.seconds_left(0.0, 0.0) or 0.0)} left"
            print(told, file=sys.stderr, flush=True)
        if failed:
            raise SystemExit("\n".join(failed))
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
    parser.add_argument(
        "--only", action="append", default=[], metavar="KEY=VALUE",
        help="only cells with this override, for instance seed=1; may be repeated: cells with all of them",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say which cells there are, and run none")
    parser.add_argument("--again", action="store_true", help="run again what another code version has run")
    parser.add_argument("--write", action="store_true", help="write results.md from what was run, and run none")
    given = parser.parse_args()
    parts = read_study(given.sweep, given.size)
    chosen = [part for part in parts if not given.part or part.name in given.part]
    if not chosen:
        sys.exit(f"There is no such part; --part takes one of: {', '.join(part.name for part in parts)}.")
    only = set(given.only)
    chosen = [replace(part, cells=tuple(cell for cell in part.cells if only <= {*cell.overrides})) for part in chosen]
    if given.list:
        print("\n".join(cell.name for part in chosen for cell in part.cells))
        return
    sys.path.insert(0, str(given.sweep.resolve().parent))
    if given.write:
        os.environ["SIZE"] = given.size
        importlib.import_module(yaml.safe_load(given.sweep.read_text())["results"]).main()
        return
    try:
        run_parts(chosen, Record.of(given.sweep, given.size), given.again)
    except (KeyboardInterrupt, Stopped):
        print("Stopped; the same command goes on.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
