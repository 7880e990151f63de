"""The study of what gba fetches early: its cells, and the tables that its script makes of their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import study_results  # a script, which conftest.py makes importable
import write_prefetch


def taken_over(line: str, seed: int, auc: float, seconds: float) -> Any:
    """A cell with two days in a mode, a tenth of a second of switching, and a day of sync."""
    days = [("day 2", auc - 0.1, None), ("day 3", auc, None), ("day 4", auc + 0.001, 100.0)]
    phases = [
        {
            "day": day,
            "auc": found,
            "samples": 100,
            "seconds": seconds,
            "pause_ms": pause,
            "staleness_mean": 1.0,
        }
        for day, found, pause in days
    ]
    result = {"phases": phases, "best_possible_auc": 0.9, "samples": {"decayed": 7}}
    return study_results.Done({"seed": str(seed), "faults": "none", "prefetch": line}, result, Path())


def test_taking_over_is_compared_with_sync_and_rows_of_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = []
    for seed in (1, 2):
        cells.append(taken_over("sync", seed, 0.8 + seed / 100, 1.95))
        cells.append(taken_over("data", seed, 0.8 + seed / 100 - 0.0002, 0.95))
        cells.append(taken_over("rows", seed, 0.8 + seed / 100 - 0.002, 0.7))
    monkeypatch.setattr(study_results.Results, "found", lambda self, part: cells)
    text = write_prefetch.take_over()
    assert "AUC of `sync` is 0.8160; the best possible AUC is 0.9000." in text
    [data] = [line for line in text.splitlines() if "`data`" in line]
    assert "**-0.0002 +-0.0000** | **-0.0002 +-0.0000** | 2.000 +-0.000 | 0.750 +-0.000 | 1.00 | 7" in data
    [rows] = [line for line in text.splitlines() if "| `rows` |" in line]
    assert "| -0.0020 +-0.0000 |" in rows and "1.000 +-0.000" in rows


def test_starts_are_compared_with_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        study_results.Done({"seed": str(seed), "start": start}, {"auc": auc}, Path())
        for seed in (1, 2)
        for start, auc in (("sync", 0.7), ("gba", 0.69), ("10-steps", 0.7001))
    ]
    monkeypatch.setattr(study_results.Results, "found", lambda self, part: cells)
    lines = write_prefetch.start().splitlines()
    assert (
        "| `gba` | -0.0100 +-0.0000 |" in lines and "| 10 steps of `sync`, then `gba` | **+0.0001 +-0.0000** |" in lines
    )


def test_each_cell_has_a_partner_in_sync() -> None:
    for part in study_results.study.read_study(write_prefetch.STUDY.sweep):
        tag = "prefetch" if part.name == "take_over" else "start"
        found = [study_results.options(cell.overrides) for cell in part.cells]
        keys = {(each["seed"], each.get("faults")) for each in found}
        assert {(each["seed"], each.get("faults")) for each in found if each[tag] == "sync"} == keys
