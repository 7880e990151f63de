"""The study of GBA's claims: which cells it trains, what its scripts make of results."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "gba_claims"


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    sys.path.insert(0, str(FOLDER))
    return {
        name: importlib.import_module(name)
        for name in ("cells", "choose_best", "speedups", "gradient_norms", "write_gba_claims")
    }


def done(scripts: Any, folder: Path = Path(), *overrides: str, **result: Any) -> Any:
    return scripts["cells"].Done(scripts["cells"].options(overrides), result, folder)


def test_options_of_a_command_line(scripts: Any) -> None:
    given = scripts["cells"].options(["mode=sync", "+tracking.tags.takes_over=gba", "a.b=[{c: d=e}]", "mode=gba"])
    assert given == {"mode": "gba", "takes_over": "gba", "a.b": "[{c: d=e}]"}


@pytest.mark.parametrize("size", ["default", "full"])
def test_the_sweep_holds_every_part(scripts: Any, size: str) -> None:
    parts = {part.name: part for part in scripts["cells"].study.read_study(FOLDER / "sweep.yaml", size)}
    assert {"rate", "tuning_free", "frappe", "region", "speed", "speed_local", "ablation", "norms"} <= set(parts)
    assert set(scripts["choose_best"].GRIDS) <= set(parts)
    assert len(scripts["cells"].seeds(parts["tuning_free"].cells)) >= 5
    assert parts["speed_local"].jobs == 1


def test_seeds_for_choosing_are_not_reported(scripts: Any) -> None:
    part, seeds = scripts["cells"].part, scripts["cells"].seeds
    chosen_on = {seed for name in (*scripts["choose_best"].GRIDS, "rate") for seed in seeds(part(name).cells)}
    reported = {seed for name in ("tuning_free", "tuning_free_fast", "frappe") for seed in seeds(part(name).cells)}
    assert chosen_on and not chosen_on & (
        reported | {str(1 + n) for n in range(max(scripts["choose_best"].SEEDS.values()))}
    )
    assert "0" not in reported  # the settings were found with it


def kinds(scripts: Any) -> list[Any]:
    """Of every part, the cells that differ in more than seed and rate."""
    cells = [cell for part in scripts["cells"].study.read_study(FOLDER / "sweep.yaml") for cell in part.cells]
    found = {(c.part, *(o for o in c.overrides if not o.startswith(("seed=", "optim.lr=")))): c for c in cells}
    return list(found.values())


def test_the_last_cell_of_every_part_composes(scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GBACTL_DATA", str(tmp_path))
    last = {cell.part: cell for cell in kinds(scripts)}
    assert len({scripts["cells"].study.key_of(cell) for cell in last.values()}) == len(last)


@pytest.mark.slow
def test_every_kind_of_cell_composes(scripts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GBACTL_DATA", str(tmp_path))
    found = kinds(scripts)
    assert len({scripts["cells"].study.key_of(cell) for cell in found}) == len(found)


def grid(scripts: Any) -> list[Any]:
    aucs = {("async", "0.001", ""): (0.7, 0.8), ("async", "0.002", ""): (0.7, 0.7)}
    aucs |= {("hop_bs", rate, bound): (0.6 + (rate == "0.002") * 0.1 + (bound == "2") * 0.05,)
             for rate in ("0.001", "0.002", "0.004") for bound in ("1", "2", "4")}  # fmt: skip
    made = []
    for (mode, rate, own), values in aucs.items():
        more = [f"mode.bound={own}"] if own else []
        made += [done(scripts, Path(), f"mode={mode}", f"optim.lr={rate}", *more, auc=auc) for auc in values]
    return made


def test_the_best_of_each_mode_by_its_mean(scripts: Any) -> None:
    best = scripts["choose_best"]
    chosen = best.best(best.tried(grid(scripts)))
    assert {mode: (each.rate, each.own) for mode, each in chosen.items()} == {
        "async": ("0.001", ""), "hop_bs": ("0.002", "2"),
    }  # fmt: skip
    assert chosen["async"].auc == pytest.approx(0.75)
    assert chosen["hop_bs"].line == ["mode=hop_bs", "mode.bound=2", "optim.lr=0.002"]


def test_a_best_at_the_edge_of_its_grid_is_said(scripts: Any) -> None:
    best = scripts["choose_best"]
    text = best.fragment(best.tried(grid(scripts)))
    assert "- async: the best optim.lr is at the edge of its grid." in text
    assert "hop_bs: the best" not in text
    assert "| hop_bs, bound 2 | 0.65000 | **0.75000** | 0.65000 |" in text
    assert "| async | **0.75000** | 0.70000 | - |" in text


def test_the_chosen_are_a_sweep_of_their_own(scripts: Any, tmp_path: Path) -> None:
    best, study = scripts["choose_best"], scripts["cells"].study
    path = tmp_path / "chosen.yaml"
    path.write_text(best.yaml.safe_dump(best.sweep(best.best(best.tried(grid(scripts))), "0.004", 2)))
    (part,) = study.read_study(path)
    assert len(part.cells) == 2 * 5
    assert {scripts["cells"].options(cell.overrides)["derived"] for cell in part.cells} == {
        "sync", "gba", "gba-prefetch-0", "async", "hop_bs",
    }  # fmt: skip


def test_syncs_rate_is_its_best(scripts: Any) -> None:
    cells = [done(scripts, Path(), f"optim.lr={rate}", auc=auc) for rate, auc in (("1", 0.7), ("2", 0.8), ("3", 0.75))]
    assert scripts["choose_best"].sync_rate(cells) == "2"


def speeds(scripts: Any) -> list[Any]:
    virtual = ["experiment=gba_claims", "cluster.workers=16"]
    window = "faults.plans=[{kind: window, workers: 1/2}]"
    rows = [(["faults=none"], 0, 100.0, 150.0), (["faults=none"], 1, 100.0, 250.0), ([window], 0, 10.0, 30.0)]
    return [
        done(scripts, Path(), *virtual, *plan, f"mode={mode}", f"seed={seed}", eps=eps)
        for plan, seed, sync, gba in rows
        for mode, eps in (("sync", sync), ("gba", gba))
    ]


def test_speed_ratios_by_plan_and_cluster(scripts: Any, tmp_path: Path) -> None:
    speedups = scripts["speedups"]
    found = speedups.ratios(speeds(scripts))
    assert found == {"none": {"virtual, 16": 2.0}, "burst": {"virtual, 16": 3.0}}
    assert "| none | 2.00 |" in speedups.table(found)
    assert "| burst | **3.00** |" in speedups.table(found)
    speedups.plot({**found, "other": {"local, 4": 1.0}}, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def normed(scripts: Any, folder: Path, mode: str, scale: float) -> Any:
    folder.mkdir()
    lines = [{"step": step, "dense": scale * step, "rows": [scale, 3 * scale]} for step in range(6)]
    lines.append({"step": 6, "dense": float("inf"), "rows": []})
    (folder / "norms.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return done(scripts, folder, f"takes_over={mode}", phases=[{"steps": 1}, {"steps": 1}, {"steps": 4}])


def test_norms_are_of_the_steps_after_the_switch(scripts: Any, tmp_path: Path) -> None:
    norms = scripts["gradient_norms"]
    modes = norms.of_modes([normed(scripts, tmp_path / m, m, s) for m, s in (("sync", 1.0), ("async", 4.0))])
    assert modes["sync"]["dense"] == [2.0, 3.0, 4.0, 5.0]
    assert len(modes["async"]["rows"]) == 8
    assert norms.distance(modes["sync"]["dense"], modes["sync"]["dense"]) == 0.0
    assert norms.distance(modes["async"]["dense"], modes["sync"]["dense"]) == pytest.approx(3.0)  # 3 x the mean
    assert "| async | 4 | 14 | 3.000 | 8 | 8 | 3.000 |" in norms.table(modes)
    norms.plot(modes, tmp_path / "norms.png")
    assert (tmp_path / "norms.png").stat().st_size > 1000


def test_a_table_comes_with_its_command(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    results = scripts["write_gba_claims"]
    monkeypatch.setattr(results, "report", lambda table: "| mode |\n")
    text = results.shown(results.Table("By rate", "rate", ("--by", "optim.lr")))
    assert "### By rate" in text and "| mode |" in text
    assert "tags.part = " in text and results.VERSION in text and "--by optim.lr" in text


def test_the_table_of_slow_workers_is_left_to_the_command(scripts: Any) -> None:
    text = "| mode | n |\n| gba | 1 |\n\n| mode | slowed | n |\n| gba | W1 | 1 |\n\n- +-: sd.\n- slowed: how.\n- last\n"
    assert scripts["write_gba_claims"].without_slowdowns(text) == "| mode | n |\n| gba | 1 |\n\n- +-: sd.\n- last\n"


def test_frappe_is_skipped_by_name(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GBACTL_DATA", raising=False)
    assert scripts["write_gba_claims"].frappe() == ["Left out: GBACTL_DATA was not set.\n"]
