"""switch=auto where a worker dies, on a cluster of threads: it counts those left, asks for nothing that needs all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, SwitchConfig, TrainConfig, check
from gbactl.coordinator.switch_plan import AUTO_FILE
from gbactl.worker.loop import WorkerLoop
from tests.support import small_data
from tests.support.memory_cluster import Killed, run_in_memory


def test_a_lost_worker_is_not_counted_and_sync_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = WorkerLoop._train

    def train(self: Any, item: Any) -> None:
        if self.exchange.index == 1:
            raise Killed
        plain(self, item)

    monkeypatch.setattr(WorkerLoop, "_train", train)
    cfg = RunConfig(
        mode=ModeConfig("gba", prefetch=0),
        model=ModelConfig(dim=4, hidden=[16, 8]),
        cluster=ClusterConfig(workers=3, servers=2, lost_worker="continue"),
        train=TrainConfig(global_batch=192, eval_batch=500),
        switch=SwitchConfig(name="auto", every=0.001, window=1.0, margin=9.0, minimum_stay=0.0),  # sync is preferred
        seed=5,
    )
    result = run_in_memory(check(cfg), small_data.prepared(tmp_path / "cache", 8000), tmp_path / "run")
    looks = [json.loads(line) for line in (tmp_path / "run" / AUTO_FILE).read_text().splitlines()]
    assert looks and {look["workers"] for look in looks} == {2}
    assert {look["wanted"] for look in looks} == {"sync"}
    why = {look["obstacle"] for look in looks}
    assert why - {"the run has handed out its last batch"} == {"W1 died, and sync needs every worker"}
    assert {phase["mode"] for phase in result["phases"]} == {"gba"} and result["auto"]["switched"] == []
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] == 8000
