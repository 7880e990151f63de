"""The study of CPR: which cells it trains, what its scripts measure and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equations
import failure_times
import overhead_table
import priorities
import pytest
import real_table
import study
import study_results
import write_cpr

from tests.support.slow import slow

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
FOLDER = EXPERIMENTS / "cpr"
KINDS = ("", "_others", "_replicas")  # of real jobs' modes


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)


def job(line: str, seed: int, hours: float, auc: float, **told: Any) -> Any:
    parts = {part: 0.0 for part in overhead_table.PARTS}
    checkpoint = {
        "recovery": "partial", "partial_overhead": 0.0065, "full_overhead": 0.082, "expected_pls": 0.035, "pls": 0.03,
        "lost_updates": 0.01, "bytes": 2e6, "overhead": {**parts, "saving": 0.005, "samples_rolled_back": 0}, **told,
    }  # fmt: skip
    result = {"virtual_seconds": 3600 * hours, "auc": auc, "checkpoint": checkpoint, "recovery": [{}, {}]}
    return study_results.Done({"line": line, "seed": str(seed)}, result, Path())


@pytest.mark.parametrize("size", ["default", "full", "tiny"])
def test_the_sweep_holds_every_variant_with_the_failures_of_its_seed(size: str) -> None:
    parts = {part.name: part for part in study.read_study(FOLDER / "sweep.yaml", size)}
    real = [f"real{each}{none}" for each in KINDS for none in ("_none", "")]
    assert list(parts) == ["none", "abstract", "beyond", "modes_none", "modes", *real]
    options = study_results.options
    none = {options(cell.overrides)["seed"] for cell in parts["none"].cells}
    assert len(none) == {"tiny": 2, "default": 5, "full": 10}[size]
    variants = {options(cell.overrides)["checkpoint"] for cell in parts["abstract"].cells}
    assert variants == {"full", "cpr", "cpr_scar", "cpr_mfu", "cpr_ssu"}
    for name in ("abstract", "beyond", "modes"):
        for cell in parts[name].cells:
            told = options(cell.overrides)
            assert told["seed"] in none
            assert f"faults.plans={told['faults.plans']}" == failure_times.plan(int(told["seed"]))
    assert bool(parts["modes"].cells) == (size == "full")


@pytest.mark.parametrize("size", [slow("default"), slow("full"), slow("tiny")])
def test_real_jobs_lose_a_server_a_worker_and_the_coordinator(size: str) -> None:
    from gbactl.faults.fault_kinds import parse
    from gbactl.launch.hydra_config import compose

    parts = {part.name: part for part in study.read_study(FOLDER / "sweep.yaml", size)}
    jobs, plain = (
        [compose(list(cell.overrides)) for each in KINDS for cell in parts[f"real{each}{none}"].cells]
        for none in ("", "_none")
    )
    assert [(cfg.mode.name, cfg.seed) for cfg in jobs] == [(cfg.mode.name, cfg.seed) for cfg in plain]
    assert {cfg.mode.name for cfg in jobs} == {path.stem for path in Path("conf/mode").glob("*.yaml")}
    for cfg, none in zip(jobs, plain, strict=True):
        server, worker, coordinator = parse(cfg.faults.plans)
        assert server.servers == [0] and worker.workers == [1] and coordinator.coordinator
        assert server.time < worker.time < coordinator.time and not none.faults.plans
        assert cfg.checkpoint.name == "cpr" and none.checkpoint.name == "none" and cfg.data == none.data


def test_the_table_of_real_jobs_holds_every_failure() -> None:
    done = study_results.Done
    phases = [{"seconds": 40.0}, {"seconds": 60.0}]
    lost = {"samples_undone": 512, "row_updates_undone": 70}
    failed = {"process": "S0", "detected_s": 0.01, "loaded_s": 0.5, "useful_s": None, **lost}
    none = [done({"mode": "gba", "seed": "11"}, {"phases": phases, "auc": 0.8}, Path())]
    result = {
        "phases": [*phases, {"seconds": 4.0}], "auc": 0.7999, "samples": {"read": 102400, "lost": 1024},
        "checkpoint": {"pls": 0.005}, "recovery": [failed, {**failed, "process": "C"}],
    }  # fmt: skip
    table = real_table.table([done({"mode": "gba", "seed": "11"}, result, Path())], none)
    assert "| gba | 11 | 100 | +4.0 | +4.0 | 1,024 | 1.000 | 140 | 0.0050 | 0.80000 | -0.00010 |" in table
    assert "| gba | server | 0.01 | 0.50 | - | 512 | 70 |" in table and "| gba | coordinator | 0.01 |" in table


def test_one_cell_of_every_line_composes_to_the_reference_setting(different: Any) -> None:
    from gbactl.checkpoint.costs_and_interval import costs_of
    from gbactl.launch.hydra_config import compose

    cells = [cell for part in study.read_study(FOLDER / "sweep.yaml") for cell in part.cells]
    lines = {study_results.options(cell.overrides).get("line", cell.part): cell for cell in cells}
    assert different(lines.values())
    cfg = compose(list(lines["cpr_mfu"].overrides))
    assert costs_of(cfg.checkpoint, cfg.cluster.servers) == equations.REFERENCE
    rows = 4 * cfg.data["rows_per_day"]
    assert rows * cfg.cost.sample_us / 1e6 / cfg.cluster.workers == cfg.checkpoint.job_seconds


def test_failures_come_in_each_half_of_a_job() -> None:
    for seed in range(50):
        first, second = failure_times.times(seed)
        assert 0 <= first <= failure_times.JOB_SECONDS / 2 <= second <= failure_times.JOB_SECONDS


def test_the_table_compares_jobs_of_the_same_seed() -> None:
    none = [job("none", seed, hours, 0.8) for seed, hours in ((1, 56.0), (2, 112.0), (3, 999.0))]
    cells = [job("cpr_mfu", 1, 56.28, 0.8001), job("cpr_mfu", 2, 112.56, 0.8001)]
    cells += [job("full", 1, 61.6, 0.79, recovery="full", expected_pls=0.0, lost_updates=0.0)]
    table = overhead_table.table(cells, none)
    rows = {row.split(" | ")[0].strip("| "): row for row in table.splitlines()}
    mfu, full = rows["cpr_mfu"], rows["full"]
    assert "| 0.65 | **0.50 +-0.00** | 0.500 +-0.000 |" in mfu and "| **+0.00010 +-0.00000** |" in mfu
    assert "| 8.20 | 10.00 |" in full and "| -0.01000 |" in full
    said = "without checkpoints and failures: 84.0 h, AUC 0.80000, 2 seeds."
    assert said in table, "a seed without a job to compare is left out"


def test_equations_and_emulation_are_laid_side_by_side() -> None:
    table = equations.against(failures=300, jobs=3)
    assert table == equations.against(failures=300, jobs=3), "seeded"
    assert "| full, exponential | 8.196 |" in table and "| cpr, gamma 2 | 0.648 |" in table
    sensitivity = equations.sensitivity(50)
    assert "| reference | 2.24 | 8.20 |" in sensitivity
    assert "| PLS 0.001 | 2.24 | 8.20 |" in sensitivity and sensitivity.count("| full |") >= 1
    assert equations.ratio(1.049, 1.0) == "**1.049**" and equations.ratio(1.06, 1.0) == "1.060"


def test_priorities_are_measured_on_a_shard() -> None:
    found = priorities.measure(rows=2000, batch=8, steps=2, rounds=2)
    found = json.loads(json.dumps(found))
    assert found["bytes_a_row"] == {"scar": 4 * 17, "mfu": 4.0, "ssu": 1.5}
    assert all(0 < rows <= 250 for name in ("mfu", "ssu") for _, rows in found["choices"][name])
    table = priorities.table(found)
    assert table.count("\n| ") == 4 and "| mfu | 4.00 |" in table


def test_what_has_not_run_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "results.md"
    monkeypatch.setattr(study_results.Results, "place", tmp_path)
    sections = {
        "## 1. A": write_cpr.beside("real", "real_none", real_table.table),
        "## 2. B": lambda: "new\n",
    }
    missing = "real: 0 of 3 cells have a result; type: make cpr"
    assert write_cpr.STUDY.sections(sections) == [f"## 1. A\n\n{missing}.\n", "## 2. B\n\nnew\n"]
    out.write_text("# Results\n\n## 1. A\n\nreal: code version 0\n\n| 1 |\n\n### More\n\nx\n\n## 2. B\n\nlast\n")
    assert write_cpr.STUDY.sections(sections)[0] == "## 1. A\n\nreal: code version 0\n\n| 1 |\n"
    assert study_results.section(out.read_text(), "## 2. B") == "## 2. B\n\nlast\n"
    assert study_results.section(out.read_text(), "## 2.") == ""
