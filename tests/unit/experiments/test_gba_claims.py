"""The study of GBA's claims: which cells it trains, what its script makes of their figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import study_results  # a script, which conftest.py makes importable
import write_gba_claims


def done(*overrides: str, **result: Any) -> Any:
    return study_results.Done(study_results.options(overrides), result, Path())


def test_options_of_a_command_line() -> None:
    given = study_results.options(
        ["mode=sync", "+tracking.tags.takes_over=gba", "a.b=[{c: d=e}]", "mode=gba"],
    )  # fmt: skip
    assert given == {"mode": "gba", "takes_over": "gba", "a.b": "[{c: d=e}]"}


@pytest.mark.parametrize("size", ["default", "full", "tiny"])
def test_the_sweep_holds_every_part(size: str) -> None:
    parts = {part.name: part for part in study_results.study.read_study(write_gba_claims.STUDY.sweep, size)}
    assert set(parts) == {"speed", "ablation"}
    assert {"mode=sync", "faults=none"} <= set(parts["ablation"].cells[0].base)


def kinds() -> list[Any]:
    """The cells of every part that differ in more than the seed."""
    cells = [cell for part in study_results.study.read_study(write_gba_claims.STUDY.sweep) for cell in part.cells]
    return list({(c.part, *(o for o in c.overrides if not o.startswith("seed="))): c for c in cells}.values())


def test_the_last_cell_of_every_part_composes(different: Any) -> None:
    assert different({cell.part: cell for cell in kinds()}.values())


@pytest.mark.slow
def test_every_kind_of_cell_composes(different: Any) -> None:
    assert different(kinds())


def speeds() -> list[Any]:
    virtual = ["experiment=quality", "cluster.workers=16"]
    window = "faults.plans=[{kind: window, workers: 1/2}]"
    rows = [(["faults=none"], 0, 100.0, 150.0), (["faults=none"], 1, 100.0, 250.0), ([window], 0, 10.0, 30.0)]
    return [
        done(*virtual, *plan, f"mode={mode}", f"seed={seed}", eps=eps)
        for plan, seed, sync, gba in rows
        for mode, eps in (("sync", sync), ("gba", gba))
    ]


def test_speed_ratios_by_plan_and_cluster(tmp_path: Path) -> None:
    found = write_gba_claims.ratios(speeds())
    assert found == {("none", "virtual, 16"): 2.0, ("burst", "virtual, 16"): 3.0}
    assert "| none | 2.00 |" in write_gba_claims.speeds(found)
    assert "| burst | **3.00** |" in write_gba_claims.speeds(found)
    write_gba_claims.plot({**found, ("other", "virtual, 64"): 1.0}, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_an_option_is_compared_with_gba_as_it_comes() -> None:
    def cell(line: str, seed: int, auc: float, eps: float) -> Any:
        phase = {"auc": auc, "eps": eps, "staleness_mean": 0.9, "decayed": 128}
        return done(f"+tracking.tags.ablation={line}", f"seed={seed}", phases=[phase])

    cells = [cell("default", s, 0.8, 100.0) for s in (1, 2)] + [cell("iota-0", s, 0.79, 90.0) for s in (1, 2)]
    text = write_gba_claims.options(cells)
    assert "| default | - | 1.00 | 0.9 | 128.0 |" in text
    assert "| iota-0 | -0.01000 +-0.00000 | 0.90 | 0.9 | 128.0 |" in text
