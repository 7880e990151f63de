"""Trainers that disappear or stand still, with batches fetched ahead, and lost messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from virtual_runs import adds_up, config, run

from gbactl.config import RunConfig, check
from gbactl.errors import ConfigError

KILL = {"kind": "kill", "workers": [1], "step": 6}


def failing(mode: str, plan: dict[str, Any], lost: str = "replace", **options: Any) -> RunConfig:
    own = {} if mode.startswith("shadow") else {"k": 3}
    cfg = config(
        mode, faults=[plan], cost={"restart_us": 2000.0}, local_batch=32, options={**own, **options}, prefetch=1
    )
    cfg.cluster.lost_worker, cfg.cluster.hang_seconds = lost, 0.02
    return check(cfg)


@pytest.mark.parametrize("mode", ["shadow_easgd", "fr_easgd", "shadow_bmuf", "fr_ma"])
@pytest.mark.parametrize("lost", ["continue", "replace"])
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
    assert min(result["messages"].values()) > 0 and result["replicas"]["exchanges"] > 0


def test_replicas_are_no_part_of_a_checkpoint() -> None:
    cfg = config("shadow_ma")
    cfg.checkpoint.name = "full"
    with pytest.raises(ConfigError, match=r"^mode=shadow_ma keeps replicas that differ, .* checkpoint=none"):
        check(cfg)
