"""The study runner: which cells there are, when one counts as done, and that a cut study goes on."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("study", ROOT / "experiments" / "study.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["study"] = module
    spec.loader.exec_module(module)
    return module


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


def test_cells_are_the_combinations_of_a_grid(study: Any, sweep: Path) -> None:
    first, second = study.read_study(sweep)
    assert first.jobs == 2
    assert [cell.overrides for cell in first.cells] == [
        ("experiment=smoke", "data.days=2", f"mode={mode}", f"seed={seed}")
        for mode in ("async", "gba")
        for seed in (0, 1)
    ]
    assert [cell.overrides[1:] for cell in second.cells] == [("mode=gba", "mode.iota=0"), ("mode=gba", "mode.iota=3")]


def test_a_larger_size_changes_what_it_names(study: Any, sweep: Path) -> None:
    assert len(study.read_study(sweep, "full")[0].cells) == 6
    assert len(study.read_study(sweep, "full")[1].cells) == 2


def test_a_part_says_what_it_needs(study: Any, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.write_text(SWEEP.replace("  second:\n", "  second:\n    needs: SOME_DATA\n"))
    monkeypatch.delenv("SOME_DATA", raising=False)
    assert [part.missing for part in study.read_study(sweep)] == ["", "SOME_DATA"]
    monkeypatch.setenv("SOME_DATA", "/data")
    assert [part.missing for part in study.read_study(sweep)] == ["", ""]


def test_a_cell_twice_is_an_error(study: Any, sweep: Path) -> None:
    sweep.write_text(SWEEP.replace("[0, 1]", "[0, 0]"))
    with pytest.raises(ValueError, match="the same"):
        study.read_study(sweep)


def test_a_key_depends_on_the_configuration_alone_and_a_folder_on_the_code_too(study: Any) -> None:
    cell = study.Cell("tiny", "first", ("experiment=smoke", "mode=gba"))
    same = study.Cell("tiny", "other", ("experiment=smoke", "mode=gba", "mode.iota=3", "tracking.experiment=x"))
    assert study.key_of(cell) == study.key_of(same)
    other = study.Cell("tiny", "first", ("experiment=smoke", "mode=async"))
    assert study.key_of(cell) != study.key_of(other)
    assert study.folder_of(cell, "v1") != study.folder_of(cell, "v2")


def test_only_a_finished_result_counts(study: Any, tmp_path: Path) -> None:
    assert not study.finished(tmp_path)
    (tmp_path / "result.json").write_text("{")
    assert not study.finished(tmp_path)
    for status in ("FAILED", "FINISHED"):
        (tmp_path / "result.json").write_text(json.dumps({"status": status}))
        assert study.finished(tmp_path) == (status == "FINISHED")


def test_cells_side_by_side_are_composed_one_by_one(
    study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = "import json, pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(parents=True); "
    written += "(p / 'result.json').write_text(json.dumps({'status': 'FINISHED'}))"
    monkeypatch.setattr(study, "command", lambda job: [sys.executable, "-c", written, str(job.folder)])
    cells = tuple(study.Cell("tiny", "first", ("experiment=smoke", f"seed={seed}")) for seed in range(8))
    study.run_part(study.Part("first", 4, cells, ("experiment=smoke",)), "v")
    assert all(study.finished(study.folder_of(cell, "v")) for cell in cells)


def test_a_cut_study_goes_on_where_it_was(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran: list[str] = []

    def command(job: Any) -> list[str]:
        ran.append(job.overrides[-1])
        write = "import json, pathlib, sys; p = pathlib.Path(sys.argv[1]); p.mkdir(parents=True); "
        write += "(p / 'result.json').write_text(json.dumps({'status': 'FINISHED'}))"
        fail = job.overrides[-1] == "seed=2" and ran.count("seed=2") == 1
        return [sys.executable, "-c", "raise SystemExit('cut')" if fail else write, str(job.folder)]

    monkeypatch.setattr(study, "command", command)
    cells = tuple(study.Cell("tiny", "first", ("experiment=smoke", "mode=gba", f"seed={seed}")) for seed in range(4))
    part = study.Part("first", 1, cells, ("experiment=smoke",))
    with pytest.raises(SystemExit, match=r"seed=2\nfailed: cut"):
        study.run_part(part, "v")
    study.run_part(part, "v")
    assert sorted(ran) in ([f"seed={n}" for n in (0, 1, 2, 2, 3)],)
    assert all(study.finished(tmp_path / study.folder_of(cell, "v")) for cell in cells)


BASED = """
study: tiny
common: [experiment=smoke]
parts:
  only:
    common: [train.days=2, train.norms_every=1]
    base: {common: [mode=sync, train.days=1], by: [seed]}
    grid:
      seed: [0, 1]
      mode: [gba, async]
