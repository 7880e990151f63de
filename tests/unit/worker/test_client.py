"""A worker's side of the wire, without servers: what comes in which order, and what is forgotten."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gbactl.errors import PeerGoneError
from gbactl.wire.auth import Peer
from gbactl.wire.messages import (
    Abandon,
    BeginPhase,
    Granted,
    Inspect,
    Inspected,
    PrefetchHint,
    ShardRelocated,
    Stop,
    TakeBatch,
    decode,
)
from gbactl.wire.node_measurements import BATCH, NodeTimes
from gbactl.worker import client
from gbactl.worker.client import BatchSource, WorkerClient
from gbactl.worker.worker_core import BatchInProgress
from tests.support.in_memory import MemoryChannel, MemoryHub
from tests.support.processes import wait_for


class Nothing:
    """Batches of no rows."""

    def begin(self, phase: BeginPhase) -> None:
        pass

    def __init__(self) -> None:
        self.prepared: list[Any] = []

    def prepare(self, grant: Granted | PrefetchHint) -> tuple[Any, Any]:
        self.prepared.append(grant)
        return None, SimpleNamespace(shares=list)


class Setting:
    """A worker and its coordinator, who has said some things before the worker listens."""

    def __init__(self, *messages: Any) -> None:
        network: dict[str, MemoryHub] = {}
        self.coordinator = MemoryHub(network, Peer("coordinator", 0))
        hub = MemoryHub(network, Peer("worker", 0))
        channel = hub.connect("C")
        assert isinstance(channel.other, MemoryChannel)
        for message in (phase(1), *messages):
            channel.other.send(message)
        self.source = Nothing()
        self.client = WorkerClient(hub, channel, [], 0, cast(BatchSource, self.source))
        self.client.start(0)
        self.worked: list[Any] = []

    def _answer(self, question: Inspect) -> Inspected:
        self.worked.append(question.what)
        return Inspected("W0", "", "", {}, {})

    def takes(self) -> int:
        return sum(isinstance(decode(frame), TakeBatch) for _, frame in self.coordinator.poll(0))


def phase(number: int) -> BeginPhase:
    return BeginPhase(number, True, "gba", 0, 0, 100, 10, 0, True, True)


def grant(batch: int, number: int = 1) -> Granted:
    return Granted(number, batch, 0, 0, 0, 0, 1.0, 1.0)


def read_all(at: Setting) -> None:
    at.client._thread.join(10)


def test_a_question_waits_for_the_batches_granted_before_it() -> None:
    """One of no samples, which only joins an all-reduce, is waited for by nobody else."""
    at = Setting(grant(0), grant(1), Inspect("dense"), grant(2), Inspect("checksum"), grant(3))
    found = []
    for _ in range(4):
        item = at.client.next(at._answer)
        assert isinstance(item, BatchInProgress)
        found.append(item.grant.batch)
        at.worked.append(item.grant.batch)
    assert found == [0, 1, 2, 3]
    assert at.worked == [0, 1, "dense", 2, "checksum", 3]


def test_a_batch_to_come_is_prepared_once_and_is_not_pulled_nor_computed_before_it_is_granted() -> None:
    early, other = PrefetchHint(1, 4, 0, 10), PrefetchHint(1, 9, 0, 10)
    at = Setting(early, Stop())
    read_all(at)
    assert at.source.prepared == [early] and not at.client.core.queue and not at.client.core.pulls
    at = Setting(early, grant(4), grant(5), Stop())
    read_all(at)
    assert at.source.prepared == [early, grant(5)]
    assert [item.grant for item in at.client.core.queue] == [grant(4), grant(5)]
    at = Setting(early, other, grant(4), grant(9, number=2), Stop())
    read_all(at)
    assert at.source.prepared == [early, other, grant(4), grant(9, number=2)], "the last one told of, of that phase"


def test_a_batch_to_come_is_prepared_when_the_rows_of_the_one_at_hand_are_there() -> None:
    early = PrefetchHint(1, 4, 0, 10)
    at = Setting(grant(0), early, Stop())
    read_all(at)
    assert at.source.prepared == [grant(0)]
    at.client.core.pulls.clear()
    at.client._prepare()
    assert at.source.prepared == [grant(0), early]


@pytest.mark.parametrize("of", [1, 2])
def test_what_nobody_waits_for_any_more_is_forgotten_and_asked_for_anew(of: int) -> None:
    """The batches of the phase that was given up, of no other."""
    at = Setting(grant(0), grant(1), Abandon(of), Inspect("dense"), Stop())
    read_all(at)
    assert at.takes() == 1 + (2 if of == 1 else 0)
    assert [item.grant.batch for item in at.client.core.queue] == ([] if of == 1 else [0, 1])
    assert at.client.core.must_answer() == (of == 1)


def test_a_wait_counts_from_the_begin_of_training_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the one for the other processes to start, nor for an evaluation's end; but that between two phases."""
    now = [0.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    at = Setting(phase(2)._replace(training=False))
    at.client.waits = NodeTimes(clock=lambda: now[0])
    coordinator = next(iter(at.coordinator.poll(1)))[0]

    def go_on(number: int) -> None:
        wait_for(lambda: at.client._cv._waiters)  # type: ignore[attr-defined]
        now[0] += 5.0
        coordinator.send(phase(number))
        coordinator.send(grant(0, number))
        wait_for(lambda: at.client.core.queue)
        at.client.wake()  # a batch without servers is complete without a message

    for number, waited in ((3, 0.0), (4, 5.0)):
        threading.Thread(target=go_on, args=[number]).start()
        assert at.client.next(at._answer) is not None
        assert at.client.waits.take()[BATCH] == waited


@pytest.mark.parametrize("hangs", [False, True])
def test_a_successor_that_cannot_be_reached_is_not_awaited_for_ever(hangs: bool) -> None:
    """The coordinator and the other workers may reach it, so that nobody else ends this worker."""
    network: dict[str, MemoryHub] = {}
    server, hub = MemoryHub(network, Peer("server", 0)), MemoryHub(network, Peer("worker", 0))
    MemoryHub(network, Peer("coordinator", 0))
    channel = hub.connect("C")
    worker = WorkerClient(hub, channel, [hub.connect("S0")], 0, cast(BatchSource, Nothing()))
    worker.dial, worker.patience = lambda address, peer: hub.connect(address), 0.1
    worker.start(0)
    if not hangs:
        server.close()
    assert channel.other is not None
    channel.other.send(ShardRelocated(0, "nowhere", 1, []))
    with pytest.raises(PeerGoneError, match=r"W0 lost its connection to S0\."):
        worker.pause(10)


def test_a_pause_ends_with_the_run_or_its_connection() -> None:
    """However long it is: a stopped worker is slowed by a multiple of the time for which it stood still."""
    at = Setting()
    assert not at.client.pause(0.01)
    next(iter(at.coordinator.poll(1)))[0].send(Stop())
    assert at.client.pause(60)
    lost = Setting()
    next(iter(lost.coordinator.poll(1)))[0].close()
    with pytest.raises(PeerGoneError, match="W0 lost its connection to the coordinator"):
        lost.client.pause(60)
