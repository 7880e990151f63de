"""The study runner: which cells there are, when one counts as done, and that a cut study goes on."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import study
import study_results
import virtual_run

from gbactl.errors import CheckpointError

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


SWEEP = """
study: tiny
common: [experiment=smoke]
parts:
  first:
    jobs: 2
    common: [data.days=2]
    grid:
      mode: [async, gba]
      seed: [0, 1]
    sizes:
      full: {grid: {seed: [0, 1, 2]}}
  second:
    grid:
      which: [[mode=gba, mode.iota=0], [mode=gba, mode.iota=3]]
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def test_cells_are_the_combinations_of_a_grid(sweep: Path) -> None:
    first, second = study.read_study(sweep)
    assert first.jobs == 2
    assert [cell.overrides for cell in first.cells] == [
        ("experiment=smoke", "data.days=2", f"mode={mode}", f"seed={seed}")
        for mode in ("async", "gba")
        for seed in (0, 1)
    ]
    assert [cell.overrides[1:] for cell in second.cells] == [("mode=gba", "mode.iota=0"), ("mode=gba", "mode.iota=3")]


def test_only_takes_the_cells_with_all_of_its_overrides(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["study.py", str(sweep), "--only", "seed=1", "--only", "mode=gba", "--list"])
    study.main()
    assert capsys.readouterr().out.splitlines() == ["first: experiment=smoke data.days=2 mode=gba seed=1"]


def test_a_larger_size_changes_what_it_names(sweep: Path) -> None:
    assert len(study.read_study(sweep, "full")[0].cells) == 6
    assert len(study.read_study(sweep, "full")[1].cells) == 2


def test_a_part_says_what_it_needs(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.write_text(SWEEP.replace("  second:\n", "  second:\n    needs: SOME_DATA\n"))
    monkeypatch.delenv("SOME_DATA", raising=False)
    assert [part.missing for part in study.read_study(sweep)] == ["", "SOME_DATA"]
    monkeypatch.setenv("SOME_DATA", "/data")
    assert [part.missing for part in study.read_study(sweep)] == ["", ""]


def test_a_cell_twice_is_an_error(sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("[0, 1]", "[0, 0]"))
    with pytest.raises(ValueError, match="the same"):
        study.read_study(sweep)


RUNNER = """
from pathlib import Path
from gbactl.errors import DivergedError, GbactlError

def run(overrides, folder):
    with Path("ran.txt").open("a") as ran:
        print(overrides[-2], folder.is_dir(), file=ran)
    if overrides[-2] == "seed=2" and not Path("whole").exists():
        raise GbactlError("broken")
    if overrides[-2] == "seed=3":
        raise DivergedError("infinite")
    return {"auc": 0.5, "rounds": [1]}
"""


def test_the_cells_behind_a_failed_one_are_run_and_a_study_goes_on_and_one_that_diverged_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "tiny_runner.py").write_text(RUNNER)
    (tmp_path / "sweep.yaml").write_text("""
study: tiny
parts:
  first:
    jobs: 2
    runner: tiny_runner
    grid: {seed: [1, 2, 3, 4], mode: [gba]}
""")
    parts, record = study.read_study(tmp_path / "sweep.yaml"), study.Record.of(tmp_path / "sweep.yaml")
    with pytest.raises(SystemExit, match=r"seed=2 mode=gba\nfailed: broken"):
        study.run_parts(parts, record)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "4 cells to run, 0 recorded" and len(told) == 5
    assert told[-1].startswith("run 4 of 4: first: seed=") and told[-1].endswith(", 0:00 left")
    assert sum(line.count("seed=2 mode=gba: failed") for line in told) == 1
    assert sum(line.count("seed=3 mode=gba: 0:00, diverged") for line in told) == 1
    (tmp_path / "whole").touch()
    again = study.Record.of(tmp_path / "sweep.yaml")
    assert len(again.lines) == 3
    study.run_parts(parts, again)
    ran = (tmp_path / "ran.txt").read_text().splitlines()
    assert sorted(ran) == [f"seed={n} True" for n in (1, 2, 2, 3, 4)]
    found = study_results.Results(tmp_path / "sweep.yaml")
    assert {cell.seed: cell.result["auc"] for cell in found.found("first")} == {"1": 0.5, "2": 0.5, "4": 0.5}
    assert found.origin("first").startswith("first: 4 runs (1 diverged), seeds 1, 2, 3, 4, code version ")
    assert not list((tmp_path / study.STUDIES).iterdir())


