"""Membership of a run as the coordinator sees it; heartbeats on a clock that a test turns."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gbactl.coordinator.membership import Heartbeat, Membership
from gbactl.errors import WireError
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.messages import Hello, Ping, Pong, ShardAddresses, Stop


class Recorder:
    """A channel that keeps what was sent."""

    def __init__(self, role: str, index: int, epoch: int = 0) -> None:
        self.peer = Peer(role, index, epoch)
        self.sent: list[Any] = []

    def send(self, message: Any, payload: Any = None) -> None:
        self.sent.append(message)

    def reserve(self, nbytes: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


def come(members: Membership, role: str, index: int, epoch: int = 0) -> Recorder:
    channel = Recorder(role, index, epoch)
    members.hello(channel, Hello(role, index, f"127.0.0.1:{7000 + index}"))
    return channel


def test_workers_learn_the_servers_in_order_of_shard_once_all_are_known() -> None:
    members = Membership(workers=2, servers=2)
    early = come(members, "worker", 1)
    come(members, "server", 1)
    assert early.sent == []
    come(members, "server", 0)
    late = come(members, "worker", 0)
    setup = ShardAddresses(["127.0.0.1:7000", "127.0.0.1:7001"])
    assert early.sent == [setup] and late.sent == [setup]


def test_it_is_complete_when_everybody_is_ready_and_names_who_is_not() -> None:
    members = Membership(workers=2, servers=1)
    members.ready |= {("worker", 1)}
    assert not members.complete()
    assert members.missing() == ["W0", "S0"]
    members.ready |= {("worker", 0), ("server", 0)}
    assert members.complete() and members.missing() == []


def test_telling_a_role() -> None:
    members = Membership(workers=2, servers=1)
    server, second, first = (come(members, *who) for who in [("server", 0), ("worker", 1), ("worker", 0)])
    members.send_to_all("worker", Stop())
    assert [channel.sent[-1:] for channel in (first, second)] == [[Stop()]] * 2
    assert server.sent == []
    assert list(members.channels_of("server")) == [0]


@pytest.mark.parametrize(
    ("role", "index"), [("worker", 2), ("worker", -1), ("server", 1), ("coordinator", 0), ("x", 0)]
)
def test_a_node_that_does_not_belong_to_the_run_is_refused(role: str, index: int) -> None:
    members = Membership(workers=2, servers=1)
    with pytest.raises(WireError, match="does not belong to this run"):
        members.hello(Recorder("worker", 0), Hello(role, index, ""))
    assert not members.channels and not members.addresses


def test_a_node_comes_once_under_its_own_name() -> None:
    members = Membership(workers=2, servers=1)
    come(members, "worker", 0)
    with pytest.raises(WireError):
        come(members, "worker", 0)
    with pytest.raises(WireError):
        members.hello(Recorder("worker", 1), Hello("server", 0, ""))


def test_a_lost_node_is_forgotten_and_a_stranger_is_not_missed() -> None:
    members = Membership(workers=1, servers=1)
    worker = come(members, "worker", 0)
    members.authentic(worker, "worker", 0)
    assert members.forget(worker)
    assert not members.forget(worker)
    assert members.channels_of("worker") == {}
    with pytest.raises(WireError, match="W0 speaks for worker 0"):
        members.authentic(worker, "worker", 0)


def test_who_takes_a_dead_workers_place_waits_until_it_is_admitted() -> None:
    members = Membership(workers=1, servers=1)
    come(members, "server", 0)
    first = come(members, "worker", 0)
    members.settled = True
    with pytest.raises(WireError):
        come(members, "worker", 0, 1)  # the place is taken
    members.forget(first)
    with pytest.raises(WireError):
        come(members, "worker", 0)  # one of before
    successor = come(members, "worker", 0, 1)
    assert isinstance(successor.sent[0], ShardAddresses) and members.channels_of("worker") == {}
    with pytest.raises(WireError):
        come(members, "worker", 0, 1)  # of the same epoch
    assert members.admit("worker", 0).channel is successor and members.channels_of("worker") == {0: successor}
    assert not members.successors


def test_a_server_in_the_place_of_one_that_is_gone() -> None:
    members = Membership(workers=2, servers=2)
    first, other = come(members, "server", 0), come(members, "server", 1)
    worker, gone = come(members, "worker", 0), come(members, "worker", 1)
    members.settled = True
    with pytest.raises(WireError, match="S0 does not belong"):
        come(members, "server", 0, epoch=1)  # nobody is gone
    assert members.forget(first) and members.forget(gone)
    with pytest.raises(WireError, match="S0 does not belong"):
        come(members, "server", 0)  # the one that is gone
    joining = come(members, "worker", 1, epoch=1)
    assert joining.sent == [], "not before all servers are there"
    second = Recorder("server", 0, 1)
    members.hello(second, Hello("server", 0, "127.0.0.1:8000"))
    assert members.successor(second, "server", 0) and not members.successor(other, "server", 1)
    assert members.channels_of("server") == {1: other}
    members.admit("server", 0)
    members.authentic(second, "server", 0)
    assert joining.sent == [ShardAddresses(["127.0.0.1:8000", "127.0.0.1:7001"])] and len(worker.sent) == 1
    members.tell_successors(Stop())
    assert joining.sent[-1] == Stop()


def test_a_server_that_is_gone_before_it_has_come() -> None:
    members = Membership(workers=1, servers=1)
    first = come(members, "server", 0)
    come(members, "worker", 0)
    members.settled = True
    members.forget(first)
    second = come(members, "server", 0, epoch=1)
    assert members.forget_successor(second) and not members.forget_successor(second)
    third = come(members, "server", 0, epoch=2)
    members.admit("server", 0)
    assert members.channels_of("server") == {0: third}


class Workers:
    """Two workers; those in `deaf` answer nothing. `sent` counts what they were asked."""

    def __init__(self, patience: float = 4.0) -> None:
        self.now, self.sent, self.deaf = 0.0, 0, set[int]()
        self.beat = Heartbeat(patience, lambda: self.now)
        self.channels = {index: cast(Channel, Ear(self, index)) for index in range(2)}

    def passes(self, seconds: float, step: float = 0.25) -> list[int]:
        """Look every `step` seconds; who was missed."""
        gone: list[int] = []
        for _ in range(round(seconds / step)):
            self.now += step
            for worker in self.beat.silent(self.channels) if self.beat.due else ():
                gone.append(worker)
                del self.channels[worker]
        return gone


class Ear:
    """A worker's channel."""

    def __init__(self, workers: Workers, index: int) -> None:
        self.workers, self.index = workers, index

    def send(self, message: Any) -> None:
        assert isinstance(message, Ping)
        self.workers.sent += 1
        if self.index not in self.workers.deaf:
            self.workers.beat.on_answer(Pong(self.index, message.beat))


