"""The launcher supervises processes: failed ones are abandoned and replaced, faults are injected; harmless children."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gbactl.config import RunConfig
from gbactl.engine.local_processes import ChildProcess, RunProcesses
from gbactl.errors import ClusterError
from gbactl.launch.supervision import (
    MOST_TRIES,
    FaultInjection,
    Replacements,
    event_sentence,
    repeats_known_failure,
    repeats_known_switch,
)
from gbactl.wire.messages import Event
from tests.support.processes import launch_of, wait_for

SLEEPER = "import time; time.sleep(60)"
LOST = {"process": "W1", "epoch": 0, "step": 7}
DONE = {"state": "done", "step": 40, "from": "sync", "to": "gba", "pause_ms": 12.5}


class Family(RunProcesses):
    """Children that only sleep; `code` is what a successor runs."""

    code = SLEEPER
    tried_again = 0

    def replace(self, name: str, again: bool = False) -> None:
        self.tried_again += again
        super().replace(name, again)

    def start_one(self, name: str, code: str = SLEEPER) -> ChildProcess:
        log = self.run_dir / f"{name}.log"
        log.touch()
        made = ChildProcess(name, subprocess.Popen([sys.executable, "-c", code]), log)
        self.running.append(made)
        return made

    def _spawn(self, role: str, index: int, *rest: Any) -> None:
        self.start_one(f"{role[0].upper()}{index}", self.code)


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    made = Family(launch_of(RunConfig(), tmp_path))
    made.start_one("C")
    made.start_one("W0")
    yield made
    made.stop()
    assert all(child.process.poll() is not None for child in (*made.running, *made.abandoned))


@pytest.fixture
def successors(family: Family) -> Replacements:
    return Replacements(family, lambda _: None)


def kill(child: ChildProcess) -> None:
    child.process.kill()
    child.process.wait()


def lost(name: str, replaced: bool = True, shared: bool = False, epoch: int = 0) -> Event:
    told = {"replaced": replaced, "shared": shared, "step": 1, "batches": 1, "epoch": epoch}
    return Event("lost", {"process": name, **told})


def state(child: ChildProcess) -> str:
    return Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


def names(children: list[ChildProcess]) -> list[str]:
    return [child.name for child in children]


def test_a_dead_worker_is_buried_and_succeeded(family: Family, successors: Replacements) -> None:
    kill(family.running[1])
    assert family.failure() is not None, "before everybody has come it is a failure"
    successors.on_event(Event("progress", {}))
    assert family.failure() is None
    successors.on_event(lost("W0"))
    assert (names(family.running), names(family.abandoned)) == (["C", "W0"], ["W0"])
    assert family.incarnations["W0"] == 1 and not family.ended()


def test_a_loss_that_another_coordinator_tells_again_is_known(family: Family, successors: Replacements) -> None:
    successors.on_event(lost("W0"))
    successors.on_event(lost("W0"))
    assert (names(family.running), names(family.abandoned)) == (["C", "W0"], ["W0"]) and family.incarnations["W0"] == 1


def test_another_failure_is_not_taken_for_that_of_the_buried(family: Family, successors: Replacements) -> None:
    kill(family.running[1])
    successors.on_event(lost("W0", replaced=False))
    kill(family.running[0])
    failure = family.failure()
    assert failure is not None and failure[0].startswith("C (pid ")


def test_one_that_hangs_is_killed_where_it_shares_memory(family: Family, successors: Replacements) -> None:
    worker = family.running[1]
    successors.on_event(lost("W0", shared=True))
    assert worker.process.wait(20) == -9
    other = family.running[1]
    successors.on_event(lost("W0", epoch=1))
    assert other.process.poll() is None


def test_a_dead_server_is_spared_where_there_are_checkpoints(family: Family, successors: Replacements) -> None:
    server = family.start_one("S0")
    family.all_ready = True
    kill(server)
    assert family.failure() is not None
    family.cfg.checkpoint.name = "cpr"
    assert family.failure() is None
    successors.on_event(lost("S0"))
    assert names(family.running) == ["C", "W0", "S0"] and family.incarnations["S0"] == 1


@pytest.mark.parametrize("name", ["S0", "W0"])
def test_a_server_or_a_last_worker_that_never_comes_ends_the_run(
    family: Family, successors: Replacements, name: str
) -> None:
    family.start_one("S0")
    family.code = "raise SystemExit(1)"
    successors.on_event(lost(name))
    with pytest.raises(ClusterError, match=f"failed: .* {name} could not be replaced in 3 tries; look into"):
        for _ in range(MOST_TRIES):
            family.running[-1].process.wait(20)
            successors.poll()


@pytest.mark.parametrize(
    ("name", "fields", "line"),
    [
        ("lost", {"process": "W1", "replaced": False}, "its batches are handed out again."),
        ("lost", {"process": "S0", "recovery": "partial"}, "and the others keep what they have."),
        ("lost", {"process": "S0", "recovery": "full"}, "with the last checkpoint, and everybody goes back to it."),
        ("joined", {"process": "W1", "step": 7}, "step 7: W1 is back."),
        ("joined", {"process": "S0", "step": 7, "loaded": 4}, "step 7: S0 is back as it was at step 4."),
        ("joined", {"process": "S0", "step": 7, "loaded": -1}, "step 7: S0 is back as it was at the beginning."),
        ("rewound", {"step": 7, "to": 4, "samples": 1200}, "checkpoint of step 4; 1,200 samples are trained again."),
    ],
)
def test_what_is_said_of_who_is_gone_or_back(name: str, fields: dict[str, Any], line: str) -> None:
    assert event_sentence(Event(name, fields)).endswith(line)


def test_a_successor_that_does_not_come_is_started_again_a_few_times(family: Family) -> None:
    said: list[str] = []
    successors = Replacements(family, said.append)
    family.start_one("W1")
    family.code = "raise SystemExit(1)"
    successors.on_event(lost("W0"))
    for _ in range(MOST_TRIES):
        started = family.running[-1]
        started.process.wait(20)
        successors.poll()
    assert names(family.running) == ["C", "W1"] and family.incarnations["W0"] == MOST_TRIES
    assert family.tried_again == MOST_TRIES - 1
    assert len(said) == 1 and "W0 could not be replaced" in said[0]
    successors.poll()
    assert names(family.running) == ["C", "W1"]


def test_one_that_has_joined_is_left_alone_and_a_late_one_is_not_waited_for(
    family: Family, successors: Replacements
) -> None:
    successors.on_event(lost("W0"))
    successors.on_event(Event("joined", {"process": "W0", "step": 3}))
    successors.on_event(Event("result", {}))
    assert names(family.running) == ["C", "W0"]
    successors.on_event(lost("W0", epoch=1))
    late = family.running[-1]
    successors.on_event(Event("result", {}))
    assert late.process.wait(20) == -9 and names(family.running) == ["C"]


def test_kill_hang_and_wake(family: Family) -> None:
    injection, worker = FaultInjection(family), family.running[1]
    hang = {"kind": "hang", "process": "W0", "seconds": 0.2}
    assert injection.inject(hang) == worker.process.pid
    wait_for(lambda: state(worker) == "T", 20)
    injection.poll()
    assert state(worker) == "T"
    wait_for(lambda: injection.poll() or state(worker) != "T", 20)
    assert injection.inject({"kind": "kill", "process": "W0", "seconds": None}) == worker.process.pid
    assert worker.process.wait(20) == -9
    assert injection.inject(hang) is None and injection.inject({**hang, "process": "W7"}) is None
    assert os.getpid() != worker.process.pid


def test_a_loss_is_known_by_process_and_epoch() -> None:
    assert repeats_known_failure(Event("lost", {**LOST, "step": 9}), [LOST])
    assert not repeats_known_failure(Event("lost", {**LOST, "epoch": 1}), [LOST])
    assert not repeats_known_failure(Event("joined", LOST), [LOST])


def test_a_switch_is_known_by_its_step_and_modes_whatever_its_pause() -> None:
    assert repeats_known_switch(Event("switch", {**DONE, "pause_ms": None}), [DONE])
    assert not repeats_known_switch(Event("switch", {**DONE, "step": 41}), [DONE])
    assert not repeats_known_switch(Event("switch", {**DONE, "state": "stayed"}), [DONE])
    assert not repeats_known_switch(Event("switch", DONE), [])
