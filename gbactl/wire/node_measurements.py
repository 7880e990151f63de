"""Measurements that a node makes of itself: seconds by activity, a trace of activities, and bytes sent by kind.

Times: a worker measures what it waits for, besides computing; a server how long it handles messages, and of that its
kernels. For a gradient, a worker, a server and the coordinator together measure for about 40 us of CPU with a local
batch of 128, and for 45 us with 512 (experiments/performance/measuring_cost.py).

Bytes are those of training; those of evaluations are not counted. `dense`: dense parameters, gradients and whole states
of them; `rows`: embedding rows and their gradients; `ids`: the rows' ids; `control`: headers and descriptors of all
messages; `other`: everything else. Payloads in shared memory are counted apart. TLS, TCP and IP headers are not
included. A message costs 1 us.

An all-reduce of n values in a ring (Horovod, Gloo, that of a virtual cluster) counts as `dense`: 4 n x 2 (W - 1) / W
bytes (half of that with fp16 on the wire) from each of its W ranks. That is computed, not measured, and leaves out
Horovod's negotiation. An all-reduce in shared memory counts as shared memory: the 4 n bytes that a rank writes, for
collective=shm or beside a ring that may break. Where a server sums instead, its messages are counted.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from gbactl.atomic_files import replacing
from gbactl.wire.messages import (
    WAITS,
    AddReplica,
    DenseSaved,
    DenseState,
    EasgdCentre,
    EasgdUpdate,
    InstallDense,
    Pull,
    Push,
    PutDense,
    Rows,
    Sum,
    Summand,
)

BATCH, ROWS, TURN, PUSH, ALL_REDUCE = range(len(WAITS))
BUSY, KERNELS = range(2)
TRACE_DIR, TRACE = "trace", "trace.json"  # in a run's directory: parts until the run's end, and the whole
TRACED_STEPS = 200
SAME_CLOCK = 1e-3  # seconds by which the zeros of two monotonic clocks differ at most if they are one clock


class Trace:
    """Slices of one process's activities as Chrome trace events, until `TRACED_STEPS` global steps after its first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[dict[str, Any]] = []
        self._first_step: int | None = None
        self._last_step = -1
        self._recording = True

    @classmethod
    def of_process(cls, run_dir: Path, name: str) -> Trace | None:
        """Make the trace of a process; None unless `run_dir`, or the folder that its host has instead, asks for one."""
        path = trace_part(run_dir, name)
        return cls(path) if path.parent.is_dir() else None

    def add_interval(self, activity: str, began: float, ended: float) -> None:
        """Record that the calling thread was busy with `activity` between two times (monotonic clock, seconds)."""
        if self._recording and ended > began:
            # Perfetto rounds to nanoseconds, and drops a slice that then begins before the one before it has ended
            self._event("X", activity, began, dur=max(0.0, (ended - began) * 1e6 - 0.002))

    def step(self, version: int) -> None:
        """Mark the global step that the process has reached; past the last step of the trace, stop recording."""
        self._first_step = version if self._first_step is None else self._first_step
        self._recording = self._recording and version - self._first_step <= TRACED_STEPS
        if self._recording and version > self._last_step:
            self._last_step = version
            self._event("i", f"step {version}", time.perf_counter(), s="t")

    def _event(self, kind: str, name: str, at: float, **more: Any) -> None:
        self.events.append({"ph": kind, "name": name, "ts": at * 1e6, "tid": threading.get_native_id(), **more})

    def write(self) -> None:
        """Write the events and the clock's zero to a part of the run's trace; ignore an OSError."""
        with suppress(OSError), replacing(self.path) as partial:
            partial.write_text(json.dumps({"zero": clock_zero(), "events": self.events}))


def trace_part(folder: Path, name: str) -> Path:
    """Return the file of a process's part of the trace, in the run directory or in the folder of a host."""
    return folder / TRACE_DIR / f"{name}.json"


def clock_zero() -> float:
    """Return the wall-clock time, in seconds, at which this machine's monotonic clock was zero."""
    return max(time.time() - time.perf_counter() for _ in range(5))  # a process interrupted in between finds less


def merge_traces(run_dir: Path) -> Path:
    """Merge the traces of a run's processes into one file, which ui.perfetto.dev opens. Raises OSError.

    Times of another machine are moved to this one's monotonic clock by the zeros of both, so they are as exact as the
    two wall clocks. All times of one machine are moved alike, which keeps their order. Processes are numbered, as pids
    are of one host. A part of which a lost host has sent only the beginning is left out."""
    events: list[dict[str, Any]] = []
    zeros = [clock_zero()]
    for number, path in enumerate(sorted((run_dir / TRACE_DIR).glob("*.json")), 1):
        try:
            part = json.loads(path.read_text())
        except ValueError:
            continue
        zeros.append(next((zero for zero in zeros if abs(zero - part["zero"]) < SAME_CLOCK), part["zero"]))
        later = (zeros[-1] - zeros[0]) * 1e6
        events.append({"ph": "M", "name": "process_name", "pid": number, "args": {"name": path.stem}})
        events += [{**event, "pid": number, "ts": event["ts"] + later} for event in part["events"]]
    with replacing(run_dir / TRACE) as partial:
        partial.write_text(json.dumps({"traceEvents": events}))
    shutil.rmtree(run_dir / TRACE_DIR)
    return run_dir / TRACE


