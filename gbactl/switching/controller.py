"""`switch=auto`: whether `sync` or `gba` would deliver more on the cluster as it is now. Pure: no clock, no I/O.

From each worker's last step times it predicts `sync` (G over the expected maximum of a step, which waits for the
slowest, and what the all-reduce adds) and `gba` (the sum of the workers' rates). What a mode delivers beside what its
step times promise is learned while the run is in it; of the mode it is in, what is delivered is known. What is not
known yet is taken in favour of `sync`, which needs no excuse. A gradient costs 2 us, a look 20 us a worker.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SYNC, GBA = "sync", "gba"
MODES = (SYNC, GBA)
FEW, MOST = 4, 64  # remembered however old they are, and however new


@dataclass(frozen=True)
class AutoOptions:
    """Seconds: `window` that is remembered, `minimum_stay` in a mode. Shares: how much more than `sync` `gba` must
    promise to be worth it (`margin`), and how far past that point it must be, either way (`hysteresis`)."""

    window: float = 10.0
    margin: float = 0.1
    hysteresis: float = 0.1
    minimum_stay: float = 30.0

    @property
    def enter(self) -> float:
        """gba / sync from which on `gba` is entered."""
        return (1.0 + self.margin) * (1.0 + self.hysteresis)

    @property
    def leave(self) -> float:
        """gba / sync below which it is left."""
        return (1.0 + self.margin) / (1.0 + self.hysteresis)


@dataclass(frozen=True)
class Look:
    """One look at the cluster. `sync`, `gba`: samples/s that they would deliver; `delivered`: what the present mode
    does (None: not known yet); `slowest`: expected seconds of the slowest of a step, `overhead`: what a step takes
    beside (None: `sync` was not seen yet); `efficiency` of `gba`: delivered over the sum of the workers' rates, before
    it was seen the share of `sync`'s step that is computing."""

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


class Controller:
    """Told of every gradient and step, asked now and then. `local_batch`: samples of a worker in a `sync` step."""

    def __init__(self, workers: int, global_batch: int, local_batch: int, options: AutoOptions) -> None:
        self.workers, self.global_batch, self.local_batch = workers, global_batch, local_batch
        self.options, self.mode = options, ""
        self._each: dict[int, Recent] = {}
        self._steps = Recent(options.window)
        self._overheads = Recent(options.window)
        self._efficiency: float | None = None
        self._since, self._slowest = 0.0, 0.0

    def begin(self, now: float, mode: str) -> None:
        """A phase begins in `mode`: what is delivered is counted from here."""
        if mode != self.mode:
            self.mode, self._since = mode, now
        self._steps.pairs.clear()
        self._slowest = 0.0

    def seen(self, now: float, worker: int, seconds: float, samples: int) -> None:
        """A gradient of `samples` took a worker `seconds` to compute."""
        if samples > 0 and seconds > 0.0:
            self._slowest = max(self._slowest, seconds)
            self._each.setdefault(worker, Recent(self.options.window)).add(now, seconds / samples)

    def stepped(self, now: float, finished: int) -> None:
        """A step was ordered; so many samples of the phase have a fate now."""
        if self.mode == SYNC and self._steps.pairs and self._slowest:
            took = now - self._steps.pairs[-1][0]
            self._overheads.add(now, max(0.0, took - self._slowest))
        self._steps.add(now, finished)
        self._slowest = 0.0

    def gone(self, worker: int) -> None:
        """A worker is lost."""
        self.workers -= 1
        self._each.pop(worker, None)

    def look(self, now: float) -> Look | None:
        """What to do now; None in other modes, and until every worker was seen a few times."""
        if self.mode not in MODES or len(self._each) < self.workers or not self._each:
            return None
        for recent in self._each.values():
            recent.trim(now)
        if min(len(recent.pairs) for recent in self._each.values()) < FEW:
            return None
        slowest = self.local_batch * expected_maximum([recent.values for recent in self._each.values()])
        rates = sum(len(recent.pairs) / sum(recent.values) for recent in self._each.values())
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
        return Look(
            now, self.mode, wanted, sync, gba, delivered, slowest, overhead, self._efficiency, len(self._each), reason
        )

    def _delivered(self, now: float) -> float | None:
        """Samples/s of the phase so far, as far as it is remembered; a step that is overdue counts against it."""
        self._steps.trim(now)
        pairs = self._steps.pairs
        if len(pairs) < FEW:
            return None
        (begin, before), (end, finished) = pairs[0], pairs[-1]
        usual = (end - begin) / (len(pairs) - 1)
        span = max(end - begin, now - begin - usual)
        return (finished - before) / span if span > 0.0 and finished > before else None

    def _decide(self, now: float, ratio: float) -> tuple[str, str]:
        """(mode, why)."""
        enter, leave = self.options.enter, self.options.leave
        promise = f"gba promises {ratio:.2f} of sync"
        if self.mode == SYNC and ratio <= enter:
            return SYNC, f"{promise}, not more than {enter:.2f}"
        if self.mode == GBA and ratio >= leave:
            return GBA, f"{promise}, not less than {leave:.2f}"
        if now - self._since < self.options.minimum_stay:
            return self.mode, f"{promise}, but {self.mode} began {now - self._since:.3g} s ago"
        if self.mode == SYNC:
            return GBA, f"{promise}, more than {enter:.2f}"
        return SYNC, f"{promise}, less than {leave:.2f}"


def expected_maximum(columns: Sequence[Sequence[float]]) -> float:
    """Mean of the largest of one draw from each column's values, exactly: the integral of 1 - prod F_i."""
    ordered = [np.sort(np.asarray(column, np.float64)) for column in columns]
    steps = [np.diff(np.log(np.arange(1, len(c) + 1) / len(c)), prepend=0.0) for c in ordered]
    points = np.concatenate(ordered)
    order = np.argsort(points, kind="stable")
    points, below = points[order], np.exp(np.cumsum(np.concatenate(steps)[order]))
    low = max(float(column[0]) for column in ordered)
    first = int(np.searchsorted(points, low, side="right")) - 1  # from here on no F_i is 0
    return low + float(np.diff(points[first:]) @ (1.0 - below[first:-1]))


class Recent:
    """(time, value) pairs of the last `seconds`: the FEW newest at least, MOST at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.pairs: deque[tuple[float, float]] = deque(maxlen=MOST)

    def add(self, now: float, value: float) -> None:
        """The newest pair."""
        self.pairs.append((now, value))
        self.trim(now)

    def trim(self, now: float) -> None:
        """Forget what is too old."""
        while len(self.pairs) > FEW and self.pairs[0][0] < now - self.seconds:
            self.pairs.popleft()

    @property
    def values(self) -> list[float]:
        """Oldest first."""
        return [value for _, value in self.pairs]
