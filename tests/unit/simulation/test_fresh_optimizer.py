"""A switch with fresh_optimizer: true is a restart that kept the parameters alone, and says so."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig, check
from gbactl.errors import ConfigError
from gbactl.replay.replay_command import replay
from tests.support.memory_cluster import run_in_memory
from tests.support.simulated_runs import config, model, run
from tests.unit.simulation.test_switch_within_a_day import UNEVEN, infos, no_sample_twice

MODES = ("sync", "async", "gba")


def plan(to: str, fresh: bool = True, at: int = 300) -> list[dict[str, Any]]:
    return [{"at": {"samples": at}, "to": to, "set": {"prefetch": "none"}, "fresh_optimizer": fresh}]


def with_sgd(cfg: RunConfig) -> RunConfig:
    return check(dataclasses.replace(cfg, optim=dataclasses.replace(cfg.optim, name="sgd", lr=0.01)))


@pytest.mark.quick
@pytest.mark.parametrize("after", [*MODES[1:], MODES[0]])
@pytest.mark.parametrize("before", MODES)
def test_in_any_direction_it_is_counted_as_what_it_is(four_days: Path, tmp_path: Path, before: str, after: str) -> None:
    result = run(config(before, cost=UNEVEN, switches=plan(after)), four_days, tmp_path)
    no_sample_twice(tmp_path, [600] * 4)
    assert [phase.get("fresh_optimizer", False) for phase in result["phases"]] == [False, True, False, False, False]
    anew = [record for record in infos(tmp_path, "mode") if record.get("fresh")]
    assert [(record["mode"]["name"], record["step"]) for record in anew] == [(before, result["phases"][0]["steps"])]
    assert [record["when"] for record in infos(tmp_path, "model")] == ["drained"]
    assert result["mode"] == f"{before}>{after}@samples300+fresh"


@pytest.mark.parametrize("cluster", [run, run_in_memory])
def test_without_a_state_it_changes_no_bit(four_days: Path, tmp_path: Path, lock_step: None, cluster: Any) -> None:
    """Plain SGD has none: parameters, samples and steps are those of an ordinary switch."""
    kept, anew = (
        cluster(with_sgd(config("sync", servers=3, switches=plan("gba", fresh))), four_days, tmp_path / str(fresh))
        for fresh in (False, True)
    )
    assert model(kept) == model(anew) and kept["samples"] == anew["samples"]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("before", "after"), [("sync", "gba"), ("gba", "sync"), ("sync", "sync"), ("gba", "gba")])
def test_with_a_state_it_is_the_same_wherever_the_dense_part_was(
    four_days: Path, tmp_path: Path, lock_step: None, before: str, after: str
) -> None:
    """In lock-step all modes take the same steps: so they do after a fresh start, and others than without one."""
    reference = run(config("sync", switches=plan("sync")), four_days, tmp_path / "reference")
    found = run(config(before, switches=plan(after)), four_days, tmp_path / "virtual")
    threads = run_in_memory(config(before, switches=plan(after)), four_days, tmp_path / "threads")
    assert model(found) == model(reference) == model(threads)
    assert model(found) != model(run(config(before, switches=plan(after, fresh=False)), four_days, tmp_path / "kept"))


def test_it_is_what_a_new_run_would_have_been(four_days: Path, tmp_path: Path) -> None:
    """Before the first gradient of a day that follows nothing, a fresh start changes nothing."""
    entry = {"at": {"day": 1}, "to": "sync", "fresh_optimizer": True}
    once = run(config("sync", switches=[entry]), four_days, tmp_path / "once")
    twice = run(config("sync", switches=[entry, {**entry, "at": {"day": 2}}]), four_days, tmp_path / "twice")
    assert once["phases"][1]["auc"] == twice["phases"][1]["auc"] and model(once) != model(twice)


@pytest.mark.parametrize("after", ["gba", "async", "hop_bs"])
def test_it_comes_out_again(four_days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    result = run(config("bsp", cost=UNEVEN, switches=plan(after)), four_days, tmp_path)
    monkeypatch.setattr("gbactl.replay.replay_command.prepare", lambda *_: four_days)
    verdict = replay(tmp_path)
    assert verdict["identical"] and verdict["steps"] == result["global_step"], verdict["divergence"]


def test_a_mistake_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"^switch\.schedule\[0\]\.fresh_optimizer is 1; type true or false\.$"):
        config("sync", switches=plan("gba", 1))  # type: ignore[arg-type]
