"""More or fewer workers from a switch on: all are there from the start, G stays, nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator.event_log import GrantRecord, InfoRecord, read
from gbactl.errors import ConfigError
from gbactl.replay.replay_command import replay
from tests.support.memory_cluster import run_in_memory
from tests.support.simulated_runs import adds_up, config, model, run
from tests.unit.simulation.test_switch_within_a_day import at, no_sample_twice, unchanged

UNEVEN: dict[str, Any] = {"spread": "lognormal", "spread_scale": 1.0}
PLAN = [at("samples", 300, "gba", workers=8), at("fraction", 0.5, "sync", workers=2), at("samples", 1500, "async")]


def who(folder: Path) -> list[set[int]]:
    """The workers that were given batches, not only a place in a step, phase by phase of training."""
    found: list[set[int]] = []
    batches = 0
    for record in read(folder / "events.log"):
        if isinstance(record, InfoRecord) and record.fields.get("training"):
            found.append(set())
            batches = -(-record.fields["samples"] // record.fields["local_batch"])
        elif isinstance(record, GrantRecord) and record.batch < batches:
            found[-1].add(record.worker)
    return found


@pytest.mark.parametrize("cluster", [run, run_in_memory])
def test_workers_come_and_go(four_days: Path, tmp_path: Path, cluster: Any) -> None:
    cfg = config("sync", cost=UNEVEN, servers=2, switches=PLAN)
    assert cfg.processes == 8 and [p.local_batch for p in cfg.phases] == [32, 16, 64, 32]
    result = cluster(cfg, four_days, tmp_path)
    adds_up(result, 2400)
    no_sample_twice(tmp_path, [600] * 4)
    assert unchanged(tmp_path) == 3
    found = who(tmp_path)
    assert [p["mode"] for p in result["phases"]] == ["sync", "gba", "gba", "sync", "async", "async"]
    assert found[0] == set(range(4)) and found[3] == {0, 1} and found[4] <= set(range(4))
    assert found[1] | found[2] <= set(range(8))


def test_who_only_joins_in_changes_no_bit(four_days: Path, tmp_path: Path) -> None:
    """The same sync steps, with four idle workers that an entry at the very end will need."""
    stay = run(config("sync", cost=UNEVEN), four_days, tmp_path / "stay")
    more = config("sync", cost=UNEVEN, switches=[at("samples", 2399, "gba", workers=8)])
    idle = run(more, four_days, tmp_path / "idle")
    assert more.processes == 8 and model(stay) == model(idle)
    assert idle["global_step"] == stay["global_step"] and idle["samples"] == stay["samples"]


def test_lock_step_with_other_workers_is_sync_with_as_many(four_days: Path, tmp_path: Path, lock_step: None) -> None:
    """From four workers on two: gba and sync, each with two, are the same."""
    plans = [[at("samples", 300, mode, workers=2)] for mode in ("gba", "sync")]
    gba, sync = (run(config("sync", switches=plan), four_days, tmp_path / str(n)) for n, plan in enumerate(plans))
    assert model(gba) == model(sync)


def test_it_comes_out_again(four_days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [at("samples", 300, "hop_bw", workers=8, backup=2), at("samples", 900, "bsp", workers=2)]
    run(config("gba", cost=UNEVEN, switches=plan), four_days, tmp_path)
    monkeypatch.setattr("gbactl.replay.replay_command.prepare", lambda *_: four_days)
    assert replay(tmp_path)["identical"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, r"^switch\.schedule\[0\]: workers=0 is not a whole number from 1"),
        ({"workers": 2.5}, r"workers=2\.5 is not a whole number from 1"),
        ({"workers": 5}, r"^switch\.schedule\[0\]: train\.global_batch=128 cannot be shared by"),
        ({"workers": 8, "local_batch": 32}, r"^switch\.schedule\[0\]: mode=sync needs"),
    ],
)
def test_an_impossible_number_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("gba", switches=[at("samples", 300, "sync", **changes)])
