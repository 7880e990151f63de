"""The study of ShadowSync: which cells it trains, and what its tables make of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hogwild
import pytest
import study
import study_results
import tables
import write_shadowsync

from tests.support.modes import EVERY
from tests.support.slow import slow

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
FOLDER = EXPERIMENTS / "shadowsync"
PHASES = [{"eps": 50.0, "staleness_mean": 0.0}, {"eps": 100.0, "staleness_mean": 1.0}]  # the base's, and its own


def done(line: str, workers: int, seed: int, **result: Any) -> Any:
    options = {"line": line, "cluster.workers": str(workers), "seed": str(seed)}
    return study_results.Done(options, result, Path())


@pytest.mark.parametrize("size", ["default", "full", "tiny"])
def test_the_sweep_holds_every_part(size: str) -> None:
    parts = {part.name: part for part in study.read_study(FOLDER / "sweep.yaml", size)}
    assert list(parts) == ["speed_local", "speed_one", "speed", "quality", "elp", "ablation", "modes"]
    assert parts["speed_local"].jobs == 1
    assert [name for name, part in parts.items() if part.cells[0].runner == "timing_only"] == ["speed_one", "speed"]
    assert set(write_shadowsync.SECTIONS) == set(parts)
    modes = {study_results.options(cell.overrides)["mode"] for cell in parts["modes"].cells}
    assert modes == set(EVERY)


@pytest.mark.parametrize("by", [slow("line"), "part"])
def test_one_cell_of_every_line_composes(different: Any, by: str) -> None:
    """And the last cell of every part."""
    lines = {}
    for part in study.read_study(FOLDER / "sweep.yaml"):
        for cell in part.cells:
            options = study_results.options(cell.overrides)
            lines[part.name, options.get("line", options["mode"]) if by == "line" else ""] = cell
    assert different(lines.values())


def test_scaling_is_against_one_trainer_of_the_same_line_and_seed() -> None:
    eps = {1: 100.0, 4: 360.0}
    cells = [done("shadow_ma", n, seed, eps=seed * eps[n]) for n in eps for seed in (1, 2)]
    table = tables.scaling(cells)
    assert "| shadow_ma | **1.000 +-0.000** | 0.900 +-0.000 | 540 +-2287 at 4 |" in table


def test_where_more_trainers_add_nothing_is_told() -> None:
    eps = {1: 100.0, 8: 500.0, 64: 480.0}
    cells = [done("fr_easgd-5", n, 1, eps=value) for n, value in eps.items()]
    assert "| fr_easgd-5 | **1.000** | 0.625 | 0.075 | 500 at 8 |" in tables.scaling(cells)


def test_a_sync_server_that_has_no_time_left_is_told() -> None:
    shares = {1: (0.02, 3.5), 64: (0.987, 91.04)}
    cells = [
        done("fr_easgd-5", n, 1, busy={"S0": share, "others": 0.1}, replicas={"exchange_ms": ms})
        for n, (share, ms) in shares.items()
    ]
    table = tables.centre(cells)
    assert "| fr_easgd-5: ms | 3.5 | 91.0 |" in table and "| fr_easgd-5: busy % | 2 | **99** |" in table


def test_quality_is_in_percent_and_against_the_foreground() -> None:
    loss = {("shadow_ma", 1): 0.5, ("shadow_ma", 4): 0.505, ("fr_ma", 1): 0.5, ("fr_ma", 4): 0.51}
    cells = [done(line, n, 1, logloss=value) for (line, n), value in loss.items()]
    table = tables.quality(cells)
    assert "| shadow_ma | 0.000 | 1.000 |" in table and "| fr_ma | 0.000 | 2.000 |" in table
    assert "| shadow_ma against fr_ma | **0.000** | **-0.980** |" in table


def test_a_pause_in_the_background_has_the_same_foreground_counterpart() -> None:
    cells = [done(line, 1, 1, logloss=loss) for line, loss in {"shadow_ma-.02": 0.49, "fr_ma": 0.5}.items()]
    assert "| shadow_ma-.02 against fr_ma | **-2.000** |" in tables.quality(cells)


def test_the_largest_elp_is_the_largest_that_keeps_the_auc() -> None:
    aucs = {128: 0.8, 1024: 0.7996, 4096: 0.79}
    cells = [done("shadow_ma", 1, 1, auc=auc, replicas={"elp": elp}) for elp, auc in aucs.items()]
    assert "| shadow_ma | **0.0000** | **-0.0004** | -0.0100 | 1,024 |" in tables.parallelism(cells)


def test_a_mode_without_replicas_has_no_gap() -> None:
    common = {"auc": 0.8, "logloss": 0.5, "ne": 0.9, "phases": PHASES}
    told = {
        "sync_gap": {"mean": 2.5, "p99": 4.0}, "elp": 128, "exchanges": 3, "foreground_seconds": 0.0,
        "bytes_exchanged": 2e6,
    }  # fmt: skip
    never = {**told, "exchanges": 0, "bytes_exchanged": 0}
    cells = [
        done("sync", 1, 1, **common), done("shadow_ma", 1, 1, **common, replicas=told),
        done("interval-inf", 1, 1, **common, replicas=never),
    ]  # fmt: skip
    table = tables.listing(cells, "line")
    common_to_all = "0.50000 | 0.90000 | 100 | 1.00"
    assert f"| sync | 0.80000 | - | {common_to_all} | - | - | - | - | - |" in table
    assert f"| shadow_ma | 0.80000 | 0.00000 | {common_to_all} | 2.50 | 4 | 128 | 0.00 | 2 |" in table
    assert f"| interval-inf | 0.80000 | 0.00000 | {common_to_all} | - | - | 128 | 0.00 | 0 |" in table


def test_a_change_is_a_mean_over_pairs_of_the_same_seed() -> None:
    common = {"logloss": 0.5, "ne": 0.9, "phases": PHASES}
    aucs = {"sync": (0.70, 0.80), "gba": (0.71, 0.81)}  # far apart by seed, not in pairs
    cells = [done(mode, 1, seed, auc=aucs[mode][seed], **common) for mode in aucs for seed in (0, 1)]
    table = tables.listing(cells, "line")
    assert "| gba | 0.76000 +-0.63531 | 0.01000 +-0.00000 |" in table  # 12.7062 x .1 / 2
    assert "the AUC minus that of sync with the same seed" in table


def test_threads_and_processes_on_one_replica_are_measured() -> None:
    """A moment of each: what comes out is a table of positive rates."""
    table = hogwild.measure(1, [8], 0.05, 1)
    cells = [cell.strip().replace(",", "") for cell in table.splitlines()[-1].strip("|").split("|")]
    assert cells[:2] == ["8", "1"] and all(float(cell) > 0 for cell in cells[2:])
    assert "medians of 1 rounds" in hogwild.written(table, 0.05, 1)
