"""Reads load traces: CSV with the columns seconds and factor, and worker where each has its own."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gbactl.errors import ConfigError

COLUMNS = ("seconds", "factor", "worker")


def read_trace(path: Path) -> list[list[float]]:
    """[seconds, factor] or [seconds, factor, worker] of every line. Raises ConfigError that names file and line."""
    try:
        with path.open(newline="") as file:
            return _points(path, csv.reader(line for line in file if not line.startswith("#")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The load trace {path} cannot be read ({error}).") from error


def _points(path: Path, rows: Iterable[list[str]]) -> list[list[float]]:
    lines = [[cell.strip() for cell in row] for row in rows if row]
    header = tuple(lines[0]) if lines else ()
    if sorted(header) not in (sorted(COLUMNS[:2]), sorted(COLUMNS)):
        raise ConfigError(f"The load trace {path} must begin with a line seconds,factor or worker,seconds,factor.")
    order = [header.index(name) for name in COLUMNS if name in header]
    found = []
    for line in lines[1:]:
        try:
            found.append([float(line[place]) for place in order])
        except (ValueError, IndexError):
            raise ConfigError(f"The load trace {path} has a line {','.join(line)}; type {','.join(header)}.") from None
    return found


def with_traces(plans: Any) -> Any:
    """Fault plans as they are typed, the files of their traces read. Raises ConfigError."""
    if not isinstance(plans, list):
        return plans
    return [_filled(plan) if isinstance(plan, dict) and plan.get("kind") == "trace" else plan for plan in plans]


def _filled(plan: dict[str, Any]) -> dict[str, Any]:
    if plan.get("points") is not None or not isinstance(plan.get("file"), str):
        return plan
    return {**plan, "points": read_trace(Path(plan["file"]).expanduser())}