SLEEPER = """
import os, time
from pathlib import Path

def run(overrides, folder):
    Path("pid.part").write_text(str(os.getpid()))
    Path("pid.part").rename("pid")
    time.sleep(60)
"""


def test_a_running_cell_ends_with_a_study_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "sleeping_runner.py").write_text(SLEEPER)
    (tmp_path / "sweep.yaml").write_text("""
study: tiny
parts:
  first: {jobs: 1, runner: sleeping_runner, grid: {seed: [1]}}
""")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.Popen([sys.executable, study.__file__, "sweep.yaml"], cwd=tmp_path, env=environment)
    try:
        while not (tmp_path / "pid").exists():
            assert ran.poll() is None
            time.sleep(0.05)
    finally:
        ran.kill()
        ran.wait()
    cell = int((tmp_path / "pid").read_text())
    psutil.wait_procs([psutil.Process(cell)] if psutil.pid_exists(cell) else [], timeout=20)
    assert not psutil.pid_exists(cell)


def test_a_cell_is_a_run_of_gbactl_that_is_taken_if_it_has_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gbactl.launch import training_run

    ran = []

    def train(cfg: Any, command: Any) -> dict[str, Any]:
        ran.append(command.overrides)
        return {"run_dir": f"runs/{len(ran)}"}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training_run, "train", train)
    cell = study.Cell("tiny", "first", ("experiment=smoke", "mode=gba"))
    assert study.finished(cell) is None
    assert study.trained(cell) == {"run_dir": "runs/1"}
    assert ran[0][:4] == (*cell.overrides, "tracking.experiment=tiny", "+tracking.tags.part=first")
    monkeypatch.setattr(study, "find", lambda cfg: {"run_dir": "found"})
    assert study.trained(cell) == study.finished(cell) == {"run_dir": "found"} and len(ran) == 1


BASED = """
study: tiny
common: [experiment=smoke]
parts:
  only:
    runner: one_run
    common: [train.days=2, train.norms_every=1]
    base: {common: [mode=sync, train.days=1], by: [seed]}
    grid:
      seed: [0, 1]
      mode: [gba, async]
"""


