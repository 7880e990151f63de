"""What is shown on a pipe: a line now and then on standard error, nothing on standard output."""

from __future__ import annotations

import errno
import io
from typing import Any

import pytest

from gbactl.launch import progress as module
from gbactl.launch.progress import ProgressDisplay, _summary, unit_of


def progress(share: float, **more: Any) -> dict[str, Any]:
    fields = {
        "round_finished": int(share * 1000),
        "round_samples": 1000,
        "loss": 0.5,
        "label": "day 0",
        "rounds": 2,
    }
    return {**fields, "step": 7, "eps": 99.0, "round_eps": 12345.6, **more}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_line_now_and_then_and_one_at_the_end(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    show = ProgressDisplay()
    for tick in range(40):
        clock[0] += 0.5
        show.progress(progress(tick / 40))
    show.progress(progress(1.0))
    show.progress(progress(1.0))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert len(lines) == 5
    assert lines[-1] == "  day 0 of 2: 100 %  step 7  loss 0.5000  12,346 samples/s"
    assert "\x1b" not in err, "no colours on a pipe"


def test_no_loss_yet(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay().progress(progress(0.0, loss=None))
    assert "loss" not in capsys.readouterr().err


def test_long_lines_are_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressDisplay().say("word " * 80)
    assert capsys.readouterr().err.count("\n") == 1


def test_a_finished_round(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {
        "day": "day 0",
        "steps": 40,
        "eps": 1234.5,
        "judged_on": "day1",
        "judged_auc": 0.71234,
        "judged_logloss": 0.51,
    }
    ProgressDisplay().round(fields)
    ProgressDisplay(unit_of("virtual")).round(fields)
    real, virtual = capsys.readouterr().err.splitlines()
    assert real == "  day 0: 40 steps, 1,234 samples/s; on day1: AUC 0.71234, log loss 0.51000"
    assert virtual == real.replace("samples/s", "samples/virtual s")


def test_the_scores_of_the_epoch_that_was_chosen_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    result = {"best_round": "epoch 4", "judged_on": "day1", "judged_auc": 0.9, "evaluated_on": "day1"}
    ProgressDisplay().best(result)
    assert capsys.readouterr().err == "", "a day's line had them"
    ProgressDisplay().best({**result, "judged_on": "validation", "evaluated_on": "test", "auc": 0.8, "logloss": 0.4})
    assert capsys.readouterr().err == (
        "  epoch 4 is the best on validation (AUC 0.90000); on test: AUC 0.80000, log loss 0.40000\n"
    )


def test_the_summary_for_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    result = {
        "mode": "gba", "seed": 1, "auc": 0.7, "logloss": 0.5, "ne": 0.9, "eps": 1000.0, "wall_seconds": 9.0,
        "samples": {"read": 1000, "trained": 990, "decayed": 10, "lost": 0}, "best_possible_auc": None,
        "staleness": {"mean": 1.5, "p50": 1.0, "p99": 4.0}, "run_dir": "/r",
    }  # fmt: skip
    rows = dict(_summary(result))
    assert rows["samples/s"] == "1,000" == dict(_summary({**result, "clock": "virtual"}))["samples/virtual s"]
    assert rows["AUC"] == "0.70000" and "best possible AUC" not in rows
    assert rows["trained / decayed / lost"] == "990 / 10 / 0"
    assert rows["staleness mean / p50 / p99"] == "1.50 / 1 / 4"
    assert not [name for name in rows if "refused" in name or "kB" in name]
    assert dict(_summary({**result, "best_possible_auc": 0.8}))["best possible AUC"] == "0.80000"
    a_step = {"dense": 1234.0, "rows": 20000.0, "ids": 0.0, "control": 560.0, "other": 0.0}
    more = {"wire": {"bytes_per_step": a_step, "shared_memory": 0}, "refused_frames": 0}
    told = dict(_summary({**result, **more}))
    assert told["kB a step: dense / rows / ids / control / other"] == "1.2 / 20.0 / 0.0 / 0.6 / 0.0"
    assert set(told) - set(rows) == {"kB a step: dense / rows / ids / control / other"}, "nothing was refused"
    more = {"wire": {"bytes_per_step": a_step, "shared_memory": 3_460_000}, "refused_frames": 1200}
    told = dict(_summary({**result, **more}))
    assert told["kB a step: dense / rows / ids / control / other"].endswith(" / 0.0; shared memory 3.5 MB")
    assert told["refused (reasons: result.json)"] == "1,200"
    acted = {"plan": 0, "process": "W3", "from_s": 0.1, "until_s": 0.4, "factor": 4}
    plans = [{"kind": "window", "factor": 4, "from": 0.1}, {"kind": "kill", "time": 120.0}]
    faults = _summary({**result, "faults": {"plans": plans, "acted": [acted], "never": [1]}})[-3:-1]
    assert faults == [("fault", "W3 4x slower 0.1-0.4 s"), ("fault", "never acted: faults.plans[1] (kill at 120 s)")]
    assert dict(_summary({**result, "warnings": ["bad"]}))["warning"] == "bad"
    ProgressDisplay().result(result)
    assert "gba, seed 1" in capsys.readouterr().out


def test_a_terminal_that_goes_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is shown to nobody then."""

    class Gone(io.StringIO):
        def write(self, text: str, /) -> int:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(module.sys, "stderr", Gone())
    left: list[str] = []
    monkeypatch.setattr(module, "leave_terminal", lambda: left.append("it"))
    show = ProgressDisplay()
    show.say("a line")
    show.progress(progress(1.0))
    assert left == ["it", "it"]
