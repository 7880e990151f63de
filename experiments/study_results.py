"""Results of a study's finished cells: options and result.json, read from runs/studies/. For studies' scripts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study  # a script in the same folder, not a package


@dataclass(frozen=True)
class Done:
    """Finished cell: KEY=VALUE of its command line (tags by their own name), its result.json, its folder."""

    options: dict[str, str]
    result: dict[str, Any]
    folder: Path

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


def part(sweep: Path, name: str) -> study.Part:
    """Part of a sweep file at this size."""
    return next(each for each in study.read_study(sweep, size()) if each.name == name)


def done(sweep: Path, name: str, target: str) -> list[Done]:
    """Finished cells of a part, in its order. Raises SystemExit, with `make TARGET`, where one has no result."""
    version, found = study.code_version(), []
    for cell in part(sweep, name).cells:
        folder = study.folder_of(cell, version)
        if not study.finished(folder):
            raise SystemExit(f"{cell.name}\nhas no result in {folder}; type: make {target}")
        result = json.loads((folder / "result.json").read_text())
        found.append(Done(options(cell.overrides), result, folder))
    return found


def seeds(cells: Sequence[study.Cell]) -> list[str]:
    """Seeds of some cells, sorted."""
    return sorted({options(cell.overrides)["seed"] for cell in cells}, key=int)


def origin(sweep: Path, name: str) -> str:
    """Sentence on the number of runs, seeds and code version of a part."""
    cells = part(sweep, name).cells
    return f"{name}: {len(cells)} runs, seeds {', '.join(seeds(cells))}, code version {study.code_version()}.\n"


def title(target: str) -> str:
    """Head of a results.md that `make TARGET` writes."""
    made = f"make {target}{'' if size() == 'default' else f' SIZE={size()}'}"
    return f"# Results\n\nWritten by `{made}`; questions and answers are in README.md."


def section(text: str, heading: str) -> str:
    """Extract a heading of a Markdown text and its body, up to the next heading; "" where it does not exist."""
    found = re.search(rf"^{re.escape(heading)}\n.*?(?=\n^#|\Z)", text, re.DOTALL | re.MULTILINE)
    return "" if found is None else found.group()