"""


def test_cells_go_on_from_a_base_that_they_share(study: Any, sweep: Path) -> None:
    sweep.write_text(BASED)
    (part,) = study.read_study(sweep)
    bases = ("experiment=smoke", "train.days=1", "train.norms_every=1", "mode=sync", "seed=0", "checkpoint=full")
    assert [cell.base for cell in part.cells[:2]] == [bases, bases]
    (first, second), cells = study.jobs_of(part, "v")
    assert [job.cell.overrides[4] for job in (first, second)] == ["seed=0", "seed=1"] and len(cells) == 4
    assert cells[0].overrides[0] == f"resume={first.folder}" and "experiment=smoke" not in cells[0].overrides
    assert first.key in cells[0].key and "checkpoint=none" in cells[0].overrides


def test_a_value_may_have_overrides_of_the_base(study: Any, sweep: Path) -> None:
    line = "{base: [mode=sync], cell: [mode=gba]}"
    text = BASED.replace("mode=sync, ", "").replace("mode: [gba, async]", f"line: [{line}]")
    sweep.write_text(text)
    (part,) = study.read_study(sweep)
    assert part.cells[0].overrides[-1] == "mode=gba"
    assert part.cells[0].base == (
        "experiment=smoke", "train.days=1", "train.norms_every=1", "seed=0", "mode=sync", "checkpoint=full",
    )  # fmt: skip


def test_a_recorded_cell_is_not_run_again(study: Any, sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep.write_text(BASED)
    (part,) = study.read_study(sweep)
    phases = [{"first_step": 0, "auc": 0.5}, {"first_step": 9, "auc": 0.123456789}]
    result = {"auc": 0.6, "curve": [1, 2], "phases": phases, "checkpoint": {"resumed_at": 9}}
    record = study.Record.of(sweep)
    for cell in part.cells[:2]:
        record.add(cell, study.key_of(cell), "v", 1.0, result)
    again = study.Record.of(sweep)  # of another machine
    assert again.lines == record.lines
    line = again.lines[study.key_of(part.cells[0])]
    assert line["result"]["phases"] == [{"first_step": 9, "auc": 0.1234568}] and "curve" not in line["result"]
    bases, cells = study.jobs_of(part, "v2", again)
    assert [job.cell for job in cells] == list(part.cells[2:]) and len(bases) == 1
    assert len(study.jobs_of(part, "v2", again, again=True)[1]) == 4
    assert len(study.jobs_of(part, "v", again, again=True)[1]) == 2


def test_the_cells_behind_a_failed_one_are_run(study: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "raise SystemExit('broken')"
    monkeypatch.setattr(study, "command", lambda job: [sys.executable, "-c", code])
    cells = tuple(study.Cell("tiny", "first", ("experiment=smoke", f"seed={seed}")) for seed in range(2))
    with pytest.raises(SystemExit, match=r"seed=0\nfailed: broken\n.*seed=1\nfailed: broken"):
        study.run_part(study.Part("first", 1, cells, ("experiment=smoke",)), "v")


def test_the_estimate_is_of_the_whole(study: Any) -> None:
    progress = study.Progress({"first": 3, "second": 4}, {"first": 2, "second": 1})
    assert progress.done("first", "seed=0", 0.0) == "1/7  first  seed=0  was there"
    line = progress.done("first", "seed=1", 60.0)  # one more, two at a time, and four of the other part, one by one
    assert line == "2/7  first  seed=1  60 s  (60 s a cell, 5 left: 4 minutes)"
