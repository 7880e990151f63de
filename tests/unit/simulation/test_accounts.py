"""What a run says of itself, day by day and altogether: one account of all phases that adds up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gbactl.data.cache import prepare
from gbactl.tracking.metrics_and_tags import metrics_of
from gbactl.wire.messages import Event
from tests.support import recorded
from tests.support.simulated_runs import adds_up, config, run

WITHIN = [{"at": {"samples": at}, "to": to} for at, to in ((300, "hop_bw"), (900, "gba"), (1500, "async"))]
DAYS = 4


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return []


@pytest.fixture(scope="module")
def switched(four_days: Path, events: list[Event], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that is switched within a day three times, with gradients that are dropped."""
    slow = [{"kind": "constant", "workers": [1], "factor": 4.0}]
    cfg = config("sync", hard=False, faults=slow, switches=WITHIN, prefetch="rows")
    return run(cfg, four_days, tmp_path_factory.mktemp("run"), events)


def by_day(events: list[Event], name: str) -> Iterator[list[dict[str, Any]]]:
    fields = [event.fields for event in events if event.name == name]
    for day in range(DAYS):
        yield [each for each in fields if each.get("label", each.get("day")) == f"day {day}"]


def test_days_add_up_their_phases_and_the_run_its_days(switched: dict[str, Any], events: list[Event]) -> None:
    adds_up(switched, 600 * DAYS)
    days, phases = switched["rounds"], switched["phases"]
    assert [(day["day"], day["modes"]) for day in days] == [
        ("day 0", ["sync", "hop_bw"]), ("day 1", ["hop_bw", "gba"]), ("day 2", ["gba", "async"]), ("day 3", ["async"]),
    ]  # fmt: skip
    for day, [line] in zip(days, by_day(events, "round"), strict=True):
        parts = [phase for phase in phases if phase["day"] == day["day"]]
        for key in ("steps", "samples", "decayed", "lost", "seconds"):
            assert day[key] == line[key] == pytest.approx(sum(part[key] for part in parts)), key
        assert day["samples"] + day["decayed"] + day["lost"] == 600
        assert day["eps"] == line["eps"] == day["samples"] / day["seconds"]
        assert day["auc"] == parts[-1]["auc"] == line["judged_auc"]
    assert sum(day["steps"] for day in days) == switched["global_step"]
    counted = {"trained": "samples", "decayed": "decayed", "lost": "lost"}
    assert {fate: sum(day[key] for day in days) for fate, key in counted.items()} == {
        fate: switched["samples"][fate] for fate in counted
    }
    assert switched["samples"]["lost"] > 0
    assert switched["eps"] == pytest.approx(switched["samples"]["trained"] / sum(day["seconds"] for day in days))


def test_progress_is_that_of_the_day_across_switches(switched: dict[str, Any], events: list[Event]) -> None:
    """And its rate comes to that of the day's line."""
    for day, line in zip(by_day(events, "progress"), switched["rounds"], strict=True):
        assert all(each["round_samples"] == 600 for each in day)
        done = [each["round_finished"] for each in day]
        assert all(before <= after for before, after in pairwise(done)) and done[-1] == 600
        assert day[-1]["round_eps"] == line["eps"]


def test_what_is_told_when_a_phase_ends_is_what_a_run_that_fails_leaves(
    switched: dict[str, Any], events: list[Event]
) -> None:
    accounts = [event.fields["phases"] for event in events if event.name == "phase"]
    assert [len(account) for account in accounts] == list(range(1, len(switched["phases"]) + 1))
    assert [phase["mode"] for phase in accounts[-1]] == [phase["mode"] for phase in switched["phases"]]


def test_an_epoch_is_told_with_the_scores_that_choose_it(tmp_path: Path) -> None:
    data = prepare(recorded.splits(tmp_path / "data"))
    cfg, events = config("gba"), list[Event]()
    result = run(replace(cfg, train=replace(cfg.train, epochs=3)), data, tmp_path / "run", events)
    lines = [event.fields for event in events if event.name == "round"]
    assert [(line["judged_on"], line["evaluated_on"]) for line in lines] == 3 * [("validation", "test")]
    best = max(lines, key=lambda line: line["judged_auc"])
    assert result["best_round"] == best["day"]
    assert (result["judged_on"], result["judged_auc"]) == ("validation", best["judged_auc"])
    assert (result["evaluated_on"], result["auc"]) == ("test", best["auc"]) and best["auc"] != best["judged_auc"]
    assert "gauc" not in result


def test_data_with_a_user_have_gauc_in_every_account(tmp_path: Path) -> None:
    data = prepare({**recorded.splits(tmp_path / "data"), "user_field": 0})
    cfg, events = config("gba"), list[Event]()
    result = run(replace(cfg, train=replace(cfg.train, epochs=2)), data, tmp_path / "run", events)
    lines = {event.fields["day"]: event.fields["gauc"] for event in events if event.name == "round"}
    assert lines == {line["day"]: line["gauc"] for line in result["rounds"]} and len(lines) == 2
    assert result["gauc"] == lines[result["best_round"]] == metrics_of(result)["gauc"]
    assert 0 < result["gauc"] < 1 and result["gauc"] != result["auc"]
    assert metrics_of(result)[f"gauc/{result['best_round']}"] == result["gauc"]
