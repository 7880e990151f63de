"""The live view: a line, a screen of 80 columns, keys, and which job is meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gbactl.errors import UsageError
from gbactl.launch.live_view import Keys, line, longest_wait, running, screen, slowness
from gbactl.launch.run_dir import lock
from gbactl.policies.policy import names

FOUND: dict[str, Any] = {
    "mode": "gba", "label": "day 1", "round": 1, "rounds": 3, "round_finished": 5000, "round_samples": 10000,
    "step": 1234, "samples": 15000, "seconds": 75.0, "eps": 20000.0, "round_eps": 19000.0, "loss": 0.45, "auc": 0.71,
    "staleness": {"mean": 1.1, "p50": 1.0, "p99": 4.0}, "live": 3, "lost": [3],
    "workers": {"W0": 8000.0, "W1": 2000.0, "W2": 8000.0}, "speeds": {"W0": 9000.0, "W1": 2250.0, "W2": 9000.0},
    "switches": [{"state": "done", "step": 700, "from": "sync", "to": "gba", "pause_ms": 12.0}],
    "times": {"W0": {"compute": 1.0, "batch": 3.0}, "S0": {"idle": 6.0, "kernels": 3.0, "messages": 1.0}},
    "failures": ["W3 is gone; the others go on, its batches are handed out again."],
}  # fmt: skip


def drawn(found: dict[str, Any], said: str = "", name: str = "runs/demo", **height: int) -> str:
    from rich.console import Console

    console = Console(width=80, height=40, color_system=None)
    with console.capture() as capture:
        console.print(screen(name, found, said, **height))
    return capture.get()


def test_a_status_is_one_line() -> None:
    assert line(FOUND) == (
        "1:15 gba day 1 50%, step 1,234, 20,000 samples/s, loss 0.4500, AUC 0.7100, staleness 1.10, 3 workers, "
        "W1 4.0x slower"
    )
    assert line({"switches": []}) == "starting"
    assert "loss" not in line({**FOUND, "loss": None, "auc": None})


def test_an_evaluation_has_no_throughput() -> None:
    found = {**FOUND, "eps": None}
    assert "step 1,234, - samples/s, loss" in line(found) and "- now, 19,000 in this day" in drawn(found)


def test_slowness_is_over_the_median_worker() -> None:
    assert slowness(FOUND) == {"W0": 1.0, "W1": 4.0, "W2": 1.0}
    assert slowness({"speeds": {"W0": 5.0}}) == slowness({}) == {}


def test_the_screen_has_workers_events_and_keys() -> None:
    text = drawn(FOUND, Keys.HINT)
    assert max(map(len, text.splitlines())) <= 80
    for told in (
        "gba, day 1 (2 of 3), 50% of it", "W1", "4.00", "sync to gba", "W3 is gone", "q: leave", "p99 4",
        "S0", "60%", "30%", "batch 75%",
    ):  # fmt: skip
        assert told in text, told
    assert "starting" in drawn({"switches": []})
    assert "runs/demo" + "x" * 90 in drawn(FOUND, name="runs/demo" + "x" * 90).replace("\n", ""), "one may copy it"
    many = {f"W{n}": 100.0 + n for n in range(100)}
    text = drawn({**FOUND, "workers": many, "speeds": many})
    assert "W0 " in text and "W99" not in text and "76 faster ones" in text
    times = {name: {"compute": 1.0, "rows": 3.0} for name in many}
    text = drawn({**FOUND, "workers": many, "speeds": many, "times": times})
    assert re.search(r"^W0 .* 25% +rows 75% *$", text, re.MULTILINE) and max(map(len, text.splitlines())) <= 80
    text = drawn({**FOUND, "times": {f"S{n}": {"idle": float(n), "kernels": 10.0} for n in range(10)}})
    assert "S7 " in text and "S8" not in text and "2 with less to do" in text


@pytest.mark.parametrize("failures", [[], ["W3 is gone; the others go on, its batches are handed out again."] * 9])
@pytest.mark.parametrize("servers", [0, 2, 9])
def test_in_24_lines_there_is_room_for_the_question(failures: list[str], servers: int) -> None:
    many = {f"W{n}": 100.0 + n for n in range(30)}
    keys = Keys(names())
    keys.on_key("s")
    times = {f"S{n}": {"idle": 1.0, "kernels": 1.0} for n in range(servers)}
    found = {**FOUND, "workers": many, "speeds": many, "lost": [], "failures": failures, "times": times}
    lines = drawn(found, keys.said, height=24).splitlines()
    assert len(lines) <= 24 and lines[-1].endswith("Which mode?")
    assert "\nW1 " in drawn(found, height=24)


def test_keys_ask_before_they_switch() -> None:
    keys = Keys(["sync", "gba"])
    assert keys.on_key("x") is None and keys.on_key("q") == keys.on_key("\x03") == "quit"
    assert keys.on_key("s") is None and "b: gba" in keys.said
    assert keys.on_key("b") is None and keys.said == "Switch to gba (y: yes, any other key: no)?"
    assert keys.on_key("y") == "gba" and keys.said == Keys.HINT
    for typed in ("sbn", "sz"):
        assert [keys.on_key(key) for key in typed] == [None] * len(typed) and keys.said == Keys.HINT


def test_the_only_running_job_is_meant(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No job runs below .*; type gbactl train"):
        running(tmp_path)
    for name in ("a", "study/b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "control.json").touch()
    with pytest.raises(UsageError, match="No job runs"):  # their launchers were killed
        running(tmp_path)
    with lock(tmp_path / "a"):
        assert running(tmp_path) == tmp_path / "a"
    with (
        lock(tmp_path / "a"),
        lock(tmp_path / "study/b"),
        pytest.raises(UsageError, match=r"2 jobs run; type one of: gbactl top .*/a, gbactl top .*/study/b"),
    ):
        running(tmp_path)


def test_a_worker_s_longest_wait_is_named() -> None:
    times = {"batches": 9, "compute": 1.0, "batch": 0.5, "rows": 2.5, "push": 0.0}
    assert longest_wait(times) == "rows 62%"
    assert longest_wait({"batches": 9, "compute": 1.0}) == longest_wait({}) == "-"
    text = drawn({**FOUND, "times": {"W0": {"batches": 9, "compute": 1.0, "all_reduce": 9.0}}})
    assert "all_reduce 90%" in text and max(map(len, text.splitlines())) <= 80
