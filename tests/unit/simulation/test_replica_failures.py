"""Trainers that disappear or stand still, with batches fetched ahead, and lost messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import CheckpointConfig, RunConfig, check, from_dict
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.coordinator.state import config_at
from tests.support.modes import every_k
from tests.support.simulated_runs import adds_up, config, run

KILL = {"kind": "kill", "workers": [1], "step": 6}


def failing(mode: str, plan: dict[str, Any], lost: str = "replace", **options: Any) -> RunConfig:
    cfg = config(
        mode,
        faults=[plan],
        cost={"restart_us": 2000.0},
        local_batch=32,
        options={**every_k(mode), **options},
        prefetch="rows",
    )
    cfg.cluster.lost_worker, cfg.cluster.hang_seconds = lost, 0.02
    return check(cfg)


@pytest.mark.quick(2)
@pytest.mark.parametrize("lost", ["continue", "replace"])
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd", "shadow_bmuf", "fr_ma"])
def test_the_others_go_on(data: Path, tmp_path: Path, mode: str, lost: str) -> None:
    """One in the place of the dead one trains with the phase after its coming, from what the servers hold."""
    result = run(failing(mode, KILL, lost), data, tmp_path / "run")
    adds_up(result, 1500)
    [failed] = result["recovery"]
    assert failed["process"] == "W1" and (failed["loaded_s"] is None) == (lost == "continue")
    again = run(failing(mode, KILL, lost), data, tmp_path / "again")
    assert again["checksums"] == result["checksums"]


@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_ma", "fr_ma"])
def test_with_threads_too(data: Path, tmp_path: Path, mode: str) -> None:
    adds_up(run(failing(mode, KILL, hogwild_threads=3), data, tmp_path), 1500)


@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_ma", "fr_bmuf"])
def test_a_trainer_that_stands_still_is_left_behind(data: Path, tmp_path: Path, mode: str) -> None:
    hang = {"kind": "hang", "workers": [1], "step": 6}
    result = run(failing(mode, hang), data, tmp_path)
    counted = result["samples"]
    assert counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == 1500
    assert [each["process"] for each in result["recovery"]] == ["W1"]


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma"])
def test_lost_and_doubled_messages_change_nothing_but_the_time(data: Path, tmp_path: Path, mode: str) -> None:
    storm = {"kind": "messages", "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}
    result = run(failing(mode, storm), data, tmp_path)
    adds_up(result, 1500)
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES) and result["replicas"]["exchanges"] > 0


SERVER = {"kind": "kill", "servers": [1], "step": 20}


def saving(mode: str, save: str, *plans: dict[str, Any], **options: Any) -> RunConfig:
    cfg = failing(mode, SERVER, **options)
    cfg.faults.plans, cfg.cluster.servers = list(plans), 2
    cfg.checkpoint = CheckpointConfig(
        save, interval_steps=8, keep=99, target_pls=0.5, save_seconds=0.01, load_seconds=0.02, reschedule_seconds=0.03
    )
    return check(cfg)


@pytest.mark.quick(2)
@pytest.mark.parametrize("save", ["cpr", "full"])
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd", "shadow_ma", "fr_bmuf", "local_sgd"])
def test_a_server_goes_back_and_training_goes_on(data: Path, tmp_path: Path, mode: str, save: str) -> None:
    cfg = saving(mode, save, SERVER)
    result, again = run(cfg, data, tmp_path / "run"), run(cfg, data, tmp_path / "again")
    adds_up(result, 1500)
    told, [failed] = result["checkpoint"], result["recovery"]
    assert failed["process"] == "S1" and told["saved"] >= 3
    if save == "cpr":
        assert 0 < failed["pls"] == told["pls"] and failed["samples_undone"] == round(told["pls"] * 3000)
        assert failed["row_updates_undone"] > 0 and told["overhead"]["went_back_alone"] == 1
    else:
        assert told["pls"] == 0.0 and told["overhead"]["samples_rolled_back"] == failed["samples_rolled_back"] > 0
    for key in ("checksums", "checkpoint", "recovery", "auc"):
        assert again[key] == result[key]


@pytest.mark.parametrize(("mode", "then"), [("shadow_easgd", "shadow_easgd"), ("fr_ma", "fr_ma"), ("fr_ma", "gba")])
def test_a_run_goes_on_from_what_was_saved_of_replicas(data: Path, tmp_path: Path, mode: str, then: str) -> None:
    run(saving(mode, "full", hogwild_threads=2), data, tmp_path / "one")
    folder = CheckpointFolder(tmp_path / "one" / "checkpoints")
    chain = folder.verified(folder.names()[1])
    values = {**config_at(chain), "resume": str(chain.folder / chain.last.name)}
    cfg = dataclasses.replace(from_dict(values), checkpoint=CheckpointConfig())
    if then != mode:
        cfg = dataclasses.replace(cfg, mode=config(then, local_batch=32).mode)
    result = run(check(cfg), data, tmp_path / "two")
    adds_up(result, 1500)
    assert result["checkpoint"]["resumed_at"] == chain.last.step > 0
