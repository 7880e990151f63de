"""The study of what gba fetches early: its cells, and the tables that its script makes of their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import study_results  # a script, which conftest.py makes importable
import write_prefetch

from gbactl.launch.hydra_config import compose


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
    def phases(first: float, last: float) -> dict[str, Any]:
        return {"phases": [{"day": "day 0"}, {"day": "day 0", "auc": first}, {"day": "day 4", "auc": last}]}

    cells = [
        study_results.Done({"seed": str(seed), "start": start}, phases(first, last), Path())
        for seed in (1, 2)
        for start, first, last in (("sync", 0.7, 0.8), ("gba", 0.69, 0.8002), ("10-steps", 0.7001, 0.79))
    ]
    monkeypatch.setattr(study_results.Results, "found", lambda self, part: cells)
    lines = write_prefetch.start().splitlines()
    assert "| `gba` | -0.0100 +-0.0000 | **+0.0002 +-0.0000** |" in lines
    assert "| 10 steps of `sync`, then `gba` | **+0.0001 +-0.0000** | -0.0100 +-0.0000 |" in lines


def test_days_with_data_are_compared_with_the_days_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(share: float) -> dict[str, Any]:
        """A run whose machine becomes slower every day."""
        eps = [(1000.0 - day) * (share if day in (2, 4, 6, 8) else 1.0) for day in range(10)]
        return {"phases": [{"day": f"day {day}", "eps": each} for day, each in enumerate(eps)]}

    cells = [
        study_results.Done({"seed": str(seed), "faults": faults}, run(share), Path())
        for seed in (1, 2)
        for faults, share in (("none", 0.98), ("one_slow", 0.5))
    ]
    monkeypatch.setattr(study_results.Results, "found", lambda self, part: cells)
    lines = write_prefetch.local().splitlines()
    assert "| `none` | 0.980 +-0.000 |" in lines and "| `one_slow` | 0.500 +-0.000 |" in lines


def test_each_cell_has_a_partner_in_sync() -> None:
    parts = study_results.study.read_study(write_prefetch.STUDY.sweep)
    assert [part.name for part in parts] == ["take_over", "start", "local"]
    for part in parts[:2]:
        tag = "prefetch" if part.name == "take_over" else "start"
        found = [study_results.options(cell.overrides) for cell in part.cells]
        keys = {(each["seed"], each.get("faults")) for each in found}
        assert {(each["seed"], each.get("faults")) for each in found if each[tag] == "sync"} == keys


def test_rows_are_fetched_on_all_but_the_days_that_are_compared() -> None:
    *_, local = study_results.study.read_study(write_prefetch.STUDY.sweep)
    for cell in local.cells:
        cfg = compose(list(cell.overrides))
        switches = {int(entry.value): entry.changes["prefetch"] for entry in cfg.entries}
        days = [day for day, prefetch in switches.items() if prefetch == "data"]
        assert cfg.mode.prefetch == "rows" and days == list(write_prefetch.DAYS_WITH_DATA)
        assert all(switches[day + 1] == "rows" for day in days)
