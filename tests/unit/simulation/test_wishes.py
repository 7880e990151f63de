"""A running job asked at any moment, on virtual time: within a switch, between phases, at the very end."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import check
from gbactl.data.dataset import open_dataset
from gbactl.replay.replay_command import replay
from gbactl.simulation.simulated_run import VirtualCluster
from gbactl.wire.messages import Event
from tests.support.modes import SERVED, WITHOUT_REPLICAS
from tests.support.simulated_runs import adds_up, config
from tests.unit.simulation.test_switch_within_a_day import no_sample_twice, unchanged

UNEVEN: dict[str, Any] = {"spread": "lognormal", "spread_scale": 1.0}


def ask_at_random(
    data: Path, folder: Path, seed: int, modes: tuple[str, ...], drain: float, every: int | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result, and what was said of switches; with an evaluation after `every` so many samples of a day."""
    draw = random.Random(seed)
    cfg = config(
        draw.choice(modes), cost=UNEVEN, prefetch=("none", "data")[draw.randint(0, 1)], servers=draw.randint(1, 3)
    )
    cfg = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, eval_every=every))
    switch = dataclasses.replace(cfg.switch, prepare="all", drain_seconds=drain)
    events: list[Event] = []
    folder.mkdir(parents=True, exist_ok=True)
    cluster = VirtualCluster(check(dataclasses.replace(cfg, switch=switch)), open_dataset(data), folder, events.append)

    def ask(fields: dict[str, Any]) -> None:
        events.append(Event("switch", {"id": fields["id"], "state": "asked"}))
        cluster.coordinator.core.switch.ask(fields)

    for number in range(1, 16):
        mode = {
            "name": draw.choice(modes),
            "prefetch": ("none", "data")[draw.randint(0, 1)],
            "local_batch": draw.choice([32, 32, 64]),
        }
        if mode["name"] == "sync":
            del mode["local_batch"]
        cluster.events.schedule_at(draw.uniform(0.0, 0.09), ask, {"id": number, "mode": mode})
    return cluster.run(), [event.fields for event in events if event.name == "switch"]


@pytest.mark.quick(6)
@pytest.mark.parametrize("drain", [30.0, 0.0])
@pytest.mark.parametrize("seed", range(12))
def test_any_wish_at_any_time_is_answered_and_loses_nothing(
    four_days: Path, tmp_path: Path, seed: int, drain: float
) -> None:
    result, said = ask_at_random(four_days, tmp_path, seed, WITHOUT_REPLICAS, drain)
    adds_up(result, 4 * 600)
    assert drain == 0.0 or result["samples"]["decayed"] < 600
    if drain:
        no_sample_twice(tmp_path, [600] * 4)
    done = [each for each in said if each["state"] == "done"]
    assert unchanged(tmp_path) == len(done)
    asked = {each["id"] for each in said if each["state"] == "asked"}
    assert len(asked) > 8 and result["refused_frames"] == 0
    for number in asked:
        _, *states = [each["state"] for each in said if each["id"] == number]
        assert states in (["same"], ["refused"], ["accepted", "done"], ["accepted", "stayed"])


def test_wishes_are_met(four_days: Path, tmp_path: Path) -> None:
    """The test above would not notice if all were refused."""
    count = [len([s for s in ask_at_random(four_days, tmp_path / str(seed), seed, WITHOUT_REPLICAS, 30.0)[1]
                  if s["state"] == "done"]) for seed in range(3)]  # fmt: skip
    assert min(count) >= 2


def test_a_wish_during_an_evaluation_of_the_last_day_is_met(data: Path, tmp_path: Path) -> None:
    """It has samples left to train then."""
    cfg = config("async", cost=UNEVEN)
    cfg = dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, eval_every=700))
    events: list[Event] = []
    cluster = VirtualCluster(cfg, open_dataset(data), tmp_path, events.append)
    core = cluster.coordinator.core
    serve = core.run.serve_evaluation

    def asked() -> None:
        if not any(event.name == "switch" for event in events):
            core.switch.ask({"id": 1, "mode": {"name": "gba", "prefetch": "none", "local_batch": 32}})
        serve()

    core.run.serve_evaluation = asked  # type: ignore[method-assign]
    result = cluster.run()
    assert [event.fields["state"] for event in events if event.name == "switch"] == ["accepted", "done"]
    assert [phase["mode"] for phase in result["phases"]][:2] == ["async", "gba"]


@pytest.mark.quick(3)
@pytest.mark.parametrize("drain", [30.0, 0.0])
@pytest.mark.parametrize("every", [None, 250])
@pytest.mark.parametrize("seed", range(6))
def test_what_was_asked_comes_out_again(
    four_days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, every: int | None, drain: float
) -> None:
    """Also where an evaluation was meant to end a phase, and a wish ends it before."""
    result, said = ask_at_random(four_days, tmp_path, 100 + seed, SERVED, drain, every)
    assert any(each["state"] == "done" for each in said)
    monkeypatch.setattr("gbactl.replay.replay_command.prepare", lambda *_: four_days)
    verdict = replay(tmp_path)
    assert verdict["identical"], verdict["divergence"]
    assert verdict["steps"] == result["global_step"]
