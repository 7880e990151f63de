"""Controller of `switch=auto`: predicts whether `sync` or `gba` delivers more samples/s now. It has no clock.

The throughput of the present mode is measured, that of the other mode is predicted from the workers' last compute
times. `sync`: G / (expected compute time of the slowest worker + overhead of a step); the overhead is measured in
`sync`, and 0 until then. `gba`: the sum of the workers' rates x efficiency; the efficiency is measured in `gba`, and
until then is the computing share of a `sync` step. A gradient costs 2 us, a decision 20 us for each worker.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from gbactl.checked_dataclasses import Bounds, Interval, Seconds
from gbactl.policies.policy import Policy

SYNC, GBA = "sync", "gba"
MODES = (SYNC, GBA)
AUTO_FILE = "auto.jsonl"
FEW, MOST = 4, 64  # least and largest number of values that are kept, at any age


@dataclass
class AutoOptions:
    """Options of the controller. `window`: seconds of values kept; `minimum_stay`: seconds in a mode before a switch.

    Shares: by how much `gba` must exceed `sync` to be worth it (`margin`), and how far beyond that point, either way, a
    switch happens (`hysteresis`)."""

    window: Interval = 10.0
    margin: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.1
    hysteresis: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.1
    minimum_stay: Seconds = 30.0

    @property
    def enter(self) -> float:
        """Ratio of predicted throughputs, gba / sync, above which the controller switches to `gba`."""
        return (1.0 + self.margin) * (1.0 + self.hysteresis)

    @property
    def leave(self) -> float:
        """Ratio of predicted throughputs, gba / sync, below which the controller switches back to `sync`."""
        return (1.0 + self.margin) / (1.0 + self.hysteresis)


@dataclass(frozen=True)
class SwitchDecision:
    """Decision of the controller. `sync`, `gba`: predicted samples/s in each mode.

    `delivered`: samples/s of the present mode (None: unknown yet). `slowest`: expected seconds of the slowest worker in
    a step. `overhead`: further seconds of a step (None: `sync` not measured yet). `efficiency` of `gba`: delivered over
    the sum of the workers' rates; before it was measured, the computing share of a `sync` step."""

    at: float
    mode: str
    wanted: str
    sync: float
    gba: float
    delivered: float | None
    slowest: float
    overhead: float | None
    efficiency: float | None
    workers: int
    reason: str


class AutoController:
    """Controller that chooses between `sync` and `gba` from reported gradient and step times.

    `local_batch`: a worker's samples in a `sync` step."""

    def __init__(self, global_batch: int, local_batch: int, options: AutoOptions) -> None:
        self.global_batch, self.local_batch = global_batch, local_batch
        self.options, self.mode = options, ""
        self._seconds_per_sample: dict[int, RecentValues] = {}
        self._steps = RecentValues(options.window)
        self._overheads = RecentValues(options.window)
        self._efficiency: float | None = None
        self._mode_began, self._slowest = 0.0, 0.0

    def begin(self, now: float, mode: str) -> None:
        """Begin a phase in `mode`, and measure its throughput from now on."""
        if mode != self.mode:
            self.mode, self._mode_began = mode, now
        self._steps.pairs.clear()
        self._slowest = 0.0

    def add_measurement(self, now: float, worker: int, seconds: float, samples: int) -> None:
        """Record the compute time of a worker's gradient: `seconds` for `samples`."""
        if samples > 0 and seconds > 0.0:
            self._slowest = max(self._slowest, seconds)
            self._seconds_per_sample.setdefault(worker, RecentValues(self.options.window)).add(now, seconds / samples)

    def on_step(self, now: float, finished: int) -> None:
        """Record that a step was ordered; `finished`: the phase's samples trained, decayed or lost so far."""
        if self.mode == SYNC and self._steps.pairs and self._slowest:
            took = now - self._steps.pairs[-1][0]
            self._overheads.add(now, max(0.0, took - self._slowest))
        self._steps.add(now, finished)
        self._slowest = 0.0

    def decide(self, now: float, live: Set[int]) -> SwitchDecision | None:
        """Predict the throughput of both modes with the workers `live`, and choose one.

        Returns None in other modes, or with too few measurements. Those of other workers are removed."""
        for worker in self._seconds_per_sample.keys() - live:
            del self._seconds_per_sample[worker]
        if self.mode not in MODES or len(self._seconds_per_sample) < len(live) or not live:
            return None
        for recent in self._seconds_per_sample.values():
            recent.trim(now)
        if min(len(recent.pairs) for recent in self._seconds_per_sample.values()) < FEW:
            return None
        slowest = self.local_batch * expected_maximum([recent.values for recent in self._seconds_per_sample.values()])
        rates = sum(len(recent.pairs) / sum(recent.values) for recent in self._seconds_per_sample.values())
        delivered = self._delivered(now)
        if delivered is not None and self.mode == GBA:
            self._efficiency = min(1.0, delivered / rates)
        overhead = statistics.median(self._overheads.values) if self._overheads.pairs else None
        step = slowest + (overhead or 0.0)
        sync = self.global_batch / step
        gba = rates * (slowest / step if self._efficiency is None else self._efficiency)
        if delivered is not None:
            sync, gba = (delivered, gba) if self.mode == SYNC else (sync, delivered)
        wanted, reason = self._decide(now, gba / sync)
        return SwitchDecision(
            now, self.mode, wanted, sync, gba, delivered, slowest, overhead, self._efficiency,
            len(self._seconds_per_sample), reason,
        )  # fmt: skip

    def _delivered(self, now: float) -> float | None:
        """Compute the phase's samples/s within the window; a step that is overdue lowers the result."""
        self._steps.trim(now)
        pairs = self._steps.pairs
        if len(pairs) < FEW:
            return None
        (begin, before), (end, finished) = pairs[0], pairs[-1]
        step_seconds = (end - begin) / (len(pairs) - 1)
        span = max(end - begin, now - begin - step_seconds)
        return (finished - before) / span if span > 0.0 and finished > before else None

    def _decide(self, now: float, ratio: float) -> tuple[str, str]:
        """Choose the mode by the predicted ratio gba / sync; return (mode, reason)."""
        enter, leave = self.options.enter, self.options.leave
        promise = f"gba promises {ratio:.2f} of sync"
        if self.mode == SYNC and ratio <= enter:
            return SYNC, f"{promise}, not more than {enter:.2f}"
        if self.mode == GBA and ratio >= leave:
            return GBA, f"{promise}, not less than {leave:.2f}"
        if now - self._mode_began < self.options.minimum_stay:
            return self.mode, f"{promise}, but {self.mode} began {now - self._mode_began:.3g} s ago"
        if self.mode == SYNC:
            return GBA, f"{promise}, more than {enter:.2f}"
        return SYNC, f"{promise}, less than {leave:.2f}"


