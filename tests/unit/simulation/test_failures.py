"""Workers and coordinators that disappear or stand still in virtual time: the same plan, the same run, every sample
once."""

from __future__ import annotations

import math
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig, check
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from gbactl.errors import ClusterError, PeerGoneError
from gbactl.faults.message_faults import AllActivePeriods, MessageFaultStream
from tests.support.failures import logged
from tests.support.modes import EVERY, SERVED, every_k
from tests.support.simulated_runs import config, run
from tests.support.slow import slow

STORM = {"kind": "messages", "drop": 0.1, "duplicate": 0.1, "reorder": 0.1, "delay": 0.1, "delay_seconds": 0.002}
CRASH = {"kind": "kill", "coordinator": True}


def failing(
    mode: str, *plans: dict[str, Any], lost: str = "replace", hang: float = 0.02, restart: float = 50_000.0, **more: Any
) -> RunConfig:
    cfg = config(mode, faults=list(plans), cost={"restart_us": restart}, **more)
    cfg.cluster.lost_worker, cfg.cluster.hang_seconds = lost, hang
    return check(cfg)


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", SERVED)
def test_a_worker_that_disappears_is_replaced(data: Path, tmp_path: Path, mode: str) -> None:
    kill = {"kind": "kill", "workers": [1], "step": 2}
    result = run(failing(mode, kill, global_batch=64), data, tmp_path / "run")
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"]) == ("W1", "kill")
    assert 0 < failed["detected_s"] < 0.001
    assert failed["loaded_s"] == pytest.approx(0.05, abs=0.01) and failed["useful_s"] > failed["loaded_s"]
    again = run(failing(mode, kill, global_batch=64), data, tmp_path / "again")
    assert again["recovery"] == result["recovery"] and again["checksums"] == result["checksums"]


def test_without_replacement(data: Path, tmp_path: Path) -> None:
    kill = {"kind": "kill", "workers": [0, 2], "time": 0.01}
    result = run(failing("gba", kill, lost="continue"), data, tmp_path / "run")
    assert [failed["process"] for failed in result["recovery"]] == ["W0", "W2"]
    assert all(failed["loaded_s"] is None for failed in logged(tmp_path / "run", result))


def test_failures_that_come_by_a_distribution(data: Path, tmp_path: Path) -> None:
    kill = {"kind": "kill", "workers": "all", "mtbf": 0.01, "distribution": "weibull", "shape": 0.7}
    result = run(failing("gba", kill, restart=1000.0, global_batch=64), data, tmp_path / "run")
    assert len(result["recovery"]) > 2


@pytest.mark.quick
@pytest.mark.parametrize("seconds", [0.01, 0.2, None])
@pytest.mark.parametrize("mode", ["gba", "hop_bw"])
def test_a_worker_that_stands_still(data: Path, tmp_path: Path, mode: str, seconds: float | None) -> None:
    """For less than the patience it is only late; for longer, what it says when it wakes up is refused."""
    hang = {"kind": "hang", "workers": [1], "step": 2, **({} if seconds is None else {"seconds": seconds})}
    result = run(failing(mode, hang, global_batch=64), data, tmp_path / "run")
    assert len(result["recovery"]) == (seconds != 0.01)
    if seconds != 0.01:
        assert result["recovery"][0]["detected_s"] == pytest.approx(0.02, abs=0.015)


@pytest.mark.quick
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
@pytest.mark.parametrize("when", [{"step": 0}, {"step": 3}, {"time": 0.0123}, {"time": 0.0371}])
@pytest.mark.parametrize("lost", ["continue", "replace"])
def test_sync_ends_with_the_bits_of_a_run_in_which_nobody_died(
    data: Path, tmp_path: Path, lost: str, when: dict[str, Any], prefetch: str
) -> None:
    plain = run(failing("sync"), data, tmp_path / "plain")
    kill = {"kind": "kill", "workers": [1, 3], **when}
    result = run(failing("sync", kill, lost=lost, restart=2000.0, prefetch=prefetch), data, tmp_path / "run")
    assert result["checksums"]["model"] == plain["checksums"]["model"] and result["auc"] == plain["auc"]
    assert [failed["process"] for failed in result["recovery"]] == ["W1", "W3"]
    if lost == "replace":
        assert all(failed["loaded_s"] is not None for failed in result["recovery"])


def test_sync_where_a_worker_stands_still(data: Path, tmp_path: Path) -> None:
    plain = run(failing("sync"), data, tmp_path / "plain")
    hang = {"kind": "hang", "workers": [1], "step": 2, "seconds": 1.0}
    result = run(failing("sync", hang), data, tmp_path / "run")
    assert result["checksums"]["model"] == plain["checksums"]["model"] and len(result["recovery"]) == 1


@pytest.mark.parametrize("mode", ["gba", "sync", "hop_bs"])
def test_messages_that_are_lost_late_doubled_or_overtaken(data: Path, tmp_path: Path, mode: str) -> None:
    plain = run(failing(mode), data, tmp_path / "plain")
    result = run(failing(mode, STORM), data, tmp_path / "run")
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES) and result["virtual_seconds"] > plain["virtual_seconds"]
    assert "messages" not in plain and (mode != "sync" or result["checksums"] == plain["checksums"])


