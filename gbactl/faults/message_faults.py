"""Message faults (kind `messages`): loss, delay, duplication and reordering of a worker's messages. Pure.

They concern messages between a worker and a server or the coordinator. A reordered message is delayed so shortly that
only the next one overtakes it. Each fault has a probability, drawn for every transmission on every connection and
direction separately, while the fault is active: always, or from a step, a time or the times of a distribution (see
fault_kinds.py). A draw costs about 5 us.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from gbactl.checked_dataclasses import Bounds, Interval
from gbactl.errors import require
from gbactl.faults.fault_kinds import NextOccurrence, TimedFault, kind
from gbactl.hashes_and_random_numbers import exponential, key_of, uniform

_DIRECTIONS = 4  # separates these random numbers from the plan's others
_OVERTAKEN = 0.002  # seconds by which a reordered message is delayed
Probability = Annotated[float, Bounds(at_least=0, at_most=0.5)]


@kind("messages")
@dataclass(frozen=True, kw_only=True)
class MessageFaults(TimedFault):
    """Fault that disturbs the messages from and to a worker with given probabilities.

    A delay is exponential with the mean `delay_seconds`. The disturbance lasts `seconds` after each occurrence (null:
    to the end of the run); without `step`, `time` and `mtbf` it lasts the whole run."""

    slows: ClassVar[bool] = False
    drop: Probability = 0.0
    duplicate: Probability = 0.0
    reorder: Probability = 0.0
    delay: Probability = 0.0
    delay_seconds: Annotated[float, Bounds(above=0, at_most=3600)] = 0.02
    seconds: Interval | None = None

    def check(self, where: str) -> None:
        any_probability = any((self.drop, self.duplicate, self.reorder, self.delay))
        require(any_probability, f"{where} (kind messages) needs one of drop, duplicate, reorder and delay above 0.")
        of_workers = self.workers is not None and self.servers is None
        require(of_workers, f"{where}: messages are a worker's; name workers, and leave servers out.")
        super().check(where)
        require(self.seconds is None or bool(self.given), f"{where}.seconds belongs to step, time or mtbf.")
        require(self.seconds is not None or self.mtbf is None, f"{where}.mtbf needs seconds, its duration each time.")


class ActivePeriods:
    """Periods in which one message fault is active. Stateful: time must not go back."""

    def __init__(self, fault: MessageFaults, key: int) -> None:
        self._next, self._length = NextOccurrence(fault, key), math.inf if fault.seconds is None else fault.seconds
        self._until = -math.inf if fault.given else math.inf
        self._now = -math.inf

    def is_active(self, step: int, seconds: float) -> bool:
        """Whether the fault is active at a global step and a time since training began (both negative before that)."""
        while self._next.is_due(step, seconds):
            self._until = min(seconds, self._next.seconds) + self._length  # a period due by step begins at this call
            self._next.next()
        self._now = max(self._now, seconds)
        return self._now < self._until


class AllActivePeriods(dict[int, ActivePeriods]):
    """Periods in which message faults are active, for all faults of a plan by index."""

    def active_indexes(self, step: int, seconds: float) -> frozenset[int]:
        """Return the indexes of the message faults that are active at a global step and a time since training began."""
        return frozenset(index for index, period in self.items() if period.is_active(step, seconds))


class TransmissionOutcome(NamedTuple):
    """Outcome of one transmission: the delay in seconds of each copy that arrives; none if the message is lost."""

    delays: tuple[float, ...]
    names: tuple[str, ...] = ()


class MessageFaultStream:
    """Random message faults in one direction of a worker's connection. `faults`: (index, fault, random key)."""

    def __init__(self, faults: Sequence[tuple[int, MessageFaults, int]], peer: str, outward: bool) -> None:
        direction = (ord(peer[0]), int(peer[1:] or 0), int(outward))
        self._faults = [(index, fault, key_of(_DIRECTIONS, key, *direction)) for index, fault, key in faults]
        self._transmissions = 0

    def draw(self, active: Collection[int]) -> TransmissionOutcome:
        """Draw the outcome of the next transmission, while the message faults `active` are active."""
        self._transmissions += 1
        delay, copies, names = 0.0, 1, list[str]()
        for index, fault, key in self._faults:
            if index not in active:
                continue
            draws = [uniform(key, 8 * self._transmissions + n) for n in range(5)]
            if draws[0] < fault.drop:
                return TransmissionOutcome((), ("dropped",))
            if draws[1] < fault.duplicate:
                copies, names = copies + 1, [*names, "duplicated"]
            if draws[2] < fault.reorder:
                delay, names = delay + _OVERTAKEN, [*names, "reordered"]
            if draws[3] < fault.delay:
                delay, names = delay + fault.delay_seconds * exponential(draws[4]), [*names, "delayed"]
        return TransmissionOutcome((delay,) * copies, tuple(names))
