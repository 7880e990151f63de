"""What is shown of a run: a bar or a line now and then on standard error, the result on standard output."""

from __future__ import annotations

import errno
import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from gbactl.config import from_dict
from gbactl.launch import progress as module
from gbactl.launch.hydra_config import compose
from gbactl.launch.progress import (
    JobProgress,
    ProgressDisplay,
    _summary,
    after_run,
    after_runs,
    duration,
    shown_path,
    unit_of,
)
from gbactl.tracking.run_description import CommandLine, SweepPlace


def progress(share: float, **more: Any) -> dict[str, Any]:
    fields = {
        "round_finished": int(share * 1000),
        "round_samples": 1000,
        "loss": 0.5,
        "label": "day 0",
        "rounds": 2,
    }
    fields |= {"samples": int(share * 1000), "mode": "gba"}
    return {**fields, "step": 7, "eps": 12345.6, "round_eps": 12345.6, **more}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_and_one_at_the_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    show = ProgressDisplay()
    for tick in range(40):
        clock[0] += 0.5
        show.show_progress(progress(tick / 40))
    show.show_progress(progress(1.0))
    show.show_progress(progress(1.0))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 5
    assert lines[-1] == "  day 0 of 2, gba: 100 %  12,346 samples/s  loss 0.500"
    assert "\x1b" not in err, "no colours on a pipe"