def storming(
    monkeypatch: pytest.MonkeyPatch, mode: str, when: dict[str, Any], data: Path, tmp_path: Path
) -> list[tuple[int, float, bool]]:
    """Of every transmission of a run of three seconds: step, seconds of training, whether anything happened to it.

    It has one thread; what other tests have left in theirs may still transmit."""
    told, seen, own = list[tuple[int, float]](), list[tuple[int, float, bool]](), threading.get_ident()
    on, draw = AllActivePeriods.active_indexes, MessageFaultStream.draw

    def asks(this: Any, step: int, seconds: float) -> Any:
        if threading.get_ident() == own:
            told.append((step, seconds))
        return on(this, step, seconds)

    def draws(this: Any, storms: Any) -> Any:
        fate = draw(this, storms)
        if threading.get_ident() == own:
            seen.append((*told[-1], bool(fate.names)))
        return fate

    def trained(*plans: dict[str, Any]) -> dict[str, Any]:
        cfg = failing(mode, *plans)
        cfg.cost.batch_us = 200_000.0
        return run(cfg, data, tmp_path / f"run{len(plans)}")

    plain = trained()
    with monkeypatch.context() as patched:
        patched.setattr(AllActivePeriods, "active_indexes", asks)
        patched.setattr(MessageFaultStream, "draw", draws)
        result = trained({**STORM, **when})
    assert set(result["messages"]) == set(MESSAGE_OUTCOMES) and (
        mode != "sync" or result["checksums"] == plain["checksums"]
    )
    return seen


@pytest.mark.quick
@pytest.mark.parametrize(
    "when", [{"step": 6}, {"step": 3, "seconds": 1.0}, {"time": 0.7}, {"time": 0.7, "seconds": 1.0}]
)
@pytest.mark.parametrize("mode", ["gba", "sync", "hop_bw"])
def test_a_storm_has_a_beginning_and_an_end(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, when: dict[str, Any]
) -> None:
    seen = storming(monkeypatch, mode, when, data, tmp_path)
    begin = when.get("time") or next(seconds for step, seconds, _ in seen if step >= when["step"])
    end = begin + when.get("seconds", math.inf)
    assert {met for _, seconds, met in seen if seconds < begin} == {False}
    assert {met for _, seconds, met in seen if begin <= seconds < end} == {False, True}
    assert {met for _, seconds, met in seen if seconds >= end} == ({False} if "seconds" in when else set())


