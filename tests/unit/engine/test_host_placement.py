"""Where processes go: properties of the placement, and of a successor's place."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.engine.host_placement import SPREAD, Host, hosts_of, place, slots, successor
from gbactl.errors import ConfigError

fleets = (
    st.lists(st.integers(0, 6), min_size=1, max_size=6)
    .filter(any)
    .map(lambda counts: tuple(Host(f"h{number}", count) for number, count in enumerate(counts)))
)


@given(fleets, st.data(), st.integers(1, 9), st.sampled_from([SPREAD, "packed"]))
def test_everybody_has_a_place_and_no_host_more_workers_than_slots(fleet, data, servers, placement) -> None:
    workers = data.draw(st.integers(1, slots(fleet)))
    placed = place(fleet, workers, servers, placement)
    assert set(placed) == {f"W{i}" for i in range(workers)} | {f"S{i}" for i in range(servers)}
    on = Counter(host for process, host in placed.items() if process[0] == "W")
    assert all(on[host.name] <= host.slots for host in fleet)


@given(fleets, st.data())
def test_workers_fill_the_hosts_in_their_order(fleet, data) -> None:
    """As Horovod numbers ranks: a host is full before the next has one."""
    workers = data.draw(st.integers(1, slots(fleet)))
    placed = place(fleet, workers, 1)
    order = [host.name for host in fleet]
    numbers = [order.index(placed[f"W{i}"]) for i in range(workers)]
    assert numbers == sorted(numbers)
    on = Counter(numbers)
    assert all(on[number] == fleet[number].slots for number in range(numbers[-1]))


@given(fleets, st.integers(1, 12))
def test_servers_are_spread_evenly_or_packed(fleet, servers) -> None:
    spread = Counter(host for p, host in place(fleet, 1, servers, SPREAD).items() if p[0] == "S")
    counts = [spread[host.name] for host in fleet]
    assert max(counts) - min(counts) <= 1
    packed = place(fleet, 1, servers, "packed")
    assert {packed[f"S{i}"] for i in range(servers)} == {fleet[0].name}


@given(fleets, st.data(), st.integers(1, 4))
def test_a_successor_goes_where_somebody_lives(fleet, data, servers) -> None:
    placed = place(fleet, data.draw(st.integers(1, slots(fleet))), servers)
    live = data.draw(st.sets(st.sampled_from([host.name for host in fleet])))
    process = data.draw(st.sampled_from(sorted(placed)))
    where = successor(process, placed, fleet, live)
    if placed[process] in live:
        assert where == placed[process]
    elif live:
        assert where in live
    else:
        assert where is None


def test_a_worker_s_successor_goes_where_there_is_room() -> None:
    fleet = (Host("a", 4), Host("b", 4), Host("c", 2))
    placed = {"W0": "a", "W1": "a", "W2": "a", "W3": "b", "W4": "c", "S0": "a"}
    assert successor("W4", placed, fleet, ["a", "b"]) == "b"
    assert successor("S0", placed, fleet, ["b", "c"]) == "b"


def test_what_is_typed_is_read() -> None:
    found = (Host("a", 4), Host("10.0.0.7", 2), Host("node-3.rack", 1))
    assert hosts_of(["a:4", "10.0.0.7:2", "node-3.rack:1"]) == found


@pytest.mark.parametrize(
    ("given_hosts", "told"),
    [
        ([], "cluster.hosts='[a:4,b:4]'"),
        (["a"], "'a', which is no NAME:SLOTS"),
        (["a:4", "b:2", "a:1"], "names a twice"),
        (["-oProxyCommand=x:4"], "no NAME:SLOTS"),
        (["-F:4"], "no NAME:SLOTS"),
        ([" -Fevil:4"], "' -Fevil:4', which is no NAME:SLOTS"),
        (["\t-Fevil:4 "], "no NAME:SLOTS"),
        (["a b:4"], "no NAME:SLOTS"),
        (["a;reboot:4"], "no NAME:SLOTS"),
    ],
)
def test_what_cannot_be_a_host_is_told(given_hosts: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        hosts_of(given_hosts)


def test_too_few_slots() -> None:
    with pytest.raises(ConfigError, match=r"cluster\.workers=5 do not fit into the 4 slots"):
        place((Host("a", 4),), 5, 1)
