"""Workers killed and stopped by a fault plan, on real processes: the run goes on, and says what it cost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import AnnounceRecord, EventLogError, JoinedRecord, LeftRecord, OrderRecord
from gbactl.coordinator.failure_recovery import MESSAGE_OUTCOMES
from tests.support.processes import FORK_SERVER, SHM, Launcher, alive, children_of, collective, wait_for
from tests.support.slow import slow

LONG = ("data.rows_per_day=60000", "cluster.workers=3", "mode.local_batch=128", "train.max_eval_samples=2000")
SYNC = ("mode=sync", "collective=shm", "train.global_batch=384")
NOW_AND_NEVER = ("faults.plans=[{kind: messages, drop: 0.1, delay: 0.1, step: 10}, "
                 "{kind: messages, duplicate: 0.1, reorder: 0.1, step: 100000}]")  # fmt: skip


def test_a_killed_worker_is_replaced(launcher: Launcher) -> None:
    """The only one: nobody else can finish the run."""
    plan = "faults.plans=[{kind: kill, workers: random, step: 10}]"
    launched = launcher.start("mode=gba", "cluster.workers=1", "mode.local_batch=64", plan)
    done = launched.finish().accounted(4_000)
    [failed] = done.result["recovery"]
    assert (failed["process"], failed["failure"]) == ("W0", "kill")
    assert 0.0 < failed["detected_s"] < 2.0 and failed["detected_s"] < failed["loaded_s"] <= failed["useful_s"]
    [injected] = json.loads((done.run_dir / "faults.json").read_text())["injected"]
    assert (injected["kind"], injected["process"], injected["done"]) == ("kill", "W0", True)
    assert injected["step"] >= 10 and not alive(injected["pid"])
    assert "W0 is gone" in done.err and "W0 is back" in done.err
    assert (done.run_dir / "logs" / "W0-1.log").exists() and launched.left_behind() == []


@pytest.mark.beside
def test_a_worker_is_replaced_when_nothing_forks_any_more(launcher: Launcher) -> None:
    """The only one: without its successor the run does not end."""
    launched = launcher.start("data.rows_per_day=20000", "mode=gba", "cluster.workers=1", "mode.local_batch=64")
    launched.training()
    [server] = children_of(launched.process.pid, FORK_SERVER)
    for pid in (server, launched.node("W0")):
        os.kill(pid, signal.SIGKILL)
    done = launched.finish()
    assert done.code == 0, done.err
    assert "W0 is back" in done.err and (done.run_dir / "logs" / "W0-1.log").exists()


@pytest.mark.beside
def test_sync_goes_on_when_its_ring_is_broken(launcher: Launcher) -> None:
    more = (*LONG, "mode=sync", f"collective={collective()}", "train.global_batch=384")
    result = launcher.start(*more, "model.hidden=[64]", "faults=kill_worker").finish().accounted(60_000).result
    assert [failed["process"] for failed in result["recovery"]] == ["W1"]
    assert result["global_step"] == -(-60_000 // 384)


@pytest.mark.beside
@pytest.mark.slow
def test_sync_with_a_killed_worker_has_the_bits_of_one_without(launcher: Launcher) -> None:
    more = (*LONG, "model.hidden=[64]", *SYNC)
    plain = launcher.train(*more)
    killed = launcher.start(*more, "faults=kill_worker").finish().accounted(60_000).result
    assert killed["checksums"]["model"] == plain["checksums"]["model"] is not None
    assert (killed["auc"], killed["global_step"]) == (plain["auc"], plain["global_step"])
    assert [failed["process"] for failed in killed["recovery"]] == ["W1"] and plain["recovery"] == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["gba", "async", "hop_bw"])
def test_a_stopped_worker_that_goes_on_behind_its_successor_changes_nothing(launcher: Launcher, mode: str) -> None:
    """It wakes up when the one in its place has joined, with or without a batch in its hands, and ends by itself."""
    slowly = "faults.plans=[{kind: constant, workers: all, factor: 20}]"
    sizes = ("data.rows_per_day=120000", *LONG[1:], "train.global_batch=384")
    launched = launcher.start(*sizes, f"mode={mode}", "cluster.hang_seconds=1", slowly)
    log, journal = launched.run_dir / "events.log", launched.run_dir / "coordinator.json"
    launched.training()
    pid = launched.node("W2")
    half_open = SHM / f"gbactl-{pid}-{'0' * 16}"  # what it leaves that is killed while it connects
    half_open.touch()
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: any(isinstance(each, JoinedRecord) for each in so_far(log)), 30)
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for(lambda: not alive(pid), 20)
    assert launched.process.poll() is None and json.loads(journal.read_text())["standstill"]["stage"] == "train"
    size = log.stat().st_size
    done = launched.finish().accounted(120_000)
    assert log.stat().st_size > size
    assert done.result["refused_frames"] + done.result["fenced_frames"] > 0
    assert [(failed["process"], failed["failure"]) for failed in done.result["recovery"]] == [("W2", "hang")]
    assert not half_open.exists() and launched.left_behind() == []
    gone, ordered = False, Counter[int]()
    for record in so_far(log):
        match record:
            case LeftRecord(worker=2):
                gone = True
            case JoinedRecord(worker=2):
                gone = False
            case AnnounceRecord(worker=2):
                assert not gone
            case OrderRecord():
                ordered.update(batch for batch, _ in record.members)
    assert set(ordered.values()) == {1}
    verdict = launcher.replayed(done.run_dir)
    assert verdict["identical"] and verdict["steps"] == done.result["global_step"]


def so_far(log: Path) -> list[Any]:
    """The records of an event log that may still be written."""
    found: list[Any] = []
    with contextlib.suppress(EventLogError):
        for record in event_log.read(log):
            found.append(record)
    return found


@pytest.mark.beside
@pytest.mark.parametrize(
    ("plan", "fates"), [("faults=messages", MESSAGE_OUTCOMES), slow(NOW_AND_NEVER, ("dropped", "delayed", "retried"))]
)
@pytest.mark.parametrize("mode", [slow("gba"), "sync"])
def test_messages_are_lost_and_everything_counts_once(
    launcher: Launcher, mode: str, plan: str, fates: tuple[str, ...]
) -> None:
    launched = launcher.start(f"mode={mode}", f"collective={collective()}", plan, "data.rows_per_day=12000")
    done = launched.finish().accounted(12_000)
    assert done.result["samples"]["trained"] + done.result["samples"]["decayed"] == 12_000
    assert set(done.result["messages"]) == set(fates)


@pytest.mark.beside
@pytest.mark.parametrize("mode", [slow("shadow_easgd"), "gba"])
def test_a_killed_coordinator_ends_a_run_that_wants_it_so_with_a_sentence(launcher: Launcher, mode: str) -> None:
    ends = ("cluster.lost_coordinator=end", "data.rows_per_day=24000", "faults=kill_coordinator")
    done = launcher.start(f"mode={mode}", *ends).finish(60)
    assert done.code == 1
    told = [line for line in done.err.splitlines() if line.startswith("gbactl: ")]
    assert len(told) == 1 and "gbactl: C (pid " in told[0] and "was killed by SIGKILL" in told[0]
