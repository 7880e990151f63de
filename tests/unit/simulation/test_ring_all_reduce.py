"""Rounds of replicas on a virtual clock: who takes part in a sum when somebody dies, or takes a dead one's place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.config.groups import CostConfig
from gbactl.simulation.cost_model import CostModel
from gbactl.simulation.discrete_events import EventQueue
from gbactl.simulation.network import TICK, Host, RingRounds, SimulatedRing


class Cost:
    """A second a rank."""

    def all_reduce(self, nbytes: int, workers: int, hosts: int, compute: float, agreed: int) -> float:
        return float(workers)

    def sending(self, nbytes: int, workers: int, hosts: int) -> float:
        return 0.0


@pytest.fixture
def events() -> EventQueue:
    return EventQueue()


@pytest.fixture
def rounds(events: EventQueue) -> RingRounds:
    return RingRounds(SimulatedRing(events, Cost(), [Host(events, 1)] * 3, least=TICK))  # type: ignore[arg-type]


def meet(rounds: RingRounds, events: EventQueue, told: list[tuple[int, float, float]], *ranks: int) -> None:
    """Ranks come to a round, each with its own number and one more."""
    for rank in ranks:
        vector = np.array([rank + 1.0], np.float32)

        def done(rank: int = rank, vector: Any = vector) -> None:
            told.append((rank, float(vector[0]), events.now))

        rounds.join_round(rank, vector, done)


def run(events: EventQueue) -> None:
    while len(events):
        events.step()


def test_one_that_dies_before_a_round_is_missing_in_it(rounds: RingRounds, events: EventQueue) -> None:
    told: list[tuple[int, float, float]] = []
    meet(rounds, events, told, 0, 2)
    run(events)
    assert told == []
    rounds.remove_rank(1)
    run(events)
    assert told == [(0, 4.0, 2.0), (2, 4.0, 2.0)]
    meet(rounds, events, told, 2, 0)
    run(events)
    assert told[2:] == [(0, 4.0, 4.0), (2, 4.0, 4.0)]
    assert rounds.ring.traffic.counters() == {"sent dense": 2 * 2 * (2 - 1) * 4}, "two rings of two, of one value"


@pytest.mark.parametrize("complete", [False, True])
def test_one_that_had_come_counts_once_more(rounds: RingRounds, events: EventQueue, complete: bool) -> None:
    """Whether the round was under way when it died, or others had still to come."""
    told: list[tuple[int, float, float]] = []
    meet(rounds, events, told, *((0, 1, 2) if complete else (1,)))
    rounds.remove_rank(1)
    meet(rounds, events, told, *(() if complete else (0, 2)))
    run(events)
    assert {total for _, total, _ in told} == {6.0} and len(told) == 3
    meet(rounds, events, told, 0, 2)
    run(events)
    assert [total for _, total, _ in told[3:]] == [4.0, 4.0]


def test_another_one_in_its_place_is_waited_for(rounds: RingRounds, events: EventQueue) -> None:
    told: list[tuple[int, float, float]] = []
    rounds.remove_rank(1)
    rounds.add_rank(1)
    meet(rounds, events, told, 0, 2)
    run(events)
    assert told == []
    meet(rounds, events, told, 1)
    run(events)
    assert [total for _, total, _ in told] == [6.0] * 3


def far(events: EventQueue, ranks: int, each: int) -> RingRounds:
    """So many ranks, `each` on a host; a float takes a second on a line, nothing else takes time."""
    free = {"allreduce_us": 0.0, "latency_us": 0.0, "local_latency_us": 0.0}
    cost = CostModel(CostConfig(bandwidth_gbit=32e-9, **free), 0)
    hosts = [Host(events, 1) for _ in range(ranks // each)]
    return RingRounds(SimulatedRing(events, cost, [hosts[rank // each] for rank in range(ranks)]))


@pytest.mark.parametrize(("ranks", "each"), [(2, 1), (4, 1), (4, 2)])
def test_a_ring_takes_the_lines_between_its_hosts(events: EventQueue, ranks: int, each: int) -> None:
    """2 (N - 1) / N of the vector each way, whichever of a host's ranks sends it."""
    told: list[tuple[int, float, float]] = []
    rounds = far(events, ranks, each)
    meet(rounds, events, told, *range(ranks))
    run(events)
    busy = [line.busy_seconds for host in rounds.ring.hosts for line in (host.outward, host.inward)]
    assert busy == pytest.approx([2 * (ranks - 1) / ranks] * 2 * ranks, rel=1e-3)
    assert [when for _, _, when in told] == pytest.approx([2 * (ranks - 1) / ranks] * ranks, rel=1e-3)


def test_rows_on_their_way_and_a_ring_share_a_line(events: EventQueue) -> None:
    """The ring has 1 second to send on each line, rows have 3 on one of them: there it gets a half until it is over."""
    told: list[tuple[int, float, float]] = []
    rows: list[float] = []
    rounds = far(events, 2, 1)
    rounds.ring.hosts[0].outward.run(3.0, lambda: rows.append(events.now))
    meet(rounds, events, told, 0, 1)
    run(events)
    assert [when for _, _, when in told] == pytest.approx([2.0] * 2, rel=1e-3)
    assert rows == pytest.approx([4.0], rel=1e-3)


def test_fewer_bytes_a_value_take_less_of_a_line(events: EventQueue) -> None:
    told: list[tuple[int, float, float]] = []
    rounds = far(events, 2, 1)
    rounds.ring.item = 2
    meet(rounds, events, told, 0, 1)
    run(events)
    assert [when for _, _, when in told] == pytest.approx([0.5] * 2, rel=1e-3)
    assert rounds.ring.traffic.counters() == {"sent dense": 2 * 2}