def expected_maximum(columns: Sequence[Sequence[float]]) -> float:
    """Compute the expected maximum of one random value from each column: the integral of 1 - prod F_i, exactly."""
    ordered = [np.sort(np.asarray(column, np.float64)) for column in columns]
    steps = [np.diff(np.log(np.arange(1, len(c) + 1) / len(c)), prepend=0.0) for c in ordered]
    points = np.concatenate(ordered)
    order = np.argsort(points, kind="stable")
    points, below = points[order], np.exp(np.cumsum(np.concatenate(steps)[order]))
    low = max(float(column[0]) for column in ordered)
    first = int(np.searchsorted(points, low, side="right")) - 1  # from here on no F_i is 0
    return low + float(np.diff(points[first:]) @ (1.0 - below[first:-1]))


class RecentValues:
    """Recent (time, value) pairs: those of the last `seconds`, at least the FEW newest, at most MOST."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.pairs: deque[tuple[float, float]] = deque(maxlen=MOST)

    def add(self, now: float, value: float) -> None:
        """Append a measurement: its time and its value."""
        self.pairs.append((now, value))
        self.trim(now)

    def trim(self, now: float) -> None:
        """Remove the values older than `seconds`, except the FEW newest."""
        while len(self.pairs) > FEW and self.pairs[0][0] < now - self.seconds:
            self.pairs.popleft()

    @property
    def values(self) -> list[float]:
        """Recent values without their times, oldest first."""
        return [value for _, value in self.pairs]


class AutoSwitch:
    """Controller of switch=auto within a run, asked every `every` seconds. `now`: seconds since the run began.

    Each decision's fields are passed to `tell`, and are a line of auto.jsonl in the run directory."""

    def __init__(
        self, controller: AutoController, every: float, run_dir: Path, now: Callable[[], float],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:  # fmt: skip
        self.controller, self.every, self.now, self.tell = controller, every, now, tell
        self.path, self.last = run_dir / AUTO_FILE, dict[str, Any]()
        self._full_batch, self._step, self._next = 0, -1, 0.0

    def begin(self, mode: str, policy: Policy) -> None:
        """Reset the controller for a phase that begins in a mode."""
        self._full_batch, self._step = policy.phase.local_batch, policy.step
        self.controller.begin(self.now(), mode)

    def add_gradient(self, worker: int, samples: int, seconds: float) -> None:
        """Pass an announced gradient's compute time to the controller; a short batch (the last of a day) is ignored."""
        if samples >= self._full_batch:
            self.controller.add_measurement(self.now(), worker, seconds, samples)

    def poll(self, policy: Policy) -> SwitchDecision | None:
        """Pass the applied steps to the controller; every `every` seconds return its decision."""
        now = self.now()
        if policy.step != self._step:
            self._step = policy.step
            self.controller.on_step(now, policy.ledger.finished)
        if now < self._next:
            return None
        self._next = now + self.every
        return self.controller.decide(now, policy.live.intersection(policy.phase.workers))

    def log_decision(self, decision: SwitchDecision, position: dict[str, Any], obstacle: str) -> None:
        """Log a decision of the controller and the run's position; `obstacle`: why its mode is impossible, or empty."""
        self.last = {**position, **dataclasses.asdict(decision), **({"obstacle": obstacle} if obstacle else {})}
        with self.path.open("a") as out:
            out.write(json.dumps(self.last) + "\n")
        self.tell(self.last)

    def summary(self) -> dict[str, Any]:
        """Field `auto` of result.json: number of decisions, the decisions for a switch, and the last decision.

        The file also has the decisions that a failed coordinator made."""
        decisions = list[dict[str, Any]]()
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            with suppress(ValueError):  # a line that a full disk has cut off
                decisions.append(json.loads(line))
        switched = [each for each in decisions if each["wanted"] != each["mode"] and "obstacle" not in each]
        return {"looks": len(decisions), "switched": switched, "last": decisions[-1] if decisions else None}
