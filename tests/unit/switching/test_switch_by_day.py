"""Whole clusters that go on in another mode the next day: nothing but the mode changes, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.coordinator.event_log import InfoRecord, read
from tests.support import small_data
from tests.support.memory_cluster import run_in_memory
from tests.support.modes import SERVED


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three days to train on; a day's samples are no multiple of the batch."""
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 700, 4)


def config(first: str, *switches: dict[str, Any], servers: int = 2) -> RunConfig:
    cfg = RunConfig(
        mode=ModeConfig(first, prefetch="none", options={"backup": 0} if first == "hop_bw" else {}),
        model=ModelConfig(dim=4, hidden=[16, 8], batch_norm=True, dropout=0.2),
        cluster=ClusterConfig(workers=3, servers=servers),
        train=TrainConfig(global_batch=192, eval_batch=100),
        switch=SwitchConfig(schedule=list(switches)),
        seed=5,
    )
    return check(cfg)


def to(mode: str, day: int, **changes: Any) -> dict[str, Any]:
    return {"at": {"day": day}, "to": mode, "set": {"prefetch": "none", **changes}}


def run(cfg: RunConfig, data: Path, folder: Path) -> dict[str, Any]:
    return run_in_memory(cfg, data, folder)


@pytest.mark.parametrize("servers", [1, 3])
def test_moving_the_dense_parameters_there_and_back_changes_no_bit(data: Path, tmp_path: Path, servers: int) -> None:
    """`hop_bw` without backups is `sync` with the dense parameters on the servers."""
    stay = run(config("sync", servers=servers), data, tmp_path / "stay")
    plan = config("sync", to("hop_bw", 1, backup=0), to("sync", 2), servers=servers)
    there = run(plan, data, tmp_path / "moved")
    back = run(config("hop_bw", to("sync", 1), to("hop_bw", 2, backup=0), servers=servers), data, tmp_path / "back")
    assert [phase["mode"] for phase in there["phases"]] == ["sync", "hop_bw", "sync"]
    assert [phase["auc"] for phase in there["phases"]] == [phase["auc"] for phase in stay["phases"]]
    assert stay["checksums"]["model"] == there["checksums"]["model"] == back["checksums"]["model"]
    assert there["samples"] == stay["samples"]


def test_every_mode_can_take_over_and_hand_back(data: Path, tmp_path: Path) -> None:
    for mode in SERVED:
        result = run(config("sync", to(mode, 1), to("sync", 2)), data, tmp_path / mode)
        assert [phase["mode"] for phase in result["phases"]] == ["sync", mode, "sync"]
        samples = result["samples"]
        assert samples["read"] == samples["trained"] + samples["decayed"] + samples["lost"] == 2100


def test_the_global_step_goes_on(data: Path, tmp_path: Path) -> None:
    run(config("async", to("sync", 1)), data, tmp_path)
    phases = [r.fields for r in read(tmp_path / "events.log") if isinstance(r, InfoRecord) and "first_step" in r.fields]
    training = [phase for phase in phases if phase["training"]]
    assert [phase["mode"] for phase in training] == ["async", "sync", "sync"]
    assert [phase["first_step"] for phase in training] == [0, 11, 15]
    assert [phase["served_dense"] for phase in training] == [True, False, False]