class NodeTimes(threading.local):
    """Seconds per activity of the calling thread since its last call of `take`; each thread has its own."""

    trace: ClassVar[Trace | None] = None  # of the whole process

    def __init__(
        self, activities: Sequence[str] = tuple(WAITS), clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.activities = [Activity(name, clock) for name in activities]

    def activity(self, activity: int) -> Activity:
        """Return the context that adds its duration to the seconds of one activity."""
        return self.activities[activity]

    def next_batch(self, began: float, granted: float) -> None:
        """Add the time from `began` until now: until `granted` as a wait for a batch, from then on as a wait for rows.

        A batch that was granted before has 0 or an earlier time."""
        batch, rows = self.activities[BATCH], self.activities[ROWS]
        now = rows.clock()
        since = min(max(began, granted), now)
        batch.add(began, since)
        rows.add(since, now)

    def take(self) -> list[float]:
        """Return and clear the times, in the order of the activities."""
        taken = [activity.seconds for activity in self.activities]
        for activity in self.activities:
            activity.seconds = 0.0
        return taken


class Activity:
    """Context that adds its duration to the seconds of one activity of a thread.

    A NodeTimes has one for each thread and activity, made once and no generator, as that is faster. It must not be
    entered again before it is left."""

    __slots__ = ("began", "clock", "name", "seconds")

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name, self.clock, self.seconds = name, clock, 0.0

    def __enter__(self) -> None:
        self.began = self.clock()

    def __exit__(self, *_: object) -> None:
        self.add(self.began, self.clock())

    def add(self, began: float, ended: float) -> None:
        """Add the time between two times of the clock, also as a slice of the trace if there is one."""
        self.seconds += ended - began
        if NodeTimes.trace is not None:
            NodeTimes.trace.add_interval(self.name, began, ended)


class ServerTimes(NodeTimes):
    """Times of a server, summed over training: BUSY, handling messages, and the part of it spent in KERNELS."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(("messages", "kernels"), clock)
        self._since, self._totals = clock(), {"idle": 0.0, "kernels": 0.0, "messages": 0.0}

    def total(self, training: bool) -> dict[str, float]:
        """Add the seconds since the last call to the totals if they were `training`; return the totals by activity."""
        (busy, kernels), began = self.take(), self._since
        self._since = self.activity(BUSY).clock()
        if training:
            totals, parts = self._totals, (self._since - began - busy, kernels, busy - kernels)
            self._totals = {name: totals[name] + max(0.0, part) for name, part in zip(totals, parts, strict=True)}
        return self._totals


KINDS = ("dense", "rows", "ids", "control", "other")
SHARED = "shared"
PREFIX = "sent "  # prefix of the traffic counters' names among a node's counters
_DENSE = frozenset((EasgdCentre, DenseSaved, DenseState, EasgdUpdate, AddReplica, InstallDense, PutDense, Sum, Summand))


class TrafficCounter:
    """Counter of the bytes that one node sends during training, by kind; `item`: bytes of a float on the wire."""

    def __init__(self) -> None:
        self.item, self.training = 4, False
        self._sent = dict.fromkeys((*KINDS, SHARED), 0)

    def sent(self, message: Any, head: int, payload: int, shared: bool = False) -> None:
        """Count a sent message: `head`: bytes of header and descriptor; `payload`: bytes sent or in shared memory."""
        if not self.training:
            return
        counters = self._sent
        counters["control"] += head
        if shared:
            counters[SHARED] += payload
        elif payload:
            self._payload(counters, message, payload)

    def _payload(self, counters: dict[str, int], message: Any, payload: int) -> None:
        kind = type(message)
        if kind is Push:
            ids, dense = 4 * max(0, message.rows), self.item * message.dense
            counters["ids"] += ids
            counters["dense"] += dense
            counters["rows"] += payload - ids - dense
        elif kind is Rows:
            dense = self.item * message.dense
            counters["dense"] += dense
            counters["rows"] += payload - dense
        else:
            counters["ids" if kind is Pull else "dense" if kind in _DENSE else "other"] += payload

    def count_all_reduce(self, nbytes: int, shared: bool) -> None:
        """Count the bytes that this rank sent in an all-reduce, also in the last one, which may end after training."""
        self._sent[SHARED if shared else "dense"] += nbytes

    def counters(self) -> dict[str, int]:
        """Return the counters under the names that Inspected reports."""
        return {f"{PREFIX}{kind}": count for kind, count in self._sent.items() if count}


def traffic_summary(nodes: Sequence[Mapping[str, int]], steps: int) -> dict[str, Any]:
    """Build the entry `wire` of result.json: bytes by kind, in all and per step, over all nodes."""
    total: Counter[str] = Counter()
    for counters in nodes:
        total.update({kind: counters.get(f"{PREFIX}{kind}", 0) for kind in (*KINDS, SHARED)})
    sent = {kind: total[kind] for kind in KINDS}
    return {
        "bytes": sent,
        "bytes_per_step": {kind: count / steps if steps else 0.0 for kind, count in sent.items()},
        "shared_memory": total[SHARED],
    }
