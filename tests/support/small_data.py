"""Synthetic data that a test trains on in a fraction of a second: 3 numeric and 4 categorical fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gbactl.data.cache import prepare


def options(rows_per_day: int, days: int = 2) -> dict[str, Any]:
    """The configuration's data group."""
    return {
        "name": "synthetic", "rows_per_day": rows_per_day, "days": days, "numeric": 3, "fields": 4,
        "max_cardinality": 200, "skew": 1.05, "signal": 1.6, "noise": 0.3, "drift": 0.1, "ctr": 0.3, "seed": 1,
    }  # fmt: skip


def prepared(cache: Path, rows_per_day: int, days: int = 2) -> Path:
    """The folder that a run opens."""
    return prepare({**options(rows_per_day, days), "cache": str(cache)})
