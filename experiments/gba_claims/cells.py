"""What came of the cells of this study: their options and their result.json, read from runs/studies/."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study  # noqa: E402  (a script beside this folder, not a package)

SWEEP = HERE / "sweep.yaml"
CHOSEN = study.STUDIES / "gba_claims" / "chosen.yaml"


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


def part(name: str, sweep: Path = SWEEP) -> study.Part:
    """A part of the sweep file at this size."""
    return next(each for each in study.read_study(sweep, size()) if each.name == name)


def done(name: str, sweep: Path = SWEEP) -> list[Done]:
    """The finished cells of a part, in its order. Raises SystemExit where one is not there."""
    version, found = study.code_version(), []
    for cell in part(name, sweep).cells:
        folder = study.folder_of(cell, version)
        if not study.finished(folder):
            raise SystemExit(f"{cell.name}\nhas no result in {folder}; type: make {cell.study.replace('_', '-')}")
        result = json.loads((folder / "result.json").read_text())
        found.append(Done(options(cell.overrides), result, folder))
    return found


def seeds(cells: Sequence[study.Cell]) -> list[str]:
    """The seeds of some cells."""
    return sorted({options(cell.overrides)["seed"] for cell in cells}, key=int)
