"""Slow-down of a real process: it waits as long as the fault plan says, which costs no CPU.

A worker waits after computing, and pushes later. If the busy kernel ends a wait late, the next one is shorter: over a
run the factor is met. The factor applies to the time that the batch takes undisturbed workers: after a wait a worker
computes some 5 % slower (its caches are cold), which is no part of the plan.

A server waits before each message and settles the difference afterwards. Its answer is sent while a message is handled,
so the wait comes first, for the usual time of such a message. The next wait corrects the error of that estimate and the
kernel's late wake-up. In virtual time nothing is estimated (see simulation/server.py). Where a plan names servers, a
message costs them 5 us.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gbactl.faults.fault_plan import FaultPlan

MOST_LATE = 0.1  # seconds of lateness that are corrected at most
ADAPTING, SHORTEST = 0.1, 5e-5
COUNTERS = ("served", "busy_us", "asked_us", "spent_us")
SPAN = ("from_s", "until_s", "factor")  # suffixes of the counters acted_<index>_, in millionths


class FaultRecord:
    """Record of the faults that acted: the time span and the largest factor of each fault on each process."""

    def __init__(self) -> None:
        self._spans: dict[tuple[int, str], tuple[float, float, float]] = {}

    def add(self, index: int, process: str, begin: float, end: float, factor: float = 1.0) -> None:
        """Record that fault number `index` of the fault plan acted on a process, in seconds since training began."""
        first, last, largest = self._spans.get((index, process), (begin, end, factor))
        self._spans[index, process] = min(first, begin), max(last, end), max(largest, factor)

    def to_list(self) -> list[dict[str, Any]]:
        """Encode the record as plain containers."""
        return [
            {"plan": index, "process": process, "from_s": begin, "until_s": end, "factor": factor}
            for (index, process), (begin, end, factor) in sorted(self._spans.items())
        ]

    def restore(self, saved: Iterable[Mapping[str, Any]]) -> None:
        """Add the record of an earlier process, as encoded by `to_list`, to this one."""
        for entry in saved:
            self.add(entry["plan"], entry["process"], entry["from_s"], entry["until_s"], entry["factor"])


def wait(seconds: float, clock: Callable[[], float], sleep: Callable[[float], bool | None]) -> float:
    """Sleep for `seconds`, or until `sleep` returns true; return the seconds that have passed."""
    begin = clock()
    while (left := begin + seconds - clock()) > 0.0 and not sleep(left):
        pass
    return clock() - begin


class WorkerSlowdown:
    """Slow-down of one worker according to the fault plan. `clock` and `sleep` are in seconds.

    `sleep` may return true, which ends the wait: the run is over for the worker."""

    def __init__(
        self, plan: FaultPlan, worker: int,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], bool | None] = time.sleep,
    ) -> None:  # fmt: skip
        self.plan, self.worker, self.clock, self.sleep = plan, worker, clock, sleep
        self._batches = 0
        self._began: float | None = None
        self._overslept = 0.0

    def slow_down(self, computed: float, usual: float = 0.0) -> tuple[float, float]:
        """Wait after a gradient that took `computed` seconds, so that it takes the plan's factor times as long.

        `usual`: seconds that undisturbed workers take; 0 where unknown, then the worker's own time is used. Returns
        (seconds including the wait, the factor)."""
        if not self.plan.slows(self.worker):
            return computed, 1.0
        started = self.clock() - computed
        self._began = started if self._began is None else self._began
        factor = self.plan.factor(self.worker, self._batches, started - self._began)
        self._batches += 1
        wanted, waited = factor * (usual or computed) - computed if factor > 1.0 else 0.0, 0.0
        if wanted > 0.0:
            waited = wait(wanted - self._overslept, self.clock, self.sleep)
            self._overslept = min(MOST_LATE, max(0.0, self._overslept + waited - wanted))
        return computed + waited, factor


class ServerSlowdown:
    """Slow-down of one server according to the fault plan. `clock` and `sleep` are in seconds."""

    def __init__(
        self, plan: FaultPlan, server: int,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.plan, self.name, self.clock, self.sleep = plan, f"S{server}", clock, sleep
        self.served = 0
        self.busy = self.planned = self.actual = 0.0
        self.acted = FaultRecord()
        self._usual: dict[int, float] = {}
        self._began: float | None = None
        self._owed_seconds = 0.0

    @classmethod
    def of(cls, plan: FaultPlan, server: int, **more: Any) -> ServerSlowdown | None:
        """Create a server's slow-down and measurement; None if the plan slows no server.

        Servers that are not slowed are measured too, for comparison."""
        return cls(plan, server, **more) if plan.slowed_servers else None

    def handle(self, kind: int, call: Callable[..., None], *args: Any) -> None:
        """Wait as long as the fault plan says, then handle a message by `call`."""
        begin = self.clock()
        factor = self.factor(begin)
        wanted = self._owed_seconds + (factor - 1.0) * self._usual.get(kind, 0.0)
        slept = wait(wanted, self.clock, self.sleep) if wanted >= SHORTEST else 0.0
        worked = self.clock()
        call(*args)
        busy = self.clock() - worked
        usual = self._usual.setdefault(kind, busy)
        self._usual[kind] = usual + ADAPTING * (busy - usual)
        self._owed_seconds = max(-MOST_LATE, self._owed_seconds + (factor - 1.0) * busy - slept)
        self.count(factor, busy, slept)

    def factor(self, now: float) -> float:
        """Record the faults that act on the current message, which begins at `now`; return its slow-down factor."""
        self._began = now if self._began is None else self._began
        since = now - self._began
        acting = self.plan.acting_faults(self.name, self.served, since)
        for index, factor in acting:
            self.acted.add(index, self.name, since, since, factor)
        return math.prod((factor for _, factor in acting), start=1.0)

    def count(self, factor: float, busy: float, waited: float) -> None:
        """Count a message handled in `busy` seconds and slowed by `factor`, after `waited` seconds of waiting."""
        self.served += 1
        self.busy += busy
        self.planned += factor * busy
        self.actual += busy + waited

    @property
    def counters(self) -> dict[str, int]:
        """Counters for a server's `Inspected` message: messages handled and slow-downs; times in microseconds."""
        seconds = (round(1e6 * value) for value in (self.busy, self.planned, self.actual))
        faults = self.acted.to_list()
        acted = {f"acted_{entry['plan']}_{name}": round(1e6 * entry[name]) for entry in faults for name in SPAN}
        return {**dict(zip(COUNTERS, (self.served, *seconds), strict=True)), **acted}