def test_no_loss_yet(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay().show_progress(progress(0.0, loss=None))
    assert "loss" not in capsys.readouterr().err


def test_the_last_loss_and_throughput_stay_at_the_end_of_a_day(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    show = ProgressDisplay()
    for share, more in ((0.2, {}), (0.5, {}), (1.0, {"loss": None, "eps": None})):
        clock[0] += 10
        show.show_progress(progress(share, **more))
    assert capsys.readouterr().err.splitlines()[-1] == "  day 0 of 2, gba: 100 %  12,346 samples/s  loss 0.500"


def test_long_lines_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay().print_line("word " * 80)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_long_host_name_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    show, host = ProgressDisplay(), "node-" + "x" * 95
    monkeypatch.setattr(show, "console", Console(width=80, force_terminal=True, record=True, file=io.StringIO()))
    show.show_hosts(("host", "state"), [(host, "ready")])
    written = show.console.export_text()
    assert "".join(line.split()[0] for line in written.splitlines()[1:]) == host


def test_a_finished_round(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {
        "day": "day 0",
        "steps": 40,
        "eps": 1234.5,
        "judged_on": "day1",
        "judged_auc": 0.71234,
        "judged_logloss": 0.51,
    }
    ProgressDisplay().show_round(fields)
    ProgressDisplay(unit_of("virtual")).show_round(fields)
    real, virtual = capsys.readouterr().err.splitlines()
    assert real == "  day 0: 40 steps, 1,234 samples/s; on day1: AUC 0.71234, log loss 0.51000"
    assert virtual == real.replace("samples/s", "samples/virtual s")
    ProgressDisplay().show_round({**fields, "judged_auc": None})
    assert "on day1: AUC undefined (labels of one class), log loss 0.51000" in capsys.readouterr().err


def test_the_scores_of_the_epoch_that_was_chosen_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"best_round": "epoch 4", "judged_on": "day1", "judged_auc": 0.9, "evaluated_on": "day1"}
    ProgressDisplay().show_best(result)
    assert capsys.readouterr().err == "", "a day's line had them"
    ProgressDisplay().show_best(
        {**result, "judged_on": "validation", "evaluated_on": "test", "auc": 0.8, "logloss": 0.4}
    )
    assert capsys.readouterr().err == (
        "  epoch 4 is the best on validation (AUC 0.90000); on test: AUC 0.80000, log loss 0.40000\n"
    )


RESULT = {
    "mode": "gba", "seed": 1, "auc": 0.7, "logloss": 0.5, "ne": 0.9, "eps": 1000.0, "wall_seconds": 9.0,
    "samples": {"read": 1000, "trained": 990, "decayed": 10, "lost": 0}, "best_possible_auc": None,
    "staleness": {"mean": 1.5, "p50": 1.0, "p99": 4.0}, "run_dir": "/r",
}  # fmt: skip


def test_the_summary_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = dict(_summary(RESULT))
    assert rows["samples/s"] == "1,000" == dict(_summary({**RESULT, "clock": "virtual"}))["samples/virtual s"]
    assert rows["AUC"] == "0.70000" and "best possible AUC" not in rows
    assert rows["trained / decayed / lost"] == "990 / 10 / 0"
    assert rows["staleness mean / p50 / p99"] == "1.50 / 1 / 4"
    assert not [name for name in rows if "refused" in name or "kB" in name]
    assert dict(_summary({**RESULT, "best_possible_auc": 0.8}))["best possible AUC"] == "0.80000"
    a_step = {"dense": 1234.0, "rows": 20000.0, "ids": 0.0, "control": 560.0, "other": 0.0}
    more = {"wire": {"bytes_per_step": a_step, "shared_memory": 0}, "refused_frames": 0}
    told = dict(_summary({**RESULT, **more}))
    assert told["kB a step"] == "dense 1.2, rows 20.0, ids 0.0, control 0.6, other 0.0"
    assert set(told) - set(rows) == {"kB a step"}, "nothing was refused"
    more = {"wire": {"bytes_per_step": a_step, "shared_memory": 3_460_000}, "refused_frames": 1200}
    told = dict(_summary({**RESULT, **more}))
    assert told["kB a step"].endswith(", other 0.0; shared memory 3.5 MB")
    assert told["refused (reasons: result.json)"] == "1,200"
    acted = {"plan": 0, "process": "W3", "from_s": 0.1, "until_s": 0.4, "factor": 4}
    plans = [{"kind": "window", "factor": 4, "from": 0.1}, {"kind": "kill", "time": 120.0}]
    faults = _summary({**RESULT, "faults": {"plans": plans, "acted": [acted], "never": [1]}})[-2:]
    assert faults == [("fault", "W3 4x slower 0.1-0.4 s"), ("fault", "never acted: faults.plans[1] (kill at 120 s)")]
    assert dict(_summary({**RESULT, "warnings": ["bad"]}))["warning"] == "bad"
    undefined = dict(_summary({**RESULT, "auc": None, "ne": None}))
    assert undefined["AUC"] == undefined["normalised entropy"] == "undefined (labels of one class)"
    ProgressDisplay().show_result(RESULT)
    assert "gba, seed 1" in capsys.readouterr().out


def test_what_one_copies_is_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_dir = "/a/folder/with/a/long/path/" + "x" * 70
    ProgressDisplay().show_result({**RESULT, "run_dir": run_dir}, [("compare runs", "gbactl report")])
    assert capsys.readouterr().out.splitlines()[-2:] == [f"run directory: {run_dir}", "compare runs:  gbactl report"]
    monkeypatch.setattr(module.Console, "is_terminal", True)
    ProgressDisplay().print_line(f"saved in {run_dir}")
    assert run_dir in capsys.readouterr().err
    assert shown_path(Path.cwd() / "runs" / "1") == "runs/1" and shown_path(Path("/r")) == "/r"


def test_the_job_s_remaining_time_is_known_right_after_a_switch() -> None:
    job, fields = JobProgress(3000), progress(0.0)
    for second in range(11):  # 100 samples a second
        job.add({**fields, "samples": 100 * second, "eps": 100.0}, 50.0 + second)
    assert (job.share, job.seconds_left, job.rate) == (pytest.approx(1 / 3), pytest.approx(20), 100)
    job.add({**fields, "samples": 1000, "mode": "sync", "eps": 0.0}, 61.0)
    assert job.seconds_left == pytest.approx(20), "at the pace of the mode before"
    job.add({**fields, "samples": 1500, "mode": "sync", "eps": 500.0}, 62.0)
    assert (job.seconds_left, job.rate) == (pytest.approx(3), 500)
    job.add({**fields, "samples": 1400, "mode": "sync", "eps": 500.0}, 63.0)  # a recovery
    assert job.seconds_left == pytest.approx(3.2)
    assert JobProgress(10).seconds_left is None


def test_one_bar_for_the_job_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    show = ProgressDisplay()
    show.console = module.Terminal(file=out, force_terminal=True, width=80, highlight=False)
    show.job = JobProgress(2000)
    show.job.auc = 0.71234
    for mode, unit, place, text, told in (
        ("gba", "samples/s", None, "day 0 of 2, gba", r" 30 % \d:\d\d left 12,346 samples/s"),
        ("shadow_easgd", "samples/s", None, "day 0/2, shadow_easgd", r" 30 % \d:\d\d left 12,346/s"),
        ("shadow_easgd", "samples/virtual s", None, "day 0/2, shadow_easgd", r"\d:\d\d left 12,346/virtual s"),
        ("gba", "samples/s", SweepPlace(2, 4), "run 2/4, day 0/2, gba", r" 32 % \d:\d\d left 12,346/s"),
    ):
        show.unit, show.place = unit, place
        for share in (0.2, 0.6):
            show.show_progress(progress(share, mode=mode))
        assert show._bar is not None
        [task] = show._bar.tasks
        assert task.description == text and re.fullmatch(f"{told} AUC 0.7123 loss 0.500", task.fields["detail"]), text
        assert len(f"  {task.description} {task.fields['detail']} ") + show._length.bar_width <= 80
    show.clear()
    assert [duration(5), duration(65), duration(3725)] == ["0:05", "1:05", "1:02:05"]


def test_the_commands_after_a_run(tmp_path: Path) -> None:
    typed = CommandLine("train", ("experiment=smoke", "mode=gba", "mode.iota=4", "run_dir=r", "seed=1"))
    cfg = from_dict({"mode": {"name": "gba"}, "tracking": {"experiment": "demo"}})
    told = dict(after_run(cfg, typed, {"run_dir": str(tmp_path)}, compose))
    assert told == {
        "another mode": "gbactl train experiment=smoke seed=1 mode=sync",
        "compare runs": "gbactl report --experiment demo", "look at them": "gbactl ui",
    }  # fmt: skip
    refused = CommandLine("train", ("mode=gba", "mode.local_batch=512", "cluster.workers=3"))
    fork = CommandLine("train", ("resume=runs/base", "mode=gba", "run_dir=runs/a"))
    told = dict(after_run(cfg, fork, {"run_dir": str(tmp_path)}, lambda _: cfg))
    assert told["another mode"] == "gbactl train resume=runs/base run_dir=runs/a-sync mode=sync"
    in_place = CommandLine("train", ("resume=runs/base",))
    assert "another mode" not in dict(after_run(cfg, in_place, {"run_dir": str(tmp_path)}, lambda _: cfg))
    assert "another mode" not in dict(after_run(cfg, refused, {"run_dir": str(tmp_path)}, compose))
    (tmp_path / "checkpoints" / "cut-000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "cut-000001" / "manifest.json").touch()
    quiet = from_dict({"mode": {"name": "sync"}, "tracking": {"enabled": False, "uri": "sqlite:///a b.db"}})
    assert dict(after_run(quiet, CommandLine("switch"), {"run_dir": str(tmp_path)}, compose)) == {
        "take its model": f"gbactl checkpoint export {tmp_path}"
    }
    assert after_runs(quiet.tracking)[1] == ("look at them", "gbactl ui --uri 'sqlite:///a b.db'")


def test_a_terminal_that_goes_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is shown to nobody then."""

    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    left: list[str] = []
    monkeypatch.setattr(module, "leave_terminal", lambda: left.append("it"))
    show = ProgressDisplay()
    show.print_line("a line")
    show.show_progress(progress(1.0))
    assert left == ["it", "it"]


def test_a_run_of_a_sweep_is_a_part_of_its_bar_and_one_line(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    show = ProgressDisplay(place=SweepPlace(2, 4, (30.0,)))
    show.print_detail("not told")
    clock[0] += 10
    show.show_progress(progress(0.0))
    assert capsys.readouterr().err.startswith("  run 2 of 4, day 0 of 2, gba:  25 %  1:20 left  ")
    fields = {"auc": 0.7, "logloss": 0.5, "eps": 1000.0, "wall_seconds": 65.0, "run_dir": "/runs/r"}
    show.show_end(fields, "gba iota=3 s1")
    told = "run 2 of 4: gba iota=3 s1: AUC 0.70000, log loss 0.50000, 1,000 samples/s, 1:05, /runs/r\n"
    assert capsys.readouterr().out == told
    show.show_end({**fields, "auc": None}, "gba iota=3 s1")
    assert "gba iota=3 s1: AUC undefined (labels of one class), log loss 0.50000" in capsys.readouterr().out
    assert SweepPlace(1, 3).seconds_left(5.0, None) is None and SweepPlace(1, 3).seconds_left(5.0, 15.0) == 15 + 2 * 20