@pytest.mark.parametrize("mode", ["gba", "sync"])
def test_storms_that_come_by_a_distribution(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    when = {"mtbf": 0.5, "distribution": "gamma", "shape": 4.0, "seconds": 0.25}
    seen = storming(monkeypatch, mode, when, data, tmp_path)
    calm = [sum(1 for _ in each) for met, each in groupby(met for _, _, met in seen) if not met]
    assert sum(length > 25 for length in calm) > 3  # one in 40,000 is so long in a storm
    assert seen == storming(monkeypatch, mode, when, data, tmp_path / "again")


@pytest.mark.parametrize("mode", ["gba", "async"])
def test_where_nobody_may_be_lost(data: Path, tmp_path: Path, mode: str) -> None:
    kill = {"kind": "kill", "workers": [1], "step": 2}
    with pytest.raises(PeerGoneError, match="W1 is gone"):
        run(failing(mode, kill, lost="end"), data, tmp_path / "run")


@pytest.mark.quick(5)
@pytest.mark.parametrize("mode", EVERY)
def test_a_coordinator_that_disappears_is_replaced(data: Path, tmp_path: Path, mode: str) -> None:
    """The run takes as much longer as nobody was there; workers have something to do for a part of that."""
    plain = run(failing(mode, global_batch=64, options=every_k(mode)), data, tmp_path / "plain")
    cfg = failing(mode, {**CRASH, "step": 5}, global_batch=64, options=every_k(mode))
    result = run(cfg, data, tmp_path / "run")
    assert (result["samples"]["lost"] > 0) == (plain["samples"]["lost"] > 0) == (mode == "hop_bw")
    [failed] = result["recovery"]
    assert (failed["process"], failed["failure"], failed["samples_undone"]) == ("C", "kill", 0)
    assert 0 < failed["detected_s"] < 0.001 and failed["loaded_s"] == pytest.approx(0.05 + failed["detected_s"])
    assert failed["loaded_s"] < failed["useful_s"] < failed["loaded_s"] + 0.01
    longer = result["virtual_seconds"] - plain["virtual_seconds"]
    assert longer == pytest.approx(failed["loaded_s"], abs=0.01)
    assert mode != "sync" or (result["checksums"], result["auc"]) == (plain["checksums"], plain["auc"])


QUICK = ("gba", "sync", "shadow_easgd", "fr_ma")


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", [mode if mode in QUICK else slow(mode) for mode in EVERY])
def test_its_replacement_is_the_same_every_time(data: Path, tmp_path: Path, mode: str) -> None:
    cfg = failing(mode, {**CRASH, "step": 5}, global_batch=64, options=every_k(mode))
    result, again = run(cfg, data, tmp_path / "run"), run(cfg, data, tmp_path / "again")
    for key in ("checksums", "recovery", "auc", "virtual_seconds"):
        assert again[key] == result[key]


@pytest.mark.quick
@pytest.mark.parametrize("share", [0.0, 0.3, 0.95, 0.99])
@pytest.mark.parametrize("prefetch", ["none", "data", "rows"])
def test_whenever_the_coordinator_disappears_sync_has_the_same_bits(
    data: Path, tmp_path: Path, share: float, prefetch: str
) -> None:
    """In training, in an evaluation, and twice, unless the second time comes when the others are being sent home."""
    plain = run(failing("sync", prefetch=prefetch), data, tmp_path / "plain")
    seconds = share * plain["virtual_seconds"]
    plans = [{**CRASH, "time": seconds}, {**CRASH, "time": seconds + 0.0502}]
    result = run(failing("sync", *plans, prefetch=prefetch), data, tmp_path / "run")
    assert result["checksums"] == plain["checksums"] and result["auc"] == plain["auc"]
    assert [failed["process"] for failed in result["recovery"]] == ["C"] * (1 if share == 0.99 else 2)


@pytest.mark.parametrize("mode", ["gba", "sync", "shadow_easgd"])
def test_a_worker_that_dies_with_the_coordinator_is_waited_for(data: Path, tmp_path: Path, mode: str) -> None:
    """The other coordinator misses it when it has said nothing for as long as anybody may."""
    both = {**CRASH, "workers": [1], "step": 4}
    result = run(failing(mode, both, global_batch=64), data, tmp_path / "run")
    found = {failed["process"]: failed for failed in result["recovery"]}
    assert set(found) == {"C", "W1"} and found["C"]["loaded_s"] == pytest.approx(0.05 + 0.02, abs=0.001)
    assert found["C"]["loaded_s"] < found["W1"]["detected_s"] < found["W1"]["loaded_s"]


@pytest.mark.parametrize("seconds", [0.01, 0.2, None])
def test_a_coordinator_that_stands_still(data: Path, tmp_path: Path, seconds: float | None) -> None:
    """For less than the patience everybody only waits for it."""
    plain = run(failing("sync"), data, tmp_path / "plain")
    hang = {**CRASH, "kind": "hang", "step": 2, **({} if seconds is None else {"seconds": seconds})}
    result = run(failing("sync", hang), data, tmp_path / "run")
    assert result["checksums"] == plain["checksums"]
    longer = result["virtual_seconds"] - plain["virtual_seconds"]
    assert longer == pytest.approx(0.01 if seconds == 0.01 else 0.07, abs=0.005)
    found = [(failed["process"], failed["failure"], failed["detected_s"]) for failed in result["recovery"]]
    assert found == ([] if seconds == 0.01 else [("C", "hang", pytest.approx(0.02))])


def test_a_switch_that_drains_waits_for_another_coordinator(data: Path, tmp_path: Path) -> None:
    """What came while nobody was there is not too late."""
    switches = [{"at": {"samples": 640}, "to": "sync"}]
    cfg = failing("gba", {**CRASH, "step": 4}, switches=switches)
    cfg.switch.drain_seconds = 0.02
    result = run(check(cfg), data, tmp_path / "run")
    assert result["samples"]["trained"] == 1500 and [phase["mode"] for phase in result["phases"]] == ["gba", "sync"]


@pytest.mark.parametrize(("fault", "why"), [("kill", "C was killed by SIGKILL"), ("hang", "C stands still for ever")])
def test_where_no_other_coordinator_is_wanted(data: Path, tmp_path: Path, fault: str, why: str) -> None:
    cfg = failing("gba", {**CRASH, "kind": fault, "step": 2})
    cfg.cluster.lost_coordinator = "end"
    with pytest.raises(ClusterError, match=f"{why}; type cluster.lost_coordinator=replace"):
        run(check(cfg), data, tmp_path / "run")


def test_a_server_that_stands_still_for_a_while_needs_no_checkpoint(data: Path, tmp_path: Path) -> None:
    """As with real processes: it is silent for less than `hang_seconds`."""
    plain = run(failing("gba"), data, tmp_path / "plain")
    stop = {"kind": "hang", "step": 2, "servers": [0], "seconds": 2.0}
    result = run(failing("gba", stop, hang=10.0), data, tmp_path / "run")
    assert result["virtual_seconds"] == pytest.approx(plain["virtual_seconds"] + 2.0, abs=0.001)
    assert result["checksums"] == plain["checksums"]


def test_nobody_takes_the_place_of_a_server_of_which_nothing_is_saved(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"The fault plan hit S0 \(kill\): the run cannot go on"):
        run(failing("gba", {"kind": "kill", "step": 2, "servers": [0]}), data, tmp_path / "run")