def add_acted(acted: FaultRecord, counters: Mapping[str, Mapping[str, int]], resumed_at: float) -> None:
    """Add the slow-downs that servers have counted to the record of the faults that acted.

    `resumed_at`: second of the run at which the servers began to count."""
    for server, counted in counters.items():
        for index in (
            int(name.split("_")[1]) for name in counted if name.startswith("acted_") and name.endswith(SPAN[0])
        ):
            begin, end, factor = (counted[f"acted_{index}_{name}"] / 1e6 for name in SPAN)
            acted.add(index, server, resumed_at + begin, resumed_at + end, factor)


def server_slowdowns(plan: FaultPlan, counters: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, float | None]]:
    """Return every slowed server's injected factor, and its observed one relative to servers without a fault."""
    undisturbed = [
        counted["busy_us"] / counted["served"]
        for name, counted in counters.items()
        if name[0] == "S" and int(name[1:]) not in plan.slowed_servers and counted.get("served")
    ]
    reference = statistics.median(undisturbed) if undisturbed else 0.0
    slowed = sorted(plan.slowed_servers)
    return {f"S{server}": _server_slowdown(counters.get(f"S{server}", {}), reference) for server in slowed}


def _server_slowdown(counters: Mapping[str, int], reference: float) -> dict[str, float | None]:
    injected = counters["asked_us"] / counters["busy_us"] if counters.get("busy_us") else None
    observed = counters["spent_us"] / counters["served"] / reference if reference and counters.get("served") else None
    error = observed / injected - 1.0 if injected is not None and observed is not None else None
    return {"injected": injected, "observed": observed, "error": error}
