"""Calibrated cost model as a file that `gbactl train cluster=virtual cost=FILE` takes, and as a table."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gbactl.calibration.fit import FittedModel
from gbactl.config.cost import CostConfig
from gbactl.errors import UsageError
from gbactl.paths import conf_dir

KEY = re.compile(r"(\w+):\s*[^#]*?(\s*#.*)?$")


def check_target(path: Path) -> None:
    """Raise UsageError where the file cannot be written, before anything is measured."""
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--out {path} does not end in .yaml, by which cost=FILE is known; type --out {path}.yaml.")
    if not path.resolve().parent.is_dir():
        raise UsageError(f"There is no folder {path.resolve().parent} to write {path.name} into; type another --out.")


def text(cost: CostConfig, header: Sequence[str]) -> str:
    """Rewrite conf/cost/laptop.yaml with the model's values, keeping its comments; `header` names their source."""
    values = dataclasses.asdict(cost)
    lines = [f"# {line}" for line in header]
    for line in (conf_dir() / "cost" / "laptop.yaml").read_text().splitlines():
        found = KEY.match(line)
        if found is not None and found[1] in values:
            told = f"{found[1]}: {_yaml(values[found[1]])}"
            lines.append(f"{told:<27} {(found[2] or '').strip()}".rstrip())
    return "\n".join(lines) + "\n"


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return f"{value:.4g}" if isinstance(value, float) and value < 1e6 else str(value)


def rows(found: FittedModel) -> list[tuple[str, ...]]:
    """Rows (mode, workers, measured, predicted, error) of every run, formatted."""
    return [
        (o.mode, str(o.workers), f"{o.eps:,.0f}", f"{p.eps:,.0f}", f"{100 * error:+.1f} %")
        for o, p, error in zip(found.observed, found.predicted, found.errors, strict=True)
    ]


HEAD = ("mode", "workers", "measured", "predicted", "error")


def table(found: FittedModel) -> list[str]:
    """Table of the rows as lines of aligned text, with a header."""
    told = [HEAD, *rows(found)]
    widths = [max(len(row[n]) for row in told) for n in range(len(HEAD))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in told]
