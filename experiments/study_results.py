"""Results of a study's finished cells: options and figures, from its record (see study.py). For studies' scripts."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study  # a script in the same folder, not a package


@dataclass(frozen=True)
class Done:
    """Finished cell: KEY=VALUE of its command line (tags by their own name), its figures, its folder, its code version.

    A recorded cell has no folder: it may be of another machine."""

    options: dict[str, str]
    result: dict[str, Any]
    folder: Path
    code: str = ""

    @property
    def seed(self) -> str:
        """Seed of the training."""
        return self.options["seed"]


def size() -> str:
    """Size that selects the cells: SIZE=full or the default."""
    return os.environ.get("SIZE") or "default"


def options(overrides: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE overrides into a dict; the last one wins; +tracking.tags.NAME becomes NAME."""
    pairs = (override.split("=", 1) for override in overrides)
    return {key.lstrip("+").removeprefix("tracking.tags."): value for key, value in pairs}


def seeds(cells: Sequence[study.Cell]) -> list[str]:
    """Seeds of some cells, sorted."""
    return sorted({options(cell.overrides)["seed"] for cell in cells}, key=int)


@dataclass(frozen=True)
class Results:
    """Results of the study that a sweep file describes, for the module that writes its results.md."""

    sweep: Path

    @property
    def target(self) -> str:
        """Target of make that runs the study and writes its results."""
        return self.sweep.parent.name.replace("_", "-")

    def part(self, name: str) -> study.Part:
        """Part of the sweep file at this size."""
        return next(each for each in study.read_study(self.sweep, size()) if each.name == name)

    def found(self, name: str) -> list[Done]:
        """Finished cells of a part, in its order; those without a result, or that diverged, are left out."""
        return [cell for cell in self._ended(name) if study.DIVERGED not in cell.result]

    def _ended(self, name: str) -> list[Done]:
        of_part = self.part(name)
        if of_part.recorded:
            record = study.Record.of(self.sweep, size())
            there = [(cell, record.lines[cell.overrides]) for cell in of_part.cells if record.has(cell)]
            return [Done(options(cell.overrides), line["result"], Path(), line["code"]) for cell, line in there]
        runs = [(cell, study.finished(cell)) for cell in of_part.cells]
        return [Done(options(c.overrides), run, Path(run["run_dir"]), study.code_version()) for c, run in runs if run]

    def done(self, name: str) -> list[Done]:
        """Finished cells of a part, in its order. Raises SystemExit where one has no result."""
        cells, wanted = self.found(name), self.part(name).cells
        if len(cells) < len(wanted):
            raise SystemExit(f"{name}: {len(cells)} of {len(wanted)} cells have a result; type: make {self.target}")
        return cells

    def origin(self, name: str) -> str:
        """Sentence on the number of runs, those that diverged, seeds and code versions of a part."""
        cells, there = self.part(name).cells, self._ended(name)
        versions = Counter(cell.code for cell in there)
        told = ", ".join(code if len(versions) == 1 else f"{code} ({count} runs)" for code, count in versions.items())
        runs = f"{len(there)}" if len(there) == len(cells) else f"{len(there)} of {len(cells)}"
        old = (
            ""
            if set(versions) <= {study.code_version()}
            else "; the source code has changed since these runs, `--again` repeats them"
        )
        told_seeds = ", ".join(sorted({cell.seed for cell in there}, key=int))
        lost = sum(study.DIVERGED in cell.result for cell in there)
        runs += " runs" + (f" ({lost} diverged)" if lost else "")
        return f"{name}: {runs}, seeds {told_seeds}, code version {told}{old}.\n"

    @property
    def place(self) -> Path:
        """Folder for what the study writes: its own; one in runs/studies/ where it is only tried out (SIZE=tiny)."""
        here = self.sweep.parent
        return study.STUDIES / here.name if size() == "tiny" else here

    @property
    def assets(self) -> Path:
        """Folder for the study's figures: that of the site, or as `place`."""
        return self.place if size() == "tiny" else study.ROOT / "docs" / "assets"

    def write(self, *text: str, note: str = "") -> None:
        """Write results.md, with a `note` on all of it."""
        made = f"make {self.target}{'' if size() == 'default' else f' SIZE={size()}'}"
        head = f"# Results\n\nThis page is written by `{made}`; `docs/studies/` has the questions and answers.{note}\n"
        (self.place / "results.md").write_text("\n".join([head, *text]))

    def sections(self, made: Mapping[str, Callable[[], str]]) -> list[str]:
        """Make sections by heading; one of a part whose cells have not all a result stays as results.md has it."""
        path, text = self.place / "results.md", []
        before = path.read_text() if path.exists() else ""
        for heading, make in made.items():
            try:
                text.append(f"{heading}\n\n{make()}")
            except SystemExit as missing:
                print(missing, file=sys.stderr)
                there = section(before, heading) or f"{heading}\n\n{missing}."
                text.append(f"{there.rstrip()}\n")
        return text


def section(text: str, heading: str) -> str:
    """Extract a heading of a Markdown text and its body, up to the next heading; "" where it does not exist."""
    found = re.search(rf"^{re.escape(heading)}\n.*?(?=\n^#|\Z)", text, re.DOTALL | re.MULTILINE)
    return "" if found is None else found.group()
