"""The clock: order of events, and what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.simulation.clock import EventQueue


@given(st.lists(st.integers(0, 5)))
def test_events_happen_by_time_and_then_in_the_order_they_were_planned(times: list[int]) -> None:
    events, seen = EventQueue(), []
    for number, time in enumerate(times):
        events.at(float(time), lambda t=time, n=number: seen.append((events.now, t, n)))
    while events.step():
        pass
    assert seen == [(float(t), t, n) for t, n in sorted((t, n) for n, t in enumerate(times))]


def test_an_event_may_plan_others_for_the_same_moment() -> None:
    events, seen = EventQueue(), []
    events.at(1.0, lambda: (seen.append("a"), events.after(0.0, seen.append, "c")))
    events.at(1.0, seen.append, "b")
    while events.step():
        pass
    assert seen == ["a", "b", "c"] and events.now == 1.0


@pytest.mark.parametrize("time", [0.5, float("nan"), float("inf")])
def test_the_past_and_no_time_are_refused(time: float) -> None:
    events = EventQueue()
    events.wait(1.0)
    with pytest.raises(ValueError, match="planned at 1"):
        events.at(time, print)


def test_the_clock_waits_no_longer_than_to_the_next_event() -> None:
    events = EventQueue()
    events.at(2.0, lambda: None)
    events.wait(2.0)
    assert (events.now, events.next_time, len(events)) == (2.0, 2.0, 1)
    with pytest.raises(ValueError, match="cannot be moved"):
        events.wait(2.5)
    assert events.step() and not events.step()
    assert events.next_time == float("inf")


def test_when_everybody_stands_still_the_clock_alone_goes_on() -> None:
    events, seen = EventQueue(now=3.0, stalled=2.0), []
    events.after(1.0, lambda: seen.append(events.clock))
    events.stall(10.0)
    assert (events.now, events.clock, events.next_time) == (3.0, 15.0, 4.0)
    events.step()
    assert seen == [16.0]
    for seconds in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="stands still"):
            events.stall(seconds)