def test_who_answers_lives() -> None:
    workers = Workers()
    assert workers.passes(60.0) == []
    assert workers.sent == 2 * 60


def test_who_is_silent_for_too_long_is_missed_once() -> None:
    workers = Workers()
    workers.passes(10.0)
    workers.deaf = {1}
    assert workers.passes(2.75) == []  # the last answer was up to a beat before
    assert workers.passes(2.0) == [1]
    assert workers.passes(20.0) == []


def test_a_coordinator_that_was_away_does_not_take_everybody_for_dead() -> None:
    workers = Workers()
    workers.passes(10.0)
    workers.deaf = {0, 1}  # answers are there, but nobody has read them
    assert workers.passes(30.0, step=30.0) == []
    workers.deaf = set()
    assert workers.passes(5.0) == []


def test_a_successor_begins_anew() -> None:
    workers = Workers()
    workers.passes(3.0)
    workers.deaf = {1}
    workers.passes(3.0)
    del workers.channels[1]
    workers.passes(0.5)
    workers.deaf = set()
    workers.channels[1] = cast(Channel, Ear(workers, 1))
    assert workers.passes(10.0) == []


def test_a_short_patience_has_a_short_beat() -> None:
    workers = Workers(patience=0.4)
    workers.deaf = {0}
    assert workers.passes(0.6, step=0.05) == [0]