def test_cells_go_on_from_a_base_that_they_share(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.write_text(BASED)
    (part,) = study.read_study(sweep)
    bases = ("experiment=smoke", "train.days=1", "train.norms_every=1", "mode=sync", "seed=0", "checkpoint=full")
    assert [cell.base for cell in part.cells[:2]] == [bases, bases]
    given = list[Any]()

    class Pool(ThreadPoolExecutor):
        def __init__(self, jobs: int, context: object, **_: object) -> None:
            super().__init__(jobs)

    def timed(cell: Any) -> tuple[float, Any]:
        given.append(cell)
        return 1.0, "broken" if cell == broken else {"auc": 0.5}

    monkeypatch.setattr(study, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(study, "timed", timed)
    broken = None
    study.run_parts([part], study.Record(sweep.with_name("other.jsonl")))
    assert [cell.overrides[4] for cell in given[:2]] == ["seed=0", "seed=1"] and given[2:] == list(part.cells)
    given.clear()
    broken = part.cells[0].origin
    record = study.Record.of(sweep)
    with pytest.raises(SystemExit, match="broken"):
        study.run_parts([part], record)
    assert len(given) == 2 and not record.lines, "no cell goes on from a base that has failed"
    monkeypatch.setattr(study, "trained", lambda base: {"run_dir": base.overrides[4]})
    typed = study.overrides_of(part.cells[0])
    assert typed[0] == "resume=seed=0" and "experiment=smoke" not in typed and "checkpoint=none" in typed
    assert "train.days=2" in typed and "mode=gba" in typed
    assert "seed=0" not in typed and "train.norms_every=1" not in typed, "what was typed for the base stays"


def test_a_part_with_a_base_needs_a_runner(sweep: Path) -> None:
    sweep.write_text(BASED.replace("    runner: one_run\n", ""))
    with pytest.raises(ValueError, match="only: a part with a base needs a runner"):
        study.read_study(sweep)


def test_a_value_may_have_overrides_of_the_base(sweep: Path) -> None:
    line = "{base: [mode=sync], cell: [mode=gba]}"
    text = BASED.replace("mode=sync, ", "").replace("mode: [gba, async]", f"line: [{line}]")
    sweep.write_text(text)
    (part,) = study.read_study(sweep)
    assert part.cells[0].overrides[-1] == "mode=gba"
    assert part.cells[0].base == (
        "experiment=smoke", "train.days=1", "train.norms_every=1", "seed=0", "mode=sync", "checkpoint=full",
    )  # fmt: skip


def test_a_cell_whose_base_has_trained_all_its_days_is_an_error(tmp_path: Path) -> None:
    small = ["experiment=smoke", "cluster=virtual", "mode=sync", "data.days=3", "data.rows_per_day=600"]
    small += [f"data.cache={tmp_path}", "train.global_batch=128"]
    base, cell = tmp_path / "base", tmp_path / "cell"
    base.mkdir()
    cell.mkdir()
    virtual_run.run([*small, "train.days=1", "checkpoint=full"], base)
    begun = [f"resume={max((base / 'checkpoints').glob('cut-*'))}", "mode=gba"]
    with pytest.raises(CheckpointError, match="nothing is left to train"):
        virtual_run.run(begun, cell)
    assert len(virtual_run.run([*begun, "train.days=2"], cell)["phases"]) == 2


def test_a_recorded_cell_is_not_run_again(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.write_text(BASED)
    (part,) = study.read_study(sweep)
    phases = [{"first_step": 0, "auc": 0.5}, {"first_step": 9, "auc": 0.123456789}]
    result = {"auc": 0.6, "curve": [1, 2], "phases": phases, "checkpoint": {"resumed_at": 9}}
    record = study.Record.of(sweep)
    for cell in part.cells[:2]:
        record.add(cell, "v", 1.0, result)
    again = study.Record.of(sweep)  # of another machine
    line = again.lines[part.cells[0].overrides]
    assert line["result"]["phases"] == [{"first_step": 9, "auc": 0.1234568}] and "curve" not in line["result"]
    assert [again.has(cell) for cell in part.cells] == [True, True, False, False]
    assert again.has(part.cells[0], "v") and not again.has(part.cells[0], "v2")
    other = dataclasses.replace(part.cells[0], base=part.cells[2].base)
    assert not again.has(other), "it goes on from another base"
    del line["base"]
    assert again.has(other), "of old lines nothing else is known"


@pytest.mark.parametrize("record", sorted(EXPERIMENTS.glob("*/cells.jsonl")), ids=lambda path: path.parent.name)
def test_what_is_recorded_is_not_trained_again(record: Path) -> None:
    """Of every study with a record, whatever the configuration's defaults have become since."""
    lines = study.Record(record)
    files = [record.with_name(name) for name in ("sweep.yaml", "chosen.yaml") if record.with_name(name).exists()]
    cells = [cell for path in files for part in study.read_study(path) for cell in part.cells]
    assert {cell.overrides for cell in cells if lines.has(cell)} | {
        key for key, line in lines.lines.items() if line["part"] == "trials"
    } == set(lines.lines)


@pytest.mark.parametrize(
    ("page", "part", "chosen", "phrase"),
    [
        ("switching", "switching/both_ways", "after=d1 line=sync", "{} below the best possible AUC after 5 days"),
        ("switching", "switching/both_ways", "after=d7 line=sync", "after 5 days, and {} after 9 days"),
        ("shadowsync", "switching/adagrad", "after=d1 line=sync", "`sync` is {} below the best possible AUC"),
        ("tuning", "map/rate", "optim.lr=0.002", "rate .002 is {} below the best possible AUC"),
    ],
)
def test_a_page_says_how_far_sync_is_from_the_best_possible_auc(page: str, part: str, chosen: str, phrase: str) -> None:
    record, _, name = part.partition("/")
    wanted = study_results.options(["mode=sync", *chosen.split()]).items()
    cells = study_results.Results(EXPERIMENTS / record / "sweep.yaml").found(name)
    found = [cell.result for cell in cells if wanted <= cell.options.items()]
    gap = statistics.fmean(result["best_possible_auc"] - result["auc"] for result in found)
    text = (EXPERIMENTS.parent / "docs" / "studies" / f"{page}.md").read_text()
    assert phrase.format(f"{gap:.3f}".lstrip("0")) in text
