"""Switches of the mode: schedules, names of switched runs, and the output of `gbactl switch`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl.errors import ConfigError, GbactlError
from gbactl.launch.hydra_config import compose
from gbactl.policies.policy import names
from gbactl.switching.switch_schedule import (
    ScheduleEntry,
    answer,
    each_mode,
    entries,
    from_listed,
    legend,
    listed,
    located,
    mode_id,
    status,
    switched,
)


def test_a_schedule_is_read_in_order() -> None:
    found = entries([{"at": {"day": 2}, "to": "gba", "set": {"iota": 5}}, {"at": {"epoch": 4}, "to": "sync"}])
    assert found == [ScheduleEntry("day", 2, "gba", {"iota": 5}), ScheduleEntry("epoch", 4, "sync", {})]


def test_points_are_told_in_samples_of_the_run() -> None:
    """Steps and seconds are not known before."""
    schedule = [
        {"at": {"samples": 3e2}, "to": "gba"}, {"at": {"seconds": 1.5}, "to": "sync"}, {"at": {"day": 1}, "to": "bsp"},
        {"at": {"step": 40}, "to": "sync"}, {"at": {"fraction": 0.75}, "to": "async"},
    ]  # fmt: skip
    found = entries(schedule)
    assert located(found, [1000, 500, 500]) == [300, None, 1000, None, 1500]
    assert [entry.point for entry in found] == ["samples300", "1.5s", "day1", "step40", "75%"]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([{"at": {"day": 3}, "to": "gba"}], r"schedule\[0\] is at day 3, but the run ends after 3 days"),
        ([{"at": {"samples": 2000}, "to": "gba"}], r"schedule\[0\] is at samples 2000, but the run ends"),
        ([{"at": {"day": 1}, "to": "gba"}, {"at": {"samples": 900}, "to": "sync"}], r"\[1\] is at samples 900, .*list"),
        ([{"at": {"fraction": 0.5}, "to": "gba"}, {"at": {"day": 1}, "to": "sync"}], r"\[1\] is at day 1, sample 1000"),
    ],
)
def test_a_point_that_cannot_come_is_refused_by_entry(schedule: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        located(entries(schedule), [1000, 500, 500])


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ([{"at": {"samples": 1.5}, "to": "gba"}], r"schedule\[0\]\.at is 1\.5"),
        ([{"at": {"samples": float("nan")}, "to": "gba"}], r"schedule\[0\]\.at is nan"),
        ([{"at": {"fraction": 1}, "to": "gba"}], r"schedule\[0\]\.at is a fraction of 1"),
        ([{"at": {"seconds": 0}, "to": "gba"}], r"schedule\[0\]\.at is 0 seconds"),
        ([{"at": {"seconds": float("inf")}, "to": "gba"}], r"schedule\[0\]\.at is inf seconds"),
        ([{"at": {"seconds": 1, "day": 2}, "to": "gba"}], r"schedule\[0\]\.at is"),
        ([{"at": {"step": 9}, "to": "gba"}, {"at": {"step": 9}, "to": "sync"}], r"schedule\[1\] starts at 9"),
        ([{"to": "gba"}], r"schedule\[0\] needs `at` and `to`"),
        ([{"at": {"day": 1}, "to": "gba", "then": 1}], r"schedule\[0\] needs `at` and `to`"),
        (["gba"], r"schedule\[0\] needs"),
        ([{"at": 2, "to": "gba"}], r"schedule\[0\]\.at is 2"),
        ([{"at": {"week": 2}, "to": "gba"}], r"schedule\[0\]\.at is"),
        ([{"at": {"day": 0}, "to": "gba"}], r"schedule\[0\]\.at is 0"),
        ([{"at": {"day": True}, "to": "gba"}], r"schedule\[0\]\.at is True"),
        ([{"at": {"day": 1}, "to": "gba", "set": [1]}], r"schedule\[0\]\.set"),
        ([{"at": {"day": 2}, "to": "gba"}, {"at": {"day": 2}, "to": "sync"}], r"schedule\[1\] starts at 2"),
    ],
)
def test_what_cannot_be_is_refused_by_entry(schedule: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        entries(schedule)


def test_a_mode_s_file_fills_in_what_an_entry_leaves_out() -> None:
    cfg = compose(["mode=sync", "switch.schedule=[{at: {day: 1}, to: gba, set: {iota: 5, local_batch: 256}}]"])
    first, second = cfg.phases
    assert (first.mode.name, second.mode.name) == ("sync", "gba")
    assert second.mode.options["iota"] == 5 and second.mode.options["decay"] == "hard"
    assert (second.local_batch, second.gradients_per_step) == (256, 8)
    assert cfg.homes == {"servers", "workers"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{at: {day: 1}, to: gbaa}", r"^switch.schedule\[0\]: mode.name=gbaa is not known"),
        ("{at: {day: 1}, to: gba, set: {iotta: 5}}", "no key iotta"),
        ("{at: {day: 1}, to: gba, set: {local_batch: 300}}", "is not a multiple of mode.local_batch=300"),
        ("{at: {day: 1}, to: gba, set: {sparse_divisor: contributors}}", "one mode.sparse_divisor"),
    ],
)
def test_an_impossible_mode_is_refused_before_anything_starts(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose([f"switch.schedule=[{entry}]"])


def test_a_run_is_named_by_what_it_did() -> None:
    name = switched(switched("sync", "gba", "day2"), "sync", "80%", fresh=True)
    assert name == "sync>gba@day2>sync@80%+fresh"
    assert each_mode(name) == ["sync", "gba", "sync"] and each_mode("hop_bs") == ["hop_bs"]


@pytest.mark.parametrize(
    ("day", "sample", "fresh", "name"),
    [("day 2", 0, False, "sync>gba@day2"), ("epoch 1", 640, False, "sync>gba@epoch1:640"),
     ("day 2", 0, True, "sync>gba@day2+fresh")],
)  # fmt: skip
def test_an_old_run_has_a_sentence_alone(day: str, sample: int, fresh: bool, name: str) -> None:
    told = listed("sync", [{"to": "gba", "day": day, "first_sample": sample, "fresh_optimizer": fresh}])
    assert from_listed(told) == name and from_listed("sync") == "sync" and from_listed("what; else") == "what; else"


PROGRESS: dict[str, Any] = {
    "mode": "gba", "label": "day 1", "rounds": 3, "round_finished": 250, "round_samples": 1000, "step": 1234,
    "samples": 2_500_000, "eps": 4.5, "round_eps": 98765.4, "live": 63,
    "staleness": {"mean": 0.5, "p50": 0.0, "p99": 3.0},
    "lost": [7], "workers": {f"W{worker}": 1500.0 + worker for worker in range(64)},
    "switches": [
        {"state": "done", "step": 100, "from": "sync", "to": "gba", "pause_ms": 31.4},
        {"state": "stayed", "step": 200, "from": "gba", "to": "sync", "why": "W7 died, and sync needs every worker"},
    ],
}  # fmt: skip


def test_a_job_fits_a_terminal() -> None:
    lines = status(Path("/a") / ("20260101-" + "x" * 100), PROGRESS).splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    for part in ("gba (day 1 of 3, 25 % of it)", "1,234", "98,765", "p99 3", "63, W7 is lost", "W63:1,563",
                 "step 100: sync to gba, after a pause of 31 ms", "not done: W7 died"):  # fmt: skip
        assert part in text
    assert status(Path("runs/a"), {"switches": []}) == "a: starting"
    look = {"sync": 1234.5, "gba": 5678.9, "reason": "gba promises 4.60 of sync, more than 1.21"}
    told = status(Path("runs/a"), {**PROGRESS, "auto": look})
    assert max(map(len, told.splitlines())) <= 80
    assert "sync 1,234, gba 5,679 samples/s: gba promises 4.60 of sync, more than 1.21" in " ".join(told.split())


def test_an_answer_is_a_sentence() -> None:
    told = {"from": "sync", "to": "gba", "step": 9}
    assert "already" in answer({**told, "state": "same"})
    assert answer({**told, "state": "done", "pause_ms": 12.3}).endswith("from step 9 on, after a pause of 12 ms.")
    assert answer({**told, "state": "done", "pause_ms": None}) == "The run goes on in gba from step 9 on."
    fresh = {**told, "state": "done", "pause_ms": None, "fresh_optimizer": True}
    assert answer(fresh) == "The run goes on in gba from step 9 on, its optimizer's state begun anew."
    replicas = {**told, "from": "fr_ma", "state": "done", "pause_ms": 5.0, "dense": "mean of the replicas"}
    assert answer(replicas).endswith("from step 9 on, after a pause of 5 ms, with the mean of the replicas.")
    assert "as soon as" in answer({**told, "state": "accepted"})
    with pytest.raises(GbactlError, match=r"^No switch: mode\.iota must be 0\.$"):
        answer({"state": "refused", "why": "mode.iota must be 0."})
    with pytest.raises(GbactlError, match=r"^The run stays in sync: a worker did not answer\.$"):
        answer({**told, "state": "stayed", "why": "a worker did not answer"})


def test_every_mode_has_a_number_of_its_own() -> None:
    numbers = [mode_id(mode) for mode in names()]
    assert None not in numbers and len(set(numbers)) == len(numbers)
    assert mode_id("gba") == 2.0 and mode_id("unheard-of") is None
    assert legend().startswith("0 sync, 1 async")
    switches = [{"to": "gba", "day": "day 1", "first_sample": 0}, {"to": "sync", "day": "day 1", "first_sample": 64}]
    assert listed("sync", switches) == "sync; gba from day 1, sample 0; sync from day 1, sample 64"
    anew = [{**switches[0], "fresh_optimizer": True}]
    assert listed("sync", anew) == "sync; gba from day 1, sample 0, optimizer anew"
