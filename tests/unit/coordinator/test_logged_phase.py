"""A phase driven by its log alone: wherever that is cut off, the state is the one that the coordinator was in."""

from __future__ import annotations

import random
from collections import Counter, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    DropRecord,
    EventLog,
    ForgoRecord,
    GrantRecord,
    InfoRecord,
    LeftRecord,
    OrderRecord,
)
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.membership import Membership
from gbactl.coordinator.statistics import Statistics
from gbactl.coordinator.training_phase import ApplyStep, LoggedPhase, StagedSlices, TrainingPhase
from gbactl.policies.async_and_bsp import AsyncPolicy
from gbactl.policies.hop_bw import HopBwOptions
from gbactl.policies.policy import Phase, Policy, make
from gbactl.wire.auth import Peer
from gbactl.wire.messages import Hello, OrderStep, Staged
from tests.support.modes import WITHOUT_REPLICAS

WORKERS, SERVERS, NUMBER = 3, 2, 4


class Ear:
    """A channel that keeps what is sent."""

    def __init__(self, role: str, index: int) -> None:
        self.peer, self.sent = Peer(role, index), list[Any]()

    def send(self, message: Any, payload: Any = None) -> None:
        self.sent.append(message)

    def reserve(self, nbytes: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def policy_of(mode: str, samples: int) -> Policy:
    options = HopBwOptions(backup=1) if mode == "hop_bw" else None
    return make(mode, Phase(samples, 4, 16, 5, tuple(range(WORKERS)), prefetch="data"), options)


def lr_scale(finished: int) -> float:
    return 1.0 / (1 + finished)


class Run:
    """One phase at a coordinator, in an order drawn from a seed."""

    def __init__(self, path: Path, mode: str, samples: int, log: EventLog | None = None) -> None:
        self.path, self.mode, self.samples = path, mode, samples
        self.log = log or EventLog(path, {}, ahead=True)
        members = Membership(WORKERS, SERVERS)
        for role, count in (("server", SERVERS), ("worker", WORKERS)):
            for index in range(count):
                members.hello(Ear(role, index), Hello(role, index, ""))
        self.statistics = Statistics()
        self.statistics.samples_at = [0] * 6
        self.applied, self.missed = Counter[int](), list[tuple[int, int, int]]()
        slices = StagedSlices(self._hit, lambda *told: self.missed.append(told))
        self.phase = TrainingPhase(policy_of(mode, samples), lr_scale, self.statistics)
        self.phase.slices = slices
        self.training = LivePhase(NUMBER, self.phase, members, self.log, deque())
        self.reissued = 0

    def _hit(self, shard: int, rows: int) -> None:
        self.applied[shard] += rows

    @property
    def policy(self) -> Policy:
        return self.training.policy

    def orders(self) -> list[OrderStep]:
        return [message for message in self.training.servers[0].sent if isinstance(message, OrderStep)]  # type: ignore[attr-defined]

    def act(self, rng: random.Random, disturb: bool = True) -> None:
        """One event."""
        policy, draw = self.policy, rng.random()
        if disturb and draw < 0.01:
            self.note()
        elif disturb and draw < 0.02:
            self.lose_server(rng.randrange(SERVERS))
        elif disturb and draw < 0.06 and len(policy.live) > 1:
            worker = rng.choice(sorted(policy.live))
            self.reissued += len(policy.leased_to(worker))
            self.training.release_batches(worker)
        elif disturb and draw < 0.10:
            for worker in set(range(WORKERS)) - policy.live:
                self.training.on_worker_joined(worker)
        elif disturb and draw < 0.11:
            self.training.stop()
        elif draw < 0.5 or not policy.leases:
            worker = rng.choice(sorted(policy.live))
            if len(policy.leased_to(worker)) < 2:
                self.training.take(worker)
        else:
            leased = [(worker, batch) for worker in sorted(policy.live) for batch in policy.leased_to(worker)]
            self.announce(rng, *rng.choice(leased))

    def announce(self, rng: random.Random, worker: int, batch: int) -> None:
        for shard in range(SERVERS):
            version = rng.randint(max(5, self.policy.step - 3), self.policy.step)
            rows = rng.choice((rng.randint(1, 5000), ~rng.randint(1, 5000)))
            self.training.on_staged(Staged(shard, worker, NUMBER, batch, 0.5, 0.1, 1.0, version, version, rows))

    def note(self) -> None:
        """It tells of all that has been counted."""
        self.log.info(event_log.NOTE, {})
        self.applied.clear()
        self.missed.clear()

    def lose_server(self, shard: int) -> None:
        """As Returns.lost has it, and what its successor is told is noted."""
        self.training.on_server_failure(shard)
        self.log.info(event_log.SERVER, {"shard": shard, "state": "lost", "step": self.policy.step})

    def finish(self, rng: random.Random) -> None:
        while not self.policy.idle:
            self.act(rng, disturb=False)
        self.training.finish()

    def again(self, path: Path | None = None) -> Again:
        self.log.flush()
        return Again(self.mode, self.samples, list(event_log.read(path or self.path))[1:])


class Again:
    """The phase of a log, driven by it."""

    def __init__(self, mode: str, samples: int, records: list[Any]) -> None:
        self.statistics = Statistics()
        self.statistics.samples_at = [0] * 6
        self.applied, self.missed = Counter[int](), list[tuple[int, int, int]]()
        slices = StagedSlices(self._hit, lambda *told: self.missed.append(told))
        self.phase = TrainingPhase(policy_of(mode, samples), lr_scale, self.statistics)
        self.phase.slices = slices
        self.logged = LoggedPhase(self.phase)
        self.commands = self.logged.feed_tail(records)

    def _hit(self, shard: int, rows: int) -> None:
        self.applied[shard] += rows


def inside(value: Any) -> Any:
    """Everything that an object holds, as something that can be compared."""
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return {name: inside(each) for name, each in vars(value).items()}
    if isinstance(value, list | tuple | deque):
        return [inside(each) for each in value]
    return {key: inside(each) for key, each in value.items()} if isinstance(value, dict) else value


def counted(statistics: Statistics) -> list[Any]:
    workers = {worker: (rate.batches, rate.samples) for worker, rate in statistics.workers.items()}
    names = ("staleness", "token_staleness", "samples_behind", "gradients", "samples_at", "pulled")
    return [workers, *(getattr(statistics, name) for name in names)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mode=st.sampled_from(WITHOUT_REPLICAS), seed=st.integers(0, 1 << 30), events=st.integers(0, 150))
def test_the_log_alone_gives_the_state_that_was(tmp_path: Path, mode: str, seed: int, events: int) -> None:
    rng, run = random.Random(seed), Run(tmp_path / "events.log", mode, 150)
    for _ in range(events):
        run.act(rng)
    found, training = run.again(), run.training
    assert not found.logged.due
    assert inside(found.phase.policy) == inside(run.policy)
    assert counted(found.statistics) == counted(run.statistics)
    assert inside(found.phase.finished) == inside(run.phase.finished)
    assert found.phase.stopped == run.phase.stopped == (training.stopped is not None)
    orders = [training.order_message(each) for each in found.commands if isinstance(each, ApplyStep)]
    assert orders == run.orders()
    assert inside(found.phase.slices)["_rows"] == inside(run.phase.slices)["_rows"]
    assert (found.applied, found.missed) == (run.applied, run.missed)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), mode=st.sampled_from(WITHOUT_REPLICAS), seed=st.integers(0, 1 << 30), events=st.integers(1, 150))
