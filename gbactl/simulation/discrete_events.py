"""Discrete-event core of the simulation: the event queue with its virtual clock, and resources with waiting jobs.

Events happen in order of (time, sequence), and cost about a microsecond. Resources: shared cores, a core's time slots,
a process on such cores, a network interface's direction; an arrival or a departure costs O(log n), about 3 us.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sized
from heapq import heappop, heappush
from typing import Any

INFINITE = math.inf


class EventQueue:
    """Queue of events. `now`: virtual seconds of work since the start, changed only by `step` and `wait`.

    `clock` also counts the seconds for which the whole cluster stood still, `stalled` in all."""

    def __init__(self) -> None:
        self.now = self.stalled = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def schedule_at(self, time: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call at a time. Raises ValueError for a past or infinite time, or NaN."""
        if not self.now <= time < INFINITE:
            raise ValueError(f"an event at {time} was planned at {self.now}")
        self._sequence += 1
        heappush(self._heap, (time, self._sequence, call, args))

    def schedule_after(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        """Schedule a call `delay` seconds from now. Raises ValueError for a negative or infinite delay, or NaN."""
        if not 0.0 <= delay < INFINITE:
            raise ValueError(f"an event was planned {delay} seconds after {self.now}")
        self._sequence += 1
        heappush(self._heap, (self.now + delay, self._sequence, call, args))

    @property
    def clock(self) -> float:
        """Virtual wall-clock time in seconds."""
        return self.now + self.stalled

    def stall(self, seconds: float) -> None:
        """Stop the whole cluster for `seconds`, which delays all events. Raises ValueError below 0."""
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a stall must last a finite number of seconds, at least 0, not {seconds}")
        self.stalled += seconds

    @property
    def next_time(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._heap[0][0] if self._heap else math.inf

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._heap:
            return False
        self.now, _, call, args = heappop(self._heap)
        call(*args)
        return True

    def run(self, until: float, results: Sized) -> None:
        """Run the events up to the time `until`, one after the other, as long as `results` is empty."""
        heap = self._heap
        while not results and heap and heap[0][0] <= until:
            self.now, _, call, args = heappop(heap)
            call(*args)

    def wait(self, until: float) -> None:
        """Advance the clock to `until`. Raises ValueError if an event is due before."""
        if until < self.now or until > self.next_time:
            raise ValueError(f"the clock cannot be moved from {self.now} to {until}")
        self.now = until


Done = Callable[..., None]


class SharedCores:
    """Cores of a host, shared equally: each of n runnable jobs runs at rate min(1, cores / n).

    All jobs run at one rate, so a job ends when the service that each has attained since the cores were last
    idle reaches a mark that is known on its arrival."""

    def __init__(self, events: EventQueue, cores: int) -> None:
        self.events, self.cores = events, cores
        self.rate = 1.0  # current speed of every job; 1 means a core of its own
        self._jobs: list[tuple[float, int, Done, tuple[Any, ...]]] = []
        self._attained = self._since = 0.0
        self._sequence = self._generation = 0
        self._planned, self._planned_rate = -1, 0.0  # job whose end is scheduled, and the rate assumed

    def run(self, seconds: float, done: Done, *args: Any) -> None:
        """Run a job of `seconds` of core time, then call `done`."""
        if not seconds >= 0:
            raise ValueError(f"a job must take at least 0 seconds, not {seconds}")
        self._sequence = number = self._sequence + 1
        if self._jobs:
            self._advance()
            heappush(self._jobs, (self._attained + seconds, number, done, args))
            self._plan()
            return
        self._attained, self._since = 0.0, self.events.now
        self._jobs.append((seconds, number, done, args))
        self._planned, self._planned_rate = number, 1.0
        self._generation += 1
        self.events.schedule_after(seconds, self._end, self._generation)

    def _advance(self) -> None:
        """Bring `_attained` up to now: the core time that each job has received since the cores were last idle."""
        now = self.events.now
        self._attained = self._attained + (now - self._since) * self.rate if self._jobs else 0.0
        self._since = now

    def _plan(self) -> None:
        """Schedule the end of the job that finishes first, if its event is not scheduled for that time already."""
        jobs = self._jobs
        mark, number, _, _ = jobs[0]
        count = len(jobs)
        self.rate = rate = self.cores / count if count > self.cores else 1.0
        if self._planned == number and self._planned_rate == rate:
            return
        self._planned, self._planned_rate = number, rate
        self._generation += 1
        left = mark - self._attained
        self.events.schedule_after(left / rate if left > 0.0 else 0.0, self._end, self._generation)

    def _end(self, generation: int) -> None:
        if generation != self._generation:
            return
        jobs = self._jobs
        if len(jobs) == 1:
            _, _, done, args = jobs.pop()
            done(*args)
            return
        ended = [heappop(jobs)]
        self._attained, self._since = ended[0][0], self.events.now
        while jobs and jobs[0][0] <= self._attained:
            ended.append(heappop(jobs))
        if jobs:
            self._plan()
        else:
            self.rate = 1.0
        for _, _, done, args in ended:
            done(*args)


class CoreSlot:
    """Time slots of the workers of one core: one of them computes at a time, first come first served.

    See gbactl/cpu.py."""

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[tuple[Done, tuple[Any, ...]]] = deque()

    def take(self, begin: Done, *args: Any) -> None:
        """Call `begin` when the slot is free; it must be released with `end`."""
        if self._taken:
            self._waiting.append((begin, args))
        else:
            self._taken = True
            begin(*args)

    def end(self) -> None:
        """Release the slot, and give it to the worker that has waited longest."""
        if self._waiting:
            begin, args = self._waiting.popleft()
            begin(*args)
        else:
            self._taken = False


class InterfaceDirection(SharedCores):
    """One direction of a network interface, shared equally by the connections that send, as TCP roughly does.

    A job's seconds are those that it takes alone."""

    def __init__(self, events: EventQueue) -> None:
        super().__init__(events, 1)
        self._taken = self._owed_seconds = 0.0
        self._small_until = 0.0  # end of the last small packet

    def run(self, seconds: float, done: Done, *args: Any) -> None:
        """Send a message that takes `seconds` at full bandwidth, then call `done`."""
        self._taken += seconds
        owed_seconds, self._owed_seconds = self._owed_seconds, 0.0
        SharedCores.run(self, seconds + owed_seconds, done, *args)

    def send_small(self, seconds: float) -> float:
        """Send a small packet, which waits for other packets but not for messages; return the time of its end.

        While a large message is in transit, a packet's time is charged to the next one. Returns when it is through."""
        self._small_until = until = max(self.events.now, self._small_until) + seconds
        self._taken += seconds
        if self._jobs:
            self._owed_seconds += seconds
        return until

    @property
    def busy_seconds(self) -> float:
        """Seconds so far in which this direction was in use."""
        self._advance()
        waiting = sum(mark - self._attained for mark, *_ in self._jobs) + self._owed_seconds
        return self._taken - waiting - max(0.0, self._small_until - self.events.now)


class SerialProcess:
    """Process that does one job after the other on shared cores: a server, the coordinator, or a connection."""

    def __init__(self, cores: SharedCores) -> None:
        self.cores = cores
        self._queue: deque[tuple[Callable[..., float], Done, tuple[Any, ...]]] = deque()
        self._urgent: deque[tuple[Callable[..., float], Done, tuple[Any, ...]]] = deque()
        self._busy = self._on_hold = False
        self._begun = 0.0
        self.busy_seconds = 0.0
        self.stretch: Callable[[float], float] | None = None  # seconds of a job -> seconds to wait after it

    def submit(self, cost: Callable[..., float], done: Done, *args: Any) -> None:
        """Queue a job for this process; `cost(*args)` is called when the job begins, `done(*args)` when it ends."""
        if self._busy or self._on_hold:
            self._queue.append((cost, done, args))
        else:
            self._begin(cost, done, args)

    def first(self, cost: Callable[..., float], done: Done, *args: Any) -> None:
        """Queue a job before all waiting ones, as part of the current job; jobs queued this way keep their order."""
        self._urgent.append((cost, done, args))
        self._next()

    def hold(self) -> None:
        """Begin no further job until `release` is called, as while the process is stopped."""
        self._on_hold = True

    def release(self) -> None:
        """Continue with the waiting jobs after `hold`."""
        self._on_hold = False
        self._next()

    def _next(self) -> None:
        line = self._urgent or self._queue
        if line and not (self._busy or self._on_hold):
            self._begin(*line.popleft())

    def _begin(self, cost: Callable[..., float], done: Done, args: tuple[Any, ...]) -> None:
        self._busy = True
        seconds = cost(*args)
        self.busy_seconds += seconds
        self._begun = self.cores.events.now
        self.cores.run(seconds, self._finished if self.stretch is None else self._stretched, done, args)

    def _stretched(self, done: Done, args: tuple[Any, ...]) -> None:
        events = self.cores.events
        if self.stretch is not None and (wait := self.stretch(events.now - self._begun)) > 0.0:
            events.schedule_after(wait, self._finished, done, args)
        else:
            self._finished(done, args)

    def _finished(self, done: Done, args: tuple[Any, ...]) -> None:
        done(*args)
        self._busy = False
        if self._queue or self._urgent:
            self._next()
