"""Channels on a clock: latency, bandwidth, queues at interfaces, and order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.config.groups import CostConfig
from gbactl.errors import ClusterError, WireError
from gbactl.kernels.half_precision import CODECS
from gbactl.simulation.coordinator import VirtualHub
from gbactl.simulation.cost_model import MESSAGE_BYTES, CostModel
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.network import Host, HostLocalLink, Network
from gbactl.wire.auth import Peer
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.messages import EasgdUpdate, PutDense, TakeBatch, decode

COST = CostConfig(latency_us=1000.0, bandwidth_gbit=16e-3, local_latency_us=10.0, local_bandwidth_gbit=16.0)
BIG = 2000 - MESSAGE_BYTES  # with its frame more than a packet: a millisecond on the wire


class Sink:
    """A node that notes what arrives and when."""

    def __init__(self, index: int, host: Host, events: EventQueue) -> None:
        self.peer, self.host, self.events = Peer("worker", index), host, events
        self.got: list[tuple[int, float]] = []
        self.frames: list[Frame] = []

    def receive(self, channel: Any, frame: Frame) -> None:
        self.frames.append(frame)
        if frame.kind != CLOSED:
            self.got.append((getattr(decode(frame), "worker", -1), round(self.events.now, 9)))


class Net:
    """Nodes on hosts by number."""

    def __init__(self, *places: int) -> None:
        self.events = EventQueue()
        self.network = Network(self.events, CostModel(COST, 0))
        hosts = {place: Host(self.events, 4) for place in places}
        self.nodes = [Sink(i, hosts[place], self.events) for i, place in enumerate(places)]

    def run(self) -> None:
        while self.events.step():
            pass


def payload(nbytes: int) -> Any:
    return np.zeros(nbytes, np.uint8)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), max_size=20))
def test_a_line_within_a_host_is_served_in_order_without_a_pause(jobs: list[tuple[int, int]]) -> None:
    events, cost = EventQueue(), CostModel(CostConfig(local_latency_us=0.0, local_bandwidth_gbit=8e-9), 0)
    line = HostLocalLink(events, cost)  # a byte a second
    ends: list[tuple[float, float]] = []
    for arrival, nbytes in sorted(jobs, key=lambda job: job[0]):
        events.schedule_at(
            float(arrival), lambda n=nbytes: line.carry(n, lambda n=n: ends.append((events.now, float(n))))
        )
    while events.step():
        pass
    free = 0.0
    for (end, seconds), arrival in zip(ends, sorted(arrival for arrival, _ in jobs), strict=True):
        free = max(free, float(arrival)) + seconds
        assert end == pytest.approx(free)


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    net = Net(0, 1)
    net.network.connect(*net.nodes).send(TakeBatch(1), payload(BIG))
    net.run()
    assert net.nodes[1].got == [(1, 0.002)]


def test_within_a_host_there_is_no_interface() -> None:
    net = Net(0, 0)
    net.network.connect(*net.nodes).send(TakeBatch(1), payload(BIG))
    net.run()
    assert net.nodes[1].got == [(1, 1.1e-05)]
    assert net.nodes[0].host.outward.busy_seconds == 0


def test_senders_of_one_host_share_its_interface() -> None:
    net = Net(0, 0, 1, 2)
    net.network.connect(net.nodes[0], net.nodes[2]).send(TakeBatch(1), payload(BIG))
    net.network.connect(net.nodes[1], net.nodes[3]).send(TakeBatch(2), payload(BIG))
    net.run()
    assert [net.nodes[each].got for each in (2, 3)] == [[(number, pytest.approx(0.003))] for number in (1, 2)]


def test_who_sends_less_is_through_earlier_and_the_rest_goes_as_fast_as_alone() -> None:
    """1 and 3 ms alone: 2 ms for all of the one and a third of the other, then 2 ms for the rest; 1 ms of latency."""
    net = Net(0, 0, 1, 2)
    for number, (source, target, much) in enumerate([(0, 2, 1), (1, 3, 3)]):
        net.network.connect(net.nodes[source], net.nodes[target]).send(
            TakeBatch(number), payload(BIG + (much - 1) * 2000)
        )
    net.run()
    assert [net.nodes[each].got[0][1] for each in (2, 3)] == pytest.approx([0.003, 0.005])


def test_one_connection_sends_one_message_after_the_other() -> None:
    net = Net(0, 1)
    channel = net.network.connect(*net.nodes)
    for number in range(3):
        channel.send(TakeBatch(number), payload(BIG))
    net.run()
    assert net.nodes[1].got == [(number, pytest.approx(0.002 + 0.001 * number)) for number in range(3)]


def test_what_fits_into_a_packet_waits_for_nobody_but_on_its_own_connection() -> None:
    """Alone it takes 1 ms of latency and 60 us of the wire; 2 also pays for 3."""
    net = Net(0, 0, 1)
    busy, other = (net.network.connect(net.nodes[each], net.nodes[2]) for each in (0, 1))
    busy.send(TakeBatch(1), payload(BIG))
    busy.send(TakeBatch(2))
    other.send(TakeBatch(3))
    net.run()
    assert net.nodes[2].got == [(3, pytest.approx(0.00106)), (1, pytest.approx(0.002)), (2, pytest.approx(0.00212))]


def test_packets_take_of_the_interface_what_they_need() -> None:
    """100 of 60 us each from two connections, then a message of 1 ms, which comes after those of its own."""
    net = Net(0, 0, 1)
    ways = [net.network.connect(net.nodes[each], net.nodes[2]) for each in (0, 1)]
    for number in range(100):
        ways[number % 2].send(TakeBatch(number))
    ways[1].send(TakeBatch(100), payload(BIG))
    net.run()
    assert net.nodes[2].got[:-1] == [(number, pytest.approx(0.001 + 6e-5 * (number + 1))) for number in range(100)]
    assert net.nodes[2].got[-1] == (100, pytest.approx(0.007))
    for line in (net.nodes[0].host.outward, net.nodes[2].host.inward):
        assert line.busy_seconds == pytest.approx(0.007)


def test_who_sends_more_pays_for_packets_between() -> None:
    """Two messages of 1 ms, one after the other; ten packets of 60 us come while the first is on its way."""
    net = Net(0, 0, 1)
    large, small = (net.network.connect(net.nodes[each], net.nodes[2]) for each in (0, 1))
    large.send(TakeBatch(0), payload(BIG))
    for number in range(1, 11):
        small.send(TakeBatch(number))
    large.send(TakeBatch(11), payload(BIG))
    net.run()
    came = dict(net.nodes[2].got)
    assert (came[0], came[11]) == pytest.approx((0.002, 0.003 + 0.0006))
    assert net.nodes[0].host.outward.busy_seconds == pytest.approx(0.0026)


def test_a_receiver_s_interface_is_shared_too() -> None:
    net = Net(0, 1, 2)
    for sender in (0, 1):
        net.network.connect(net.nodes[sender], net.nodes[2]).send(TakeBatch(sender), payload(BIG))
    net.run()
    assert net.nodes[2].got == [(sender, pytest.approx(0.003)) for sender in (0, 1)]


@pytest.mark.parametrize(("message", "seconds"), [(EasgdUpdate(1, 0.5), 0.002), (PutDense(1), 0.002 + 0.001)])
def test_narrow_values_take_half_the_bytes(message: Any, seconds: float) -> None:
    net = Net(0, 1)
    network = Network(net.events, net.network.cost, codec=CODECS["bf16"])
    values = np.full(2 * BIG // 4, 1 + 2**-9, np.float32) if isinstance(message, EasgdUpdate) else payload(2000 + BIG)
    network.connect(*net.nodes).send(message, values.view(np.uint8))
    net.run()
    assert net.nodes[1].got == [(-1, seconds)]
    arrived = net.nodes[1].frames[0].payload
    if isinstance(message, EasgdUpdate):
        assert (arrived.view(np.float32) == 1.0).all() and values[0] != 1.0


@pytest.mark.parametrize("there", [0, 1])
def test_a_small_message_does_not_overtake_a_large_one(there: int) -> None:
    net = Net(0, there)
    channel = net.network.connect(*net.nodes)
    for number, nbytes in enumerate((100_000, 0, 5_000, 0)):
        channel.send(TakeBatch(number), payload(nbytes))
    channel.close()
    net.run()
    assert [number for number, _ in net.nodes[1].got] == [0, 1, 2, 3]
    assert net.nodes[1].frames[-1].kind == CLOSED


def test_a_payload_is_handed_over_as_it_is() -> None:
    net, data = Net(0, 1), payload(8)
    net.network.connect(*net.nodes).send(TakeBatch(1), data)
    net.run()
    assert net.nodes[1].frames[0].payload is data


def test_the_hub_moves_time_on_to_the_next_frame_or_the_time_out() -> None:
    net = Net(0)
    hub = VirtualHub(net.events, net.nodes[0].host, 0.25)
    channel = net.network.connect(net.nodes[0], hub)
    net.events.schedule_at(3.0, channel.send, TakeBatch(5))
    assert hub.poll(1.0) == [] and hub.now() == 1.0
    assert hub.poll(1e-20) == [] and hub.now() > 1.0, "a wait shorter than the clock can tell"
    [(back, frame)] = hub.poll(None)
    assert decode(frame) == TakeBatch(5) and hub.now() == pytest.approx(3.25, abs=1e-3)
    back.send(TakeBatch(6))
    with pytest.raises(ClusterError, match="Nothing is left to happen"):
        hub.poll(None)
    assert [number for number, _ in net.nodes[0].got] == [6]
    with pytest.raises(WireError):
        hub.connect("S0")


def test_the_coordinator_s_messages_wait_for_each_other() -> None:
    net = Net(0)
    hub = VirtualHub(net.events, net.nodes[0].host, 0.5)
    channel = net.network.connect(net.nodes[0], hub)
    for number in range(3):
        channel.send(TakeBatch(number))
    times = [(hub.poll(None), round(hub.now(), 3))[1] for _ in range(3)]
    assert times == [0.5, 1.0, 1.5]
