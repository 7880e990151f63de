"""Switches in the middle of a day, on the virtual cluster and on one of threads: exact points, no bit changed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig, check
from gbactl.coordinator.event_log import AnnounceRecord, ForgoRecord, GrantRecord, InfoRecord, StopRecord, read
from gbactl.errors import ConfigError
from gbactl.wire.messages import Event
from tests.support.memory_cluster import run_in_memory
from tests.support.modes import SERVED, WITHOUT_REPLICAS
from tests.support.simulated_runs import config, model, run

UNEVEN: dict[str, Any] = {"spread": "lognormal", "spread_scale": 1.0}
SLOW = [{"kind": "constant", "workers": [1], "factor": 4.0}]


def at(unit: str, value: float, to: str, **changes: Any) -> dict[str, Any]:
    return {"at": {unit: value}, "to": to, "set": {"prefetch": "none", **changes}}


def infos(folder: Path, key: str) -> list[dict[str, Any]]:
    return [r.fields for r in read(folder / "events.log") if isinstance(r, InfoRecord) and key in r.fields]


def training(folder: Path) -> list[dict[str, Any]]:
    return [phase for phase in infos(folder, "first_step") if phase["training"]]


def unchanged(folder: Path) -> int:
    """How many switches are in the log, the model summed up before and after each, the same."""
    sums = infos(folder, "model")
    for before, after in zip(sums[::2], sums[1::2], strict=True):
        assert (before["when"], after["when"]) == ("drained", "resumed")
        assert before["model"] and before["model"] == after["model"] and before["step"] == after["step"]
    return len(sums) // 2


def no_sample_twice(folder: Path, rows: list[int]) -> None:
    """Each (day, sample) is handed out once."""
    seen: dict[tuple[int, int], int] = {}
    phase: dict[str, Any] = {}
    for record in read(folder / "events.log"):
        if isinstance(record, InfoRecord) and "first_step" in record.fields:
            phase = record.fields
        elif isinstance(record, GrantRecord):
            low = record.batch * phase["local_batch"]
            high = min(low + phase["local_batch"], phase["samples"])
            for sample in range(phase["first_sample"] + low, phase["first_sample"] + high):
                seen[phase["split"], sample] = seen.get((phase["split"], sample), 0) + 1
    assert seen == {(split, sample): 1 for split, count in enumerate(rows) for sample in range(count)}


WITHIN = [at("samples", 300, "gba"), at("fraction", 0.55, "sync"), at("samples", 1500, "gba")]


@pytest.mark.quick(2)
@pytest.mark.parametrize("hard", [True, False])
@pytest.mark.parametrize("servers", [1, 3])
def test_lock_step_modes_go_on_where_the_other_was(
    four_days: Path, tmp_path: Path, lock_step: None, servers: int, hard: bool
) -> None:
    """Switched in the middle of a day, dropout and batch norm included: staying in sync gives the same bits."""
    stay = run(config("sync", servers=servers, hard=hard, cost=UNEVEN), four_days, tmp_path / "stay")
    plan = config("sync", servers=servers, hard=hard, cost=UNEVEN, switches=WITHIN)
    switched, threads = run(plan, four_days, tmp_path / "a"), run_in_memory(plan, four_days, tmp_path / "b")
    assert model(switched) == model(stay) == model(threads)
    assert switched["samples"] == stay["samples"] and switched["global_step"] == stay["global_step"]
    scores = [phase["auc"] for phase in stay["phases"]]
    for result in (switched, threads):
        assert [phase["auc"] for phase in result["phases"] if "auc" in phase] == scores
        assert [p["mode"] for p in result["phases"]] == ["sync", "gba", "gba", "gba", "sync", "gba", "gba"]
        assert [p["first_sample"] for p in result["phases"]] == [0, 384, 0, 0, 128, 384, 0]
        assert result["mode"] == "sync>gba@samples300>sync@55%>gba@samples1500"
    for name in "ab":
        assert unchanged(tmp_path / name) == 3
        no_sample_twice(tmp_path / name, [600] * 4)


def test_shuffling_stays_that_of_the_whole_day(four_days: Path, tmp_path: Path, lock_step: None) -> None:
    shuffled = [
        dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, shuffle=True))
        for cfg in (config("sync"), config("sync", switches=WITHIN))
    ]
    stay, switched = (run(cfg, four_days, tmp_path / str(n)) for n, cfg in enumerate(shuffled))
    assert model(stay) == model(switched) != model(run(config("sync"), four_days, tmp_path / "plain"))


@pytest.mark.quick
@pytest.mark.parametrize("after", [*WITHOUT_REPLICAS[1:], WITHOUT_REPLICAS[0]])
@pytest.mark.parametrize("before", WITHOUT_REPLICAS)
def test_any_mode_to_any_mode(data: Path, tmp_path: Path, before: str, after: str) -> None:
    """Out of order, with prefetch and a straggler."""
    cfg = config(
        before,
        servers=3,
        cost=UNEVEN,
        faults=SLOW,
        prefetch="rows",
        switches=[at("samples", 500, after, prefetch="rows")],
    )
    result = run(cfg, data, tmp_path)
    assert result["samples"]["decayed"] < 300
    assert [p["mode"] for p in result["phases"]] == [before, after]
    assert [p["first_sample"] for p in result["phases"]] == [0, 512]
    assert unchanged(tmp_path) == 1
    no_sample_twice(tmp_path, [1500])
    assert result["phases"][0]["pause_ms"] is None and result["phases"][1]["pause_ms"] > 0
    assert [p["first_step"] for p in training(tmp_path)] == [0, result["phases"][0]["steps"]]


@pytest.mark.parametrize(("mode", "step"), [("sync", 3), ("gba", 3), ("bsp", 3), ("async", 6), ("hop_bs", 7)])
def test_a_step_is_an_exact_point(data: Path, tmp_path: Path, mode: str, step: int) -> None:
    """What applies single gradients goes on to a whole global batch of four."""
    result = run(config(mode, cost=UNEVEN, faults=SLOW, switches=[at("step", step, "gba", iota=9)]), data, tmp_path)
    assert result["phases"][0]["steps"] == (8 if mode in ("async", "hop_bs") else step)
    assert result["phases"][1]["mode"] == "gba" and result["phases"][1]["first_step"] == result["phases"][0]["steps"]


def test_a_switch_at_a_step_comes_also_where_its_drain_gives_gradients_up(data: Path, tmp_path: Path) -> None:
    """They make no steps, so that the global step is not reached."""
    cfg = config("async", cost=UNEVEN, faults=SLOW, switches=[at("step", 8, "gba")])
    result = run(dataclasses.replace(cfg, switch=dataclasses.replace(cfg.switch, drain_seconds=0.0)), data, tmp_path)
    assert [phase["mode"] for phase in result["phases"]] == ["async", "gba"]
    assert result["phases"][0]["steps"] < 8 and result["phases"][1]["first_sample"] == 8 * 32
    assert unchanged(tmp_path) == 1


def test_a_step_of_backup_workers_is_an_exact_point_too(data: Path, tmp_path: Path) -> None:
    """How many batches make so many steps is not known before: the phase is told to stop when it is there."""
    cfg = config("hop_bw", cost=UNEVEN, faults=SLOW, switches=[at("step", 5, "bsp")], options={"backup": 1})
    result = run(cfg, data, tmp_path)
    assert result["phases"][0]["steps"] == 5
    assert sum(isinstance(record, StopRecord) for record in read(tmp_path / "events.log")) == 1


def test_seconds_are_by_the_hub_s_clock(data: Path, tmp_path: Path) -> None:
    """Hand-out ends then, with a batch of each worker on its way, at a whole global batch."""
    events: list[Event] = []
    plain = run(config("gba", cost=UNEVEN), data, tmp_path / "plain", events)
    half = plain["phases"][0]["seconds"] / 2
    cfg = config("gba", cost=UNEVEN, switches=[at("seconds", half, "sync")])
    first, second = run(cfg, data, tmp_path / "a"), run(cfg, data, tmp_path / "b")
    assert first == second
    before, after = first["phases"]
    notes = [event.fields for event in events if event.name == "progress"]
    done = max(note["samples"] for note in notes if note["seconds"] <= half)
    assert done < after["first_sample"] <= done + 2 * 128 and after["first_sample"] % 128 == 0
    assert 0.8 * half < before["seconds"] < 2 * half, "with what was on its way, of uneven times"


def test_a_point_before_the_last_whole_global_batch_of_a_day_waits_for_the_next_day(
    four_days: Path, tmp_path: Path
) -> None:
    result = run(config("gba", switches=[at("samples", 590, "sync")]), four_days, tmp_path)
    assert [p["mode"] for p in result["phases"]] == ["gba", "sync", "sync", "sync"]
    assert result["phases"][1]["pause_ms"] is None


@pytest.mark.parametrize("mode", SERVED)
def test_without_prefetch_a_worker_holds_one_batch_whatever_it_asked_for_before(
    data: Path, tmp_path: Path, mode: str
) -> None:
    """Before the switch it asks early; a token that waits with its batch would be stale for nothing."""
    cfg = config("sync", cost=UNEVEN, faults=SLOW, prefetch="rows", switches=[at("samples", 500, mode)])
    run(cfg, data, tmp_path)
    phase, most = "", dict.fromkeys(("sync", mode), 0)
    flying: dict[int, int] = {}
    for record in read(tmp_path / "events.log"):
        if isinstance(record, InfoRecord) and "first_step" in record.fields:
            phase, flying = record.fields["mode"], {}
        elif isinstance(record, GrantRecord):
            flying[record.worker] = flying.get(record.worker, 0) + 1
            most[phase] = max(most[phase], flying[record.worker])
        elif isinstance(record, AnnounceRecord):
            flying[record.worker] -= 1
    assert most == {"sync": 2, mode: 1}


def test_the_schedule_of_the_learning_rate_does_not_jump(data: Path, tmp_path: Path, lock_step: None) -> None:
    def scheduled(cfg: RunConfig) -> RunConfig:
        schedule = dataclasses.replace(cfg.optim.schedule, name="cosine", warmup=3, total=10, floor=0.1)
        return check(dataclasses.replace(cfg, optim=dataclasses.replace(cfg.optim, schedule=schedule)))

    plan = [at("samples", 500, "gba"), at("samples", 1000, "sync")]
    stay, switched = (
        run(scheduled(config("sync", switches=each)), data, tmp_path / str(n)) for n, each in enumerate(([], plan))
    )
    assert model(stay) == model(switched)


@pytest.mark.quick
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
@pytest.mark.parametrize("after", ["bsp", "sync"])
@pytest.mark.parametrize("mode", sorted(set(SERVED) - {"bsp"}))
def test_what_has_not_come_by_the_deadline_is_decayed(
    data: Path, tmp_path: Path, mode: str, after: str, prefetch: str
) -> None:
    """A worker a hundred times slower: its batches are given up, it takes part again, nothing is counted twice."""
    faults = [{"kind": "constant", "workers": [1], "factor": 100.0}]
    switches = [at("samples", 500, after, prefetch=prefetch)]
    options = {"bound": 50} if mode == "hop_bs" else {}
    cfg = config(mode, cost=UNEVEN, faults=faults, switches=switches, prefetch=prefetch, options=options)
    cfg.switch.drain_seconds = 0.05
    result = run(cfg, data, tmp_path)
    given_up = sum(r.batches for r in read(tmp_path / "events.log") if isinstance(r, ForgoRecord))
    assert 1 <= given_up <= 1 + (prefetch != "none")
    assert result["samples"]["decayed"] >= 32 * given_up
    assert unchanged(tmp_path) == 1
    workers = [r.worker for r in read(tmp_path / "events.log") if isinstance(r, GrantRecord)]
    assert after != "sync" or 1 in workers[-4:]


def test_an_entry_past_the_end_is_refused_before_anything_starts(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"switch\.schedule\[0\] is at samples 1500"):
        run(config("gba", switches=[at("samples", 1500, "sync")]), data, tmp_path)
