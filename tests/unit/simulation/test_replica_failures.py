"""Trainers and servers that disappear or stand still in virtual time, and lost messages: the others go on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import CheckpointConfig, RunConfig, check, from_dict
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.coordinator.state import config_at
from gbactl.errors import PeerGoneError
from tests.support.modes import FOREGROUND, REPLICAS, every_k
from tests.support.simulated_runs import config, run

KILL = {"kind": "kill", "workers": [1], "step": 5}


def failing(
    mode: str, plan: dict[str, Any], lost: str = "replace", prefetch: str = "none", switches: Any = (), **options: Any
) -> RunConfig:
    more = {"local_batch": 32, "options": {**every_k(mode), **options}, "switches": list(switches)}
    cfg = config(mode, faults=[plan], cost={"restart_us": 2000.0}, prefetch=prefetch, **more)
    cfg.cluster.lost_worker, cfg.cluster.hang_seconds = lost, 0.02
    return check(cfg)


@pytest.mark.quick(5)
@pytest.mark.parametrize("mode", REPLICAS)
@pytest.mark.parametrize(("prefetch", "threads"), [("none", 2), ("rows", 1), ("rows", 3)])
def test_another_trainer_takes_its_place(data: Path, tmp_path: Path, mode: str, prefetch: str, threads: int) -> None:
    """It trains with the phase after its coming, from what the servers hold."""
    cfg = failing(mode, KILL, prefetch=prefetch, hogwild_threads=threads)
    result, again = run(cfg, data, tmp_path / "run"), run(cfg, data, tmp_path / "again")
    [failed] = result["recovery"]
    assert failed["process"] == "W1" and failed["useful_s"] > failed["loaded_s"] > 0
    assert again["checksums"] == result["checksums"] and again["replicas"] == result["replicas"]


@pytest.mark.parametrize("mode", REPLICAS)
def test_without_replacement_the_others_go_on(data: Path, tmp_path: Path, mode: str) -> None:
    cfg = failing(mode, KILL, "continue", prefetch="rows", hogwild_threads=2)
    result, again = run(cfg, data, tmp_path / "run"), run(cfg, data, tmp_path / "again")
    [failed] = result["recovery"]
    assert failed["process"] == "W1" and failed["loaded_s"] is None
    assert again["checksums"] == result["checksums"]


@pytest.mark.parametrize("mode", ["shadow_ma", "fr_ma"])
def test_one_that_dies_with_the_last_batches_leaves_them_to_those_who_are_out_of_data(
    data: Path, tmp_path: Path, mode: str
) -> None:
    step = 1500 // 32  # counted in gradients: the day has 47
    result = run(failing(mode, {**KILL, "step": step - 2}, "continue"), data, tmp_path)
    assert result["samples"]["trained"] == 1500 and len(result["recovery"]) == 1


def test_ended_by_a_death_where_that_is_asked_for(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PeerGoneError, match="W1 is gone"):
        run(failing("shadow_ma", KILL, "end"), data, tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize(("seconds", "prefetch"), [(0.01, "none"), (None, "none"), (None, "rows")])
@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_ma", "fr_ma", "fr_bmuf"])
def test_a_trainer_that_stands_still(
    data: Path, tmp_path: Path, mode: str, seconds: float | None, prefetch: str
) -> None:
    """For less than the patience it is only late; for longer, another one takes its place."""
    hang = {**KILL, "kind": "hang", **({} if seconds is None else {"seconds": seconds})}
    own = {} if mode in FOREGROUND else {"shadow_interval": 0.002}
    result = run(failing(mode, hang, prefetch=prefetch, **own), data, tmp_path)
    found = [(failed["process"], failed["failure"]) for failed in result["recovery"]]
    assert found == ([] if seconds else [("W1", "hang")])
    assert prefetch == "rows" or result["refused_frames"] == 0


def test_a_successor_trains_in_the_modes_that_follow(four_days: Path, tmp_path: Path) -> None:
    switches = [
        {"at": {"samples": 1000}, "to": "shadow_ma", "set": {"local_batch": 32}},
        {"at": {"samples": 1600}, "to": "sync"},
        {"at": {"samples": 2000}, "to": "shadow_easgd", "set": {"local_batch": 32}},
    ]
    result = run(failing("gba", KILL, switches=switches), four_days, tmp_path)
    modes = [phase["mode"] for phase in result["phases"]]
    assert modes.index("shadow_ma") < modes.index("sync") < modes.index("shadow_easgd")
    assert [failed["process"] for failed in result["recovery"]] == ["W1"]


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_ma"])
def test_lost_and_doubled_messages_change_nothing_but_the_time(data: Path, tmp_path: Path, mode: str) -> None:
    storm = {"kind": "messages", "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}
    result = run(failing(mode, storm, prefetch="rows"), data, tmp_path)
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES) and result["replicas"]["exchanges"] > 0


SERVER = {"kind": "kill", "servers": [1], "step": 20}


def saving(mode: str, save: str, *plans: dict[str, Any], **options: Any) -> RunConfig:
    cfg = failing(mode, SERVER, prefetch="rows", **options)
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
    assert result["checkpoint"]["resumed_at"] == chain.last.step > 0
