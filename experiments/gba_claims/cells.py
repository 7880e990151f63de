"""Finished cells of the gba_claims study (see ../study_results.py)."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import study  # noqa: E402
import study_results as of_any  # noqa: E402  (scripts of the parent folder, not a package)
from study_results import Done, options, seeds, size  # noqa: E402

__all__ = ["CHOSEN", "HERE", "SWEEP", "Done", "done", "options", "part", "seeds", "size", "study"]

SWEEP = HERE / "sweep.yaml"
CHOSEN = study.STUDIES / "gba_claims" / "chosen.yaml"


def part(name: str, sweep: Path = SWEEP) -> study.Part:
    """Part of the sweep file at this size."""
    return of_any.part(sweep, name)


def done(name: str, sweep: Path = SWEEP) -> list[Done]:
    """Finished cells of a part, in its order. Raises SystemExit where one has no result."""
    return of_any.done(sweep, name, "gba-claims")
