"""Trainers that disappear or stand still in virtual time: the others go on, with a centre and in rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig, check
from gbactl.errors import PeerGoneError
from tests.support.modes import FOREGROUND, REPLICAS, every_k
from tests.support.simulated_runs import adds_up, config, run

KILL = {"kind": "kill", "workers": [1], "step": 5}


def failing(mode: str, plan: dict[str, Any], lost: str, switches: Any = (), **options: Any) -> RunConfig:
    more = {"local_batch": 32, "options": {**every_k(mode), **options}, "switches": list(switches)}
    cfg = config(mode, faults=[plan], cost={"restart_us": 2_000.0}, **more)
    cfg.cluster.lost_worker, cfg.cluster.hang_seconds = lost, 0.02
    return check(cfg)


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd", "shadow_ma", "fr_bmuf"])
@pytest.mark.parametrize("threads", [1, 2])
def test_another_trainer_takes_its_place(data: Path, tmp_path: Path, mode: str, threads: int) -> None:
    result = run(failing(mode, KILL, "replace", hogwild_threads=threads), data, tmp_path / "run")
    adds_up(result, 1500)
    [failed] = result["recovery"]
    assert failed["process"] == "W1" and failed["useful_s"] > failed["loaded_s"] > 0
    again = run(failing(mode, KILL, "replace", hogwild_threads=threads), data, tmp_path / "again")
    assert again["checksums"] == result["checksums"] and again["replicas"] == result["replicas"]


@pytest.mark.parametrize("mode", REPLICAS)
def test_without_replacement_the_others_go_on(data: Path, tmp_path: Path, mode: str) -> None:
    result = run(failing(mode, KILL, "continue", hogwild_threads=2), data, tmp_path)
    adds_up(result, 1500)
    [failed] = result["recovery"]
    assert failed["process"] == "W1" and failed["loaded_s"] is None


@pytest.mark.parametrize("mode", ["shadow_ma", "fr_ma"])
def test_one_that_dies_with_the_last_batches_leaves_them_to_those_who_are_out_of_data(
    data: Path, tmp_path: Path, mode: str
) -> None:
    step = 1500 // 32  # counted in gradients: the day has 47
    result = run(failing(mode, {**KILL, "step": step - 2}, "continue"), data, tmp_path)
    adds_up(result, 1500)
    assert result["samples"]["trained"] == 1500 and len(result["recovery"]) == 1


def test_ended_by_a_death_where_that_is_asked_for(data: Path, tmp_path: Path) -> None:
    with pytest.raises(PeerGoneError, match="W1 is gone"):
        run(failing("shadow_ma", KILL, "end"), data, tmp_path)


@pytest.mark.quick
@pytest.mark.parametrize("seconds", [0.01, None])
@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_ma", "fr_ma"])
def test_a_trainer_that_stands_still(data: Path, tmp_path: Path, mode: str, seconds: float | None) -> None:
    """For less than the patience it is only late; for longer, another one takes its place."""
    hang = {**KILL, "kind": "hang", **({} if seconds is None else {"seconds": seconds})}
    own = {} if mode in FOREGROUND else {"shadow_interval": 0.002}
    result = run(failing(mode, hang, "replace", **own), data, tmp_path)
    adds_up(result, 1500)
    assert [failed["failure"] for failed in result["recovery"]] == ([] if seconds else ["hang"])


def test_a_successor_trains_in_the_modes_that_follow(four_days: Path, tmp_path: Path) -> None:
    switches = [
        {"at": {"samples": 1000}, "to": "shadow_ma", "set": {"local_batch": 32}},
        {"at": {"samples": 1600}, "to": "sync"},
        {"at": {"samples": 2000}, "to": "shadow_easgd", "set": {"local_batch": 32}},
    ]
    result = run(failing("gba", KILL, "replace", switches), four_days, tmp_path)
    adds_up(result, 2400)
    modes = [phase["mode"] for phase in result["phases"]]
    assert modes.index("shadow_ma") < modes.index("sync") < modes.index("shadow_easgd")
    assert [failed["process"] for failed in result["recovery"]] == ["W1"]
