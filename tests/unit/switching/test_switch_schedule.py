"""Schedules of mode switches: entries, points, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl.errors import ConfigError
from gbactl.launch.hydra_config import compose
from gbactl.switching.switch_schedule import ScheduleEntry, entries, located


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
        ("{at: {day: 1}, to: gba, set: {sparse_divisor: contributors}}", "keeps mode.sparse_divisor"),
    ],
)
def test_an_impossible_mode_is_refused_before_anything_starts(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose([f"switch.schedule=[{entry}]"])