def test_cut_off_anywhere_it_goes_on_to_an_end_that_adds_up(
    tmp_path: Path, data: Any, mode: str, seed: int, events: int
) -> None:
    """In the middle of a record, too; the log is then that of one undivided phase."""
    rng, run = random.Random(seed), Run(tmp_path / "events.log", mode, 150)
    start = run.log.bytes
    for _ in range(events):
        run.act(rng)
    run.log.flush()
    whole = run.path.read_bytes()
    cut = data.draw(st.integers(start, len(whole)))
    path = tmp_path / "cut.log"
    path.write_bytes(whole[:cut])
    records, end = event_log.tail(path, start)
    assert end <= cut

    again = Run(path, mode, 150, EventLog(path, {}, after=end, ahead=True))
    statistics = again.statistics
    logged = LoggedPhase(again.phase)
    orders = [again.training.order_message(each) for each in logged.feed_tail(records) if isinstance(each, ApplyStep)]
    assert orders == run.orders()[: len(orders)]
    again.training.resume_after_failover(logged.due, set())
    for worker in set(range(WORKERS)) - again.policy.live:
        again.training.on_worker_joined(worker)
    again.finish(rng)

    ledger = again.policy.ledger
    assert ledger.read == again.policy.phase.samples and again.phase.finished.ledger.finished == ledger.finished
    settled = Counter[int]()
    records = list(event_log.read(path))[1:]
    for record in records:
        if isinstance(record, OrderRecord):
            settled.update(batch for batch, _ in record.members)
        elif isinstance(record, DropRecord):
            settled[record.batch] += 1
    assert sorted(settled) == list(range(again.policy.phase.batches)) and set(settled.values()) <= {1}
    whole = again.again(path)
    assert inside(whole.phase.policy.ledger) == inside(ledger)
    assert counted(whole.statistics)[1:] == counted(statistics)[1:]
    whole.logged.close()


