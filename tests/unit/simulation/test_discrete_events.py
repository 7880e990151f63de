"""Event queue, shared cores and pipes: order, equal shares, and that no work is lost or done twice."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.simulation.discrete_events import EventQueue, SerialProcess, SharedCores


@given(st.lists(st.integers(0, 5)))
def test_events_happen_by_time_and_then_in_the_order_they_were_planned(times: list[int]) -> None:
    events, seen = EventQueue(), []
    for number, time in enumerate(times):
        events.schedule_at(float(time), lambda t=time, n=number: seen.append((events.now, t, n)))
    while events.step():
        pass
    assert seen == [(float(t), t, n) for t, n in sorted((t, n) for n, t in enumerate(times))]


def test_an_event_may_plan_others_for_the_same_moment() -> None:
    events, seen = EventQueue(), []
    events.schedule_at(1.0, lambda: (seen.append("a"), events.schedule_after(0.0, seen.append, "c")))
    events.schedule_at(1.0, seen.append, "b")
    while events.step():
        pass
    assert seen == ["a", "b", "c"] and events.now == 1.0


@pytest.mark.parametrize("time", [0.5, float("nan"), float("inf")])
def test_the_past_and_no_time_are_refused(time: float) -> None:
    events = EventQueue()
    events.wait(1.0)
    with pytest.raises(ValueError, match="planned at 1"):
        events.schedule_at(time, print)


def test_the_clock_waits_no_longer_than_to_the_next_event() -> None:
    events = EventQueue()
    events.schedule_at(2.0, lambda: None)
    events.wait(2.0)
    assert (events.now, events.next_time, len(events)) == (2.0, 2.0, 1)
    with pytest.raises(ValueError, match="cannot be moved"):
        events.wait(2.5)
    assert events.step() and not events.step()
    assert events.next_time == float("inf")


def test_when_everybody_stands_still_the_clock_alone_goes_on() -> None:
    events, seen = EventQueue(), []
    events.wait(3.0)
    events.stall(2.0)
    events.schedule_after(1.0, lambda: seen.append(events.clock))
    events.stall(10.0)
    assert (events.now, events.clock, events.next_time) == (3.0, 15.0, 4.0)
    events.step()
    assert seen == [16.0]
    for seconds in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="a stall must last a finite number"):
            events.stall(seconds)


JOBS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8)), max_size=12)


def finish_times(cores: int, jobs: list[tuple[int, int]]) -> list[float]:
    """When each (arrival, seconds) job ends."""
    events, ends = EventQueue(), [-1.0] * len(jobs)
    shared = SharedCores(events, cores)

    def end(number: int) -> None:
        assert ends[number] == -1.0, "a job ends once"
        ends[number] = events.now

    for number, (arrival, seconds) in enumerate(jobs):
        events.schedule_at(float(arrival), shared.run, float(seconds), end, number)
    while events.step():
        pass
    return ends


def exactly(cores: int, jobs: list[tuple[int, int]]) -> list[Fraction]:
    """The same in fractions: from one arrival or end to the next, everybody runs at an equal rate."""
    left = {i: Fraction(seconds) for i, (_, seconds) in enumerate(jobs)}
    ends, now = [Fraction(-1)] * len(jobs), Fraction(0)
    while left:
        runnable = [i for i in left if jobs[i][0] <= now]
        arrivals = [Fraction(jobs[i][0]) - now for i in left if jobs[i][0] > now]
        rate = min(Fraction(1), Fraction(cores, max(1, len(runnable))))
        passed = min([left[i] / rate for i in runnable] + arrivals)
        now += passed
        for i in runnable:
            left[i] -= passed * rate
            if left[i] == 0:
                ends[i] = now
                del left[i]
    return ends


@given(st.integers(1, 3), JOBS)
def test_cores_are_shared_equally(cores: int, jobs: list[tuple[int, int]]) -> None:
    assert finish_times(cores, jobs) == pytest.approx([float(end) for end in exactly(cores, jobs)])


@given(st.integers(1, 4), JOBS)
def test_work_is_conserved(cores: int, jobs: list[tuple[int, int]]) -> None:
    """Nobody is faster than alone; the last one ends when the work is done, no later than on one core."""
    ends = finish_times(cores, jobs)
    assert all(end >= arrival + seconds - 1e-9 for end, (arrival, seconds) in zip(ends, jobs, strict=True))
    if jobs:
        last = max(arrival for arrival, _ in jobs)
        work = sum(seconds for _, seconds in jobs)
        assert work / cores <= max(ends) + 1e-9
        assert max(ends) <= last + work + 1e-9


@given(st.integers(1, 5), st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_jobs_that_begin_together_end_in_the_order_of_their_size(cores: int, sizes: list[int]) -> None:
    ends = finish_times(cores, [(0, size) for size in sizes])
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    assert [ends[i] for i in order] == sorted(ends)
    if len(sizes) >= cores:
        assert max(ends) >= sum(sizes) / cores - 1e-9


def test_two_jobs_on_one_core_take_twice_as_long_and_four_cores_are_enough_for_four() -> None:
    assert finish_times(1, [(0, 2), (0, 2)]) == pytest.approx([4.0, 4.0])
    assert finish_times(4, [(0, 2)] * 4) == pytest.approx([2.0] * 4)
    assert finish_times(4, [(0, 2)] * 8) == pytest.approx([4.0] * 8)
    assert finish_times(1, [(0, 4), (2, 1)]) == pytest.approx([5.0, 4.0])


def test_a_job_cannot_take_less_than_no_time() -> None:
    with pytest.raises(ValueError, match="-1"):
        SharedCores(EventQueue(), 1).run(-1.0, print)


def test_a_process_does_one_job_at_a_time_and_what_a_job_leaves_to_do_first() -> None:
    events, seen = EventQueue(), []
    process = SerialProcess(SharedCores(events, 8))

    def note(name: str) -> None:
        seen.append((name, events.now))

    def first() -> None:
        note("a")
        process.submit(lambda _: 1.0, note, "d")
        process.first(lambda _: 0.5, note, "a1")
        process.first(lambda _: 0.5, note, "a2")

    process.submit(lambda: 1.0, first)
    process.submit(lambda _: 2.0, note, "b")
    while events.step():
        pass
    assert seen == [("a", 1.0), ("a1", 1.5), ("a2", 2.0), ("b", 4.0), ("d", 5.0)]
    assert process.busy_seconds == 5.0


def test_a_process_asks_for_a_cost_when_the_turn_has_come() -> None:
    events, costs = EventQueue(), []
    process = SerialProcess(SharedCores(events, 1))
    for _ in range(3):
        process.submit(lambda: (costs.append(events.now), 2.0)[1], lambda: None)
    while events.step():
        pass
    assert costs == [0.0, 2.0, 4.0]


def test_a_process_shares_its_cores_with_others() -> None:
    events, seen = EventQueue(), []
    cores = SharedCores(events, 1)
    SerialProcess(cores).submit(lambda: 1.0, lambda: seen.append(events.now))
    cores.run(1.0, lambda: seen.append(events.now))
    while events.step():
        pass
    assert seen == [2.0, 2.0]
