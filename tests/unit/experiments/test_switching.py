"""The studies of switching: which cells they train, what their scripts make of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import both_ways
import busy_day
import pauses
import pytest
import study_results
import write_switching

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "switching"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER.parents[1])


def finished(*overrides: str, **result: Any) -> Any:
    return study_results.Done(study_results.options(overrides), result, Path())


@pytest.mark.parametrize("size", ["default", "full"])
def test_the_sweep_holds_every_study(size: str) -> None:
    parts = {part.name: part for part in study_results.study.read_study(FOLDER / "sweep.yaml", size)}
    assert set(parts) == {"rates", "both_ways", "anew", "adagrad", "frappe", "day", "pauses", "restarts"}
    options, seeds = study_results.options, study_results.seeds
    assert parts["pauses"].jobs == parts["restarts"].jobs == 1
    for name in ("both_ways", "anew", "adagrad", "frappe"):
        assert len(seeds(parts[name].cells)) >= 5
        for cell in parts[name].cells:  # the base is in the mode that the run is switched from
            way, mode, *_ = f"{options(cell.overrides)['line']}-sync".split("-")
            assert options(cell.base)["mode"] == (mode if way == "from" else "sync")
            assert options(cell.base)["seed"] == options(cell.overrides)["seed"]
    assert set(seeds(parts["rates"].cells)).isdisjoint(seeds(parts["both_ways"].cells))
    by_hand, here = ([pauses.key_of(options(c.overrides)) for c in parts[name].cells]
                     for name in ("restarts", "pauses"))  # fmt: skip
    assert by_hand == here and len(here) == 6


@pytest.mark.slow
def test_one_cell_of_every_kind_composes(different: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GBACTL_DATA", str(tmp_path))
    study, options = study_results.study, study_results.options
    cells = [cell for part in study.read_study(FOLDER / "sweep.yaml") for cell in part.cells]
    last = {(cell.part, options(cell.overrides).get("line", "")[-4:]): cell for cell in cells}
    assert different(last.values())


def test_an_unfinished_study_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_results.study, "finished", lambda cell: None)
    for part in ("day", "restarts"):
        with pytest.raises(SystemExit, match=rf"{part}: 0 of \d+ cells have a result; type: make switching"):
            write_switching.STUDY.done(part)


def switched() -> list[Any]:
    def cell(line: str, seed: int, first: float, last: float) -> Any:
        tags = (f"+tracking.tags.line={line}", "+tracking.tags.after=d3", f"seed={seed}")
        return finished(*tags, phases=[{"auc": first}, {"auc": last}])

    made = []
    for seed in range(3):
        made += [
            cell("sync", seed, 0.7, 0.8),
            cell("to-gba", seed, 0.7001 + 1e-5 * seed, 0.7999),
            cell("from-gba-anew", seed, 0.68 + 0.01 * seed, 0.79),
        ]
    return made


def test_aucs_after_a_switch_are_paired_by_seed() -> None:
    text = both_ways.table(switched())
    assert "| sync -> gba, after 3 days | **+0.0001 +-0.0000** | **-0.0001 +-0.0000** |" in text
    assert "| gba -> sync, anew, after 3 days | -0.0100 +-0.0248 | -0.0100 +-0.0000 |" in text
    assert "; 3 seeds." in text and "0.80000 for switches after 3 days" in text
    assert both_ways.after("e1") == "1 epoch"


def test_a_section_without_results_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(study_results.Results, "place", tmp_path)
    (tmp_path / "results.md").write_text("# Results\n\n## 2. A day on a shared cluster\n\nas it was\n\n## Other\n\nx\n")

    def missing() -> str:
        raise SystemExit("day: 0 of 20 cells have a result; type: make switching")

    monkeypatch.setattr(
        write_switching, "SECTIONS", {"## 2. A day on a shared cluster": missing, "## 3. Pauses": lambda: "new\n"}
    )
    write_switching.main()
    text = (tmp_path / "results.md").read_text()
    assert "as it was" in text and "## 3. Pauses\n\nnew" in text and "Other" not in text


def day(line: str, rates: dict[int, float], auc: float, seed: int = 1, **more: Any) -> Any:
    """A run whose samples/s change at the hours of `rates`; an hour takes two seconds."""
    samples, curve, rate = 0.0, [], 0.0
    for hour in range(30):
        rate = rates.get(hour, rate)
        samples += 2.0 * rate
        curve.append({"seconds": 2.0 * (hour + 1), "samples": samples})
    plan = "faults.plans=[{kind: trace, file: x.csv, scale: 2}]"
    tags = (f"+tracking.tags.line={line}", f"seed={seed}", plan)
    return finished(*tags, curve=curve, auc=auc, **more)


def whole_day() -> list[Any]:
    look = {"at": 24.0, "mode": "sync", "wanted": "gba", "sync": 20.0, "gba": 80.0, "reason": "more"}
    auto = {"looks": 99, "switched": [look], "last": look}
    return [
        day("sync", {0: 100.0, 12: 20.0}, 0.8),
        day("async", {0: 90.0}, 0.7),
        day("gba", {0: 80.0}, 0.7999),
        day("auto", {0: 100.0, 13: 80.0}, 0.8, auto=auto),
    ]


def test_the_best_in_hindsight_takes_the_better_mode_of_every_hour() -> None:
    found = busy_day.days(whole_day())
    assert busy_day.hindsight(found) == {"1": 2.0 * (12 * 100 + 12 * 80)}
    assert sum(found["auto"]["1"]) == 2.0 * (13 * 100 + 11 * 80)
    assert found["sync"]["1"][11:13] == [200.0, 40.0]


def test_the_table_of_a_day(tmp_path: Path) -> None:
    text = busy_day.table(whole_day())
    assert "| sync | 2,880 | 0.667 | 0 | 0.0 |" in text
    assert "| auto | 4,360 | **1.009** | +0.0000 | 1.0 |" in text
    assert "| best in hindsight | 4,320 | 1 |" in text
    assert "| 12.0 | sync | gba | 20 | 80 | more |" in busy_day.decisions(whole_day())
    busy_day.plot(busy_day.days(whole_day()), tmp_path / "day.png")
    assert (tmp_path / "day.png").stat().st_size > 1000


def test_the_figure_of_a_day_that_is_tried_out_stands_beside_its_table(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = study_results.Results
    monkeypatch.setattr(results, "place", tmp_path)
    monkeypatch.setattr(results, "done", lambda study, name: whole_day())
    assert "![samples by hour](day.png)" in write_switching.day()
    assert (tmp_path / "day.png").stat().st_size > 1000


def test_a_run_that_lasts_no_day_is_refused() -> None:
    with pytest.raises(SystemExit, match="ended after 4 s, before 6 s; give it more samples"):
        busy_day.at([(0.0, 0.0), (4.0, 9.0)], 6.0)
    assert busy_day.at([(0.0, 0.0), (4.0, 9.0)], 2.0) == 4.5


def test_pauses_beside_restarts() -> None:
    phases = [
        {"mode": "sync", "steps": 10, "seconds": 2.0, "pause_ms": None},
        {"mode": "gba", "steps": 10, "seconds": 1.0, "pause_ms": 100.0},
        {"mode": "sync", "steps": 10, "seconds": 2.0, "pause_ms": 200.0},
        {"mode": "gba", "steps": 1, "seconds": 9.0, "pause_ms": 800.0},
    ]
    assert pauses.pauses({"phases": phases}) == ([100.0, 200.0, 800.0], 200.0)
    cell = finished("+tracking.tags.rows=100k", "cluster.workers=2", phases=phases)
    by_hand = finished("+tracking.tags.rows=100k", "cluster.workers=2", save=0.5, stop=1.0, start=8.5)
    text = pauses.table([cell], [by_hand])
    assert "| 100k | 2 | 200 | 800 | 600 | 0.50 | 1.00 | 8.50 | 10.00 | **50** |" in text


def test_steps_are_counted_in_a_log_that_is_being_written(tmp_path: Path) -> None:
    from gbactl.coordinator.event_log import EventLog, OrderRecord

    path = tmp_path / "events.log"
    assert pauses.orders(path) == 0
    log = EventLog(path, {})
    for step in range(3):
        log.write(OrderRecord(step, 1.0, 1.0, 1.0, ((step, 1.0),)))
    assert pauses.orders(path) == 3
    path.write_bytes(path.read_bytes()[:-2])
    assert pauses.orders(path) == 2


def test_a_checkpoint_is_seen_from_its_beginning_on(tmp_path: Path) -> None:
    assert not pauses.begun(tmp_path)
    pauses.CheckpointFolder(tmp_path / pauses.CHECKPOINTS).begin(1)
    assert pauses.begun(tmp_path) and not pauses.CheckpointFolder(tmp_path / pauses.CHECKPOINTS).names()