def test_what_is_given_up_at_a_switch_is_decayed_here_as_there(tmp_path: Path) -> None:
    rng, run = random.Random(1), Run(tmp_path / "events.log", "gba", 150)
    for _ in range(40):
        run.act(rng, disturb=False)
    run.training.stop()
    assert run.policy.leases and run.training.forgo()
    found = run.again()
    assert inside(found.phase.policy) == inside(run.policy) and found.phase.stopped
    assert inside(found.phase.finished) == inside(run.phase.finished)


@pytest.mark.parametrize("mode", WITHOUT_REPLICAS)
def test_what_was_decided_and_not_written_is_carried_out(tmp_path: Path, mode: str) -> None:
    """The log ends behind the announcement that closes a step."""
    rng, run = random.Random(2), Run(tmp_path / "events.log", mode, 150)
    while not run.orders():
        run.act(rng, disturb=False)
    records = list(event_log.read(run.path))
    place = next(n for n, record in enumerate(records) if isinstance(record, OrderRecord))
    again = Run(tmp_path / "again.log", mode, 150)
    logged = LoggedPhase(again.phase)
    assert not [each for each in logged.feed_tail(records[1:place]) if isinstance(each, ApplyStep)]
    assert len(logged.due) == 1
    again.training.resume_after_failover(logged.due, set())
    assert again.orders() == run.orders()
    assert list(event_log.read(again.path))[1:] == [records[place]]


def test_who_has_not_heard_of_the_phase_gets_nothing(tmp_path: Path) -> None:
    """It asks early: what is handed out before it knows the phase it could not understand."""
    again = Run(tmp_path / "events.log", "gba", 150)
    again.training.resume_after_failover((), {0, 1})
    again.training.waiting.extend((0, 1))
    again.training.serve()
    assert not again.training.take(0) and again.training.take(2)
    again.training.waiting.append(0)
    again.training.resume_hand_out()
    leased = {worker: len(held) for worker, held in again.policy.leases.items()}
    assert not again.training.waiting and leased == {0: 2, 1: 1, 2: 1}


def test_the_driver_of_these_tests_disturbs(tmp_path: Path) -> None:
    """Deaths with batches that are handed out again, drops, parts that are missed: else nothing above would be seen."""
    found = Counter[type]()
    for seed in range(12):
        rng, run = random.Random(seed), Run(tmp_path / f"{seed}.log", "hop_bw", 150)
        for _ in range(150):
            run.act(rng)
        records = list(event_log.read(run.path))
        found.update(map(type, records))
        found[AsyncPolicy] += run.reissued
        found[StagedSlices] += len(run.missed)
    kinds = (LeftRecord, DropRecord, GrantRecord, OrderRecord, InfoRecord, AsyncPolicy, StagedSlices)
    assert min(found[kind] for kind in kinds) > 2
    assert not found[ForgoRecord]
