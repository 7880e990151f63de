"""What came of a study's cells: their options and their result.json, read from runs/studies/. For studies' scripts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import study  # a script beside this one, not a package


@dataclass(frozen=True)
class Done:
    """A finished cell: KEY=VALUE of its command line, tags by their own name, what result.json says, where it is."""

    options: dict[str, str]
    result: dict[str, Any]
    folder: Path

    @property
    def seed(self) -> str:
        """The training's seed."""
        return self.options["seed"]


def size() -> str:
    """Which cells there are: SIZE=full or the default."""
    return os.environ.get("SIZE") or "default"


def options(overrides: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE as a dict; the later one wins; +tracking.tags.NAME becomes NAME."""
    pairs = (override.split("=", 1) for override in overrides)
    return {key.lstrip("+").removeprefix("tracking.tags."): value for key, value in pairs}


def part(sweep: Path, name: str) -> study.Part:
    """A part of a sweep file at this size."""
    return next(each for each in study.read_study(sweep, size()) if each.name == name)


def done(sweep: Path, name: str, target: str) -> list[Done]:
    """The finished cells of a part, in its order. Raises SystemExit where one is not there: make `target`."""
    version, found = study.code_version(), []
    for cell in part(sweep, name).cells:
        folder = study.folder_of(cell, version)
        if not study.finished(folder):
            raise SystemExit(f"{cell.name}\nhas no result in {folder}; type: make {target}")
        result = json.loads((folder / "result.json").read_text())
        found.append(Done(options(cell.overrides), result, folder))
    return found


def seeds(cells: Sequence[study.Cell]) -> list[str]:
    """The seeds of some cells."""
    return sorted({options(cell.overrides)["seed"] for cell in cells}, key=int)
