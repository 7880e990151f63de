"""A server on queues in memory: what it serves when, what it refuses, and that it lives on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.errors import WireError
from gbactl.server.shard_server import Server
from gbactl.store.dense import DenseSpec
from gbactl.store.gradient_slice import StepOrder
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec
from gbactl.wire import frames
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    AdoptVersion,
    Barrier,
    BeginPhase,
    DropSlice,
    Fence,
    Fenced,
    Inspect,
    Inspected,
    OrderStep,
    Pull,
    Push,
    Reached,
    Rows,
    Staged,
    StepChecksum,
    Stop,
    Sum,
    Summand,
    TakeBatch,
    Takeover,
    unpack,
)
from tests.support.checkpoint_files import unused_saver
from tests.support.in_memory import MemoryChannel, MemoryHub

ROWS, WIDTH, DENSE = 10, 3, 5
TOLD = (0.5, 0.1, 1.0, 0, 0)  # loss, seconds, slowdown, versions
SPEC = ShardSpec(
    0, 1, ROWS, WIDTH, row_optimizer=OptimizerSpec("sgd", 1.0), dense=DenseSpec(DENSE, 0),
    dense_optimizer=OptimizerSpec("sgd", 1.0),
)  # fmt: skip


class Setting:
    """One server, its coordinator and two workers; `served` lets the server work off its inbox."""

    def __init__(self) -> None:
        network: dict[str, MemoryHub] = {}
        self.hub = MemoryHub(network, Peer("server", 0))
        self.c_hub = MemoryHub(network, Peer("coordinator", 0))
        self.w_hubs = [MemoryHub(network, Peer("worker", index)) for index in range(2)]
        coordinator = self.hub.connect("C")
        self.coordinator: Channel = coordinator.other
        self.workers = [hub.connect("S0") for hub in self.w_hubs]
        self.shard = Shard(SPEC)
        self.server = Server(self.hub, coordinator, self.shard, 0, unused_saver(self.shard))
        self.coordinator.send(phase(1))

    def served(self) -> None:
        for channel, frame in self.hub.poll(0):
            self.server.handle(channel, frame)

    def told(self, hub: MemoryHub) -> list[Any]:
        """The messages waiting at a node, without payloads; CLOSED as it is."""
        self.served()
        return [f.kind if f.kind == frames.CLOSED else unpack(f.kind, f.descriptor) for _, f in hub.poll(0)]

    def push(self, batch: int, index: list[int], value: float = 1.0, worker: int = 0, number: int = 1) -> None:
        rows = np.array(index, np.int32)
        grads = np.full(len(index) * WIDTH + DENSE, value, np.float32)
        payload = np.concatenate([rows.view(np.uint8), grads.view(np.uint8)])
        self.workers[worker].send(Push(number, batch, len(index), DENSE, *TOLD), payload)

    def pull(self, ticket: int, index: list[int], after: int = 0, have: int = -1, worker: int = 0) -> None:
        payload = np.array(index, np.int32).view(np.uint8)
        self.workers[worker].send(Pull(ticket, 0, len(index), True, after, have), payload)

    def order(self, step: int, *batches: int, checksum: bool = False) -> None:
        total = float(len(batches))
        order = StepOrder(step, tuple((batch, 1.0) for batch in batches), total, total)
        self.coordinator.send(OrderStep(1, order, checksum))

    def tickets(self, worker: int = 0) -> list[tuple[int, int]]:
        return [(m.request, m.version) for m in self.told(self.w_hubs[worker]) if isinstance(m, Rows)]


def phase(number: int) -> BeginPhase:
    return BeginPhase(number, True, "gba", 0, 0, 100, 10, 0, True, True)


def staged(number: int, batch: int, worker: int = 0, rows: int = 1) -> Staged:
    return Staged(0, worker, number, batch, *TOLD, rows)


@pytest.fixture
def at() -> Setting:
    return Setting()


def answer(at: Setting) -> tuple[Rows, np.ndarray]:
    at.served()
    [(_, frame)] = at.w_hubs[0].poll(0)
    return unpack(frame.kind, frame.descriptor), frame.payload.view(np.float32)


def test_a_pull_is_answered_with_rows_and_the_dense_slice(at: Setting) -> None:
    at.pull(5, [3, 0, 3])
    rows, values = answer(at)
    assert rows == Rows(5, 0, 3, DENSE)
    assert np.array_equal(values[DENSE:].reshape(3, WIDTH), at.shard.table[[3, 0, 3]])
    assert np.array_equal(values[:DENSE], np.zeros(DENSE))


def test_a_dense_slice_that_the_worker_has_is_left_out(at: Setting) -> None:
    at.pull(1, [0], have=0)
    assert answer(at)[0] == Rows(1, 0, 1, 0)
    at.push(0, [1])
    at.order(0, 0)
    at.told(at.w_hubs[0])
    at.pull(2, [0], have=0)
    assert answer(at)[0] == Rows(2, 1, 1, DENSE)


def test_a_pushed_gradient_counts_when_it_is_ordered(at: Setting) -> None:
    before = at.shard.table.copy()
    at.push(0, [2, 4], 0.5)
    assert at.told(at.c_hub) == [staged(1, 0, rows=2)]
    assert at.told(at.w_hubs[0]) == []
    assert np.array_equal(at.shard.table, before)
    at.order(0, 0)
    at.served()
    assert at.shard.version == 1
    assert np.array_equal(at.shard.table[[2, 4]], before[[2, 4]] - np.float32(0.5))
    assert np.array_equal(at.shard.table[[0, 1, 3]], before[[0, 1, 3]])


def test_a_gradient_that_comes_twice_counts_once(at: Setting) -> None:
    before = at.shard.table.copy()
    for _ in range(2):
        at.push(0, [2], 0.5)
    at.order(0, 0)
    at.push(0, [2], 0.5)
    assert at.told(at.c_hub) == [staged(1, 0)] * 3, "the coordinator hears of it all the same"
    assert at.shard.staged == ()
    assert np.array_equal(at.shard.table[2], before[2] - np.float32(0.5))
    assert not at.server.refused


def test_a_part_of_an_earlier_phase_is_ignored_and_one_of_a_later_phase_waits_for_it(at: Setting) -> None:
    """A worker may reach a server that has taken a place before what the coordinator had sent that server."""
    at.push(0, [2], number=0)
    at.push(1, [2], number=2)
    assert at.told(at.c_hub) == [staged(0, 0)], "one of an earlier phase is told of: its worker is free now"
    assert at.shard.staged == ()
    at.push(3, [2], number=3, worker=1)
    at.coordinator.send(phase(2))
    assert at.told(at.c_hub) == [staged(2, 1)] and at.shard.staged == (1,)
    at.coordinator.send(phase(3))
    assert at.told(at.c_hub) == [staged(3, 3, worker=1)] and at.shard.staged == (3,)


def test_a_dropped_part_is_forgotten_and_may_come_again(at: Setting) -> None:
    at.push(0, [2])
    at.coordinator.send(DropSlice(0, 0))
    at.served()
    assert at.shard.staged == (0,), "a drop of another phase"
    at.coordinator.send(DropSlice(1, 0))
    at.served()
    assert at.shard.staged == ()
    at.push(0, [3], worker=1)
    assert at.told(at.c_hub)[-1] == staged(1, 0, worker=1)


def test_a_checked_step_tells_a_digest_of_what_it_touched(at: Setting) -> None:
    twin = Setting()
    for setting, value in ((at, 0.5), (twin, 0.25)):
        setting.push(0, [2, 4], value)
        setting.order(0, 0, checksum=True)
    found = [[m for m in setting.told(setting.c_hub) if isinstance(m, StepChecksum)] for setting in (at, twin)]
    assert [m.step for m in found[0]] == [0]
    assert found[0][0].digest == at.shard.step_digest(np.array([2, 4], np.int32))
    assert found[0] != found[1]


def test_batch_numbers_start_again_with_a_phase(at: Setting) -> None:
    at.push(0, [2])
    at.order(0, 0)
    at.coordinator.send(phase(2))
    at.push(0, [2], number=2)
    at.served()
    assert at.shard.staged == (0,)


def test_pulls_wait_for_their_version_and_are_served_in_its_order(at: Setting) -> None:
    at.pull(1, [0], after=2)
    at.pull(2, [0], after=1, worker=1)
    at.pull(3, [0], after=2, worker=1)
    at.pull(4, [0])
    assert at.tickets(0) == [(4, 0)]
    for batch in range(2):
        at.push(batch, [1])
    at.order(0, 0)
    assert at.tickets(1) == [(2, 1)]
    assert at.tickets(0) == []
    at.order(1, 1)
    assert at.tickets(0) == [(1, 2)]
    assert at.tickets(1) == [(3, 2)]


def test_who_asks_before_a_server_has_taken_a_place_is_answered_then(at: Setting) -> None:
    """Rows of a version that it does not have yet, and a sum without the part of a rank that died."""
    at.pull(1, [0], after=5)
    part = Summand(0, "d", 1, 1, 0, 2, 2, [0], 5)
    at.workers[1].send(part, np.ones(1, np.float32).view(np.uint8))
    at.served()
    at.coordinator.send(AdoptVersion(5, [], False))
    assert at.tickets() == [(1, 5)]
    assert Sum(0, "d", 1) in at.told(at.w_hubs[1])


def test_a_barrier_is_answered_when_everything_ordered_is_applied(at: Setting) -> None:
    at.coordinator.send(Barrier(1))
    at.coordinator.send(Barrier(0))
    assert at.told(at.c_hub) == [Reached(0, 0)]
    at.push(0, [1])
    at.order(0, 0)
    assert at.told(at.c_hub)[-1] == Reached(0, 1)


def test_inspection_tells_checksum_memory_and_refusals(at: Setting) -> None:
    at.workers[1].send(TakeBatch(0))
    at.hub.refused["somebody without the key"] = 2
    at.served()
    at.coordinator.send(Inspect("checksum"))
    [inspected] = at.told(at.c_hub)
    assert isinstance(inspected, Inspected)
    assert (inspected.node, inspected.checksum) == ("S0", at.shard.checksum())
    assert inspected.counters == {} and inspected.refused == {"WireError": 1, "somebody without the key": 2}
    assert inspected.bytes["table"] == 4 * ROWS * WIDTH


def test_it_stops_when_told_and_when_the_coordinator_is_gone(at: Setting) -> None:
    at.coordinator.send(Stop())
    at.served()
    assert at.server.stopped
    other = Setting()
    other.coordinator.close()
    other.served()
    assert other.server.stopped


def test_a_worker_that_goes_does_not_stop_it(at: Setting) -> None:
    at.pull(1, [0], after=1)
    at.workers[0].close()
    at.push(0, [1], worker=1)
    at.order(0, 0)
    at.served()
    assert not at.server.stopped and at.shard.version == 1


def bad_pull(message: Pull, payload: np.ndarray) -> tuple[Any, np.ndarray]:
    return message, payload


def indices(*values: int) -> np.ndarray:
    return np.array(values, np.int32).view(np.uint8)


def floats(count: int) -> np.ndarray:
    return np.zeros(count, np.float32).view(np.uint8)


REFUSED = {
    "a pull of a row that is not there": (Pull(1, 0, 1, False, 0, -1), indices(ROWS)),
    "a pull of a negative row": (Pull(1, 0, 1, False, 0, -1), indices(-1)),
    "a deferred pull of a row that is not there": (Pull(1, 0, 1, False, 7, -1), indices(ROWS)),
    "a pull of fewer rows than it says": (Pull(1, 0, 2, False, 0, -1), indices(1)),
    "a pull of more rows than it says": (Pull(1, 0, 0, False, 0, -1), indices(1)),
    "a pull of a negative number of rows": (Pull(1, 0, -1, False, 0, -1), indices()),
    "a pull of an odd number of bytes": (Pull(1, 0, 1, False, 0, -1), indices(1, 1)[:5]),
    "a pull of absurdly many rows": (Pull(1, 0, 1 << 61, False, 0, -1), indices(1)),
    "a push of a row that is not there": (
        Push(1, 0, 1, DENSE, *TOLD),
        np.concatenate([indices(ROWS), floats(WIDTH + DENSE)]),
    ),
    "a push that is too short": (Push(1, 0, 1, DENSE, *TOLD), np.concatenate([indices(1), floats(WIDTH)])),
    "a push without payload": (Push(1, 0, 1, DENSE, *TOLD), floats(0)),
    "a push of negative counts": (Push(1, 0, -1, 4, *TOLD), floats(0)),
    "a push of a dense part of another size": (
        Push(1, 0, 1, 1, *TOLD),
        np.concatenate([indices(1), floats(WIDTH + 1)]),
    ),
    "an order from a worker": (OrderStep(1, StepOrder(0, (), 1.0, 1.0), False), floats(0)),
    "a barrier from a worker": (Barrier(0), floats(0)),
    "a stop from a worker": (Stop(), floats(0)),
    "a phase from a worker": (phase(9), floats(0)),
    "a message that is not for servers": (TakeBatch(0), floats(0)),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_message_costs_a_worker_its_connection_and_the_others_nothing(at: Setting, case: str) -> None:
    before = at.shard.checksum()
    at.workers[0].send(*REFUSED[case])
    assert at.told(at.w_hubs[0]) == [frames.CLOSED]
    assert sum(at.server.refused.values()) == 1
    assert at.shard.checksum() == before and at.shard.staged == ()
    at.pull(9, [1], worker=1)
    assert at.tickets(1) == [(9, 0)]
    at.push(0, [1], worker=1)
    at.order(0, 0)
    at.served()
    assert at.shard.version == 1 and not at.server.stopped


@pytest.mark.parametrize("descriptor", [b"", b"\xc1", b"\x95\x01\x02\x03\x04\x05"])
def test_a_message_that_cannot_be_read(at: Setting, descriptor: bytes) -> None:
    near: MemoryChannel = at.workers[0]
    assert near.other is not None
    at.hub.inbox.put((near.other, Frame(15, descriptor, indices(1))))
    assert at.told(at.w_hubs[0]) == [frames.CLOSED]
    assert at.server.refused == {"WireError": 1}


@pytest.mark.parametrize(
    "order",
    [
        OrderStep(1, StepOrder(0, ((7, 1.0),), 1.0, 1.0), False),
        OrderStep(1, StepOrder(5, (), 1.0, 1.0), False),
        OrderStep(1, StepOrder(0, ((1, 1.0), (1, 1.0)), 1.0, 1.0), False),
    ],
)
def test_an_order_that_cannot_be_followed_ends_the_server_with_a_sentence(at: Setting, order: OrderStep) -> None:
    at.coordinator.send(order)
    with pytest.raises(WireError, match="S0 cannot follow the coordinator"):
        at.served()


def test_nothing_of_a_fenced_worker_counts_and_its_batch_may_come_from_another() -> None:
    at = Setting()
    at.push(0, [1, 2], worker=0)
    at.push(5, [3], worker=0)
    at.pull(9, [4], after=1, worker=0)
    at.told(at.c_hub)
    at.coordinator.send(Fence(0, 1, [0]))
    assert at.told(at.c_hub) == [Fenced(0, 0)]
    assert at.shard.staged == (5,)  # announced before it died: it stays
    at.push(0, [7], worker=0)  # was on its way
    at.pull(10, [4], worker=0)
    assert at.told(at.c_hub) == [] and at.shard.staged == (5,)
    at.push(0, [1, 2], worker=1)
    assert at.told(at.c_hub) == [staged(1, 0, worker=1, rows=2)]
    assert at.told(at.w_hubs[0]) == [frames.CLOSED]  # if it lives, it learns that it is out
    assert at.server.fenced_frames == 2
    successor = MemoryHub(at.w_hubs[0].network, Peer("worker", 0, 1))
    at.workers[0] = successor.connect("S0")
    at.push(1, [4], worker=0)
    at.pull(11, [4], after=1, worker=0)
    assert at.told(at.c_hub) == [staged(1, 1)]
    at.coordinator.send(Fence(0, 1, []))  # once more, of its predecessor: what it waits for stays
    assert at.told(at.c_hub) == [Fenced(0, 0)]
    at.order(0, 1)
    assert [(m.request, m.version) for m in at.told(successor) if isinstance(m, Rows)] == [(11, 1)]


def reported(at: Setting, term: int) -> list[Staged]:
    """What a new coordinator is told about slices."""
    at.told(at.c_hub)
    at.coordinator.send(Takeover(term))
    return [message for message in at.told(at.c_hub) if isinstance(message, Staged)]


def test_a_new_coordinator_is_told_of_slices_that_wait_in_the_order_of_their_arrival(at: Setting) -> None:
    for batch in (5, 2, 9):
        at.push(batch, [1])
    at.order(0, 2)
    assert reported(at, 1) == [staged(1, 5), staged(1, 9)]
    at.coordinator.send(Fence(0, 1, [9]))
    at.push(9, [1], worker=1)
    assert reported(at, 2) == [staged(1, 5), staged(1, 9, worker=1)], "another worker's, since its own died"
    at.coordinator.send(phase(2))
    assert reported(at, 3) == []


def test_what_was_applied_or_dropped_is_kept_no_longer(at: Setting) -> None:
    for batch in range(4):
        at.push(batch, [1])
    at.order(0, 0, 1)
    at.coordinator.send(DropSlice(1, 2))
    at.served()
    assert at.shard.reports == [staged(1, 3)]


def test_an_empty_slice_in_the_place_of_a_lost_one_is_not_told_of(at: Setting) -> None:
    at.coordinator.send(AdoptVersion(0, [4], False))
    at.push(5, [1])
    assert at.shard.staged == () and reported(at, 1) == [staged(1, 5)] and at.shard.staged == (4, 5)
