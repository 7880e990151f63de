"""Switch schedules: what is read, and what is refused with the entry's name."""

from __future__ import annotations

from typing import Any

import pytest

from gbactl.compose import compose
from gbactl.errors import ConfigError
from gbactl.switching.schedule import Entry, current, entries


def test_a_schedule_is_read_in_order() -> None:
    found = entries([{"at": {"day": 2}, "to": "gba", "set": {"iota": 5}}, {"at": {"epoch": 4}, "to": "sync"}])
    assert found == [Entry(2, "gba", {"iota": 5}), Entry(4, "sync", {})]
    assert [current(found, number) for number in range(6)] == [-1, -1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
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
    first, second = cfg.at_round(0), cfg.at_round(1)
    assert (first.mode.name, second.mode.name) == ("sync", "gba")
    assert second.mode.options["iota"] == 5 and second.mode.options["decay"] == "hard"
    assert (second.local_batch, second.gradients_per_step) == (256, 8)
    assert cfg.homes == {"servers", "workers"}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{at: {day: 1}, to: gbaa}", "mode.name=gbaa is not known"),
        ("{at: {day: 1}, to: gba, set: {iotta: 5}}", "no key iotta"),
        ("{at: {day: 1}, to: gba, set: {local_batch: 300}}", "is not a multiple of mode.local_batch=300"),
        ("{at: {day: 1}, to: gba, set: {sparse_divisor: contributors}}", "one mode.sparse_divisor"),
    ],
)
def test_an_impossible_mode_is_refused_before_anything_starts(entry: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose([f"switch.schedule=[{entry}]"])
