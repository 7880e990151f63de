"""The kind of fault `messages`: what happens to a message between a worker and a server or the coordinator. Pure.

Dropped, delayed, duplicated, or delayed so shortly that the next one overtakes it (reordered); each with a
probability, drawn for every transmission on every connection and direction by itself. About 5 us a draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from gbactl.errors import ConfigError
from gbactl.faults.base import Fault, kind
from gbactl.faults.draws import exponential, key_of, uniform

_DIRECTIONS = 4  # keeps these draws apart from the plan's others
_OVERTAKEN = 0.002  # seconds


@kind("messages")
@dataclass(frozen=True, kw_only=True)
class Messages(Fault):
    """Probabilities of a message of a worker, in either direction; `delay_seconds`: mean of an exponential delay."""

    slows: ClassVar[bool] = False
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0
    delay_seconds: float = 0.02

    def check(self, where: str) -> None:
        """See Fault."""
        for name in ("drop", "duplicate", "reorder", "delay"):
            value = getattr(self, name)
            if not 0 <= value <= 0.5:
                raise ConfigError(f"{where}.{name}={value} is a probability from 0 to 0.5.")
        if not any((self.drop, self.duplicate, self.reorder, self.delay)):
            raise ConfigError(f"{where} (kind messages) needs one of drop, duplicate, reorder and delay above 0.")
        if self.delay_seconds <= 0:
            raise ConfigError(f"{where}.delay_seconds={self.delay_seconds} must be positive.")
        if self.servers is not None or self.workers is None:
            raise ConfigError(f"{where}: messages are a worker's; name workers, and leave servers out.")


class Fate(NamedTuple):
    """Of one transmission: the delays in seconds of the copies that arrive, none if it is lost."""

    delays: tuple[float, ...]
    names: tuple[str, ...] = ()


class Weather:
    """One direction of one connection of a worker."""

    def __init__(self, plans: Sequence[tuple[Messages, int]], peer: str, outward: bool) -> None:
        direction = (ord(peer[0]), int(peer[1:] or 0), int(outward))
        self._plans = [(plan, key_of(_DIRECTIONS, key, *direction)) for plan, key in plans]
        self._turn = 0

    def draw(self) -> Fate:
        """What becomes of the next transmission."""
        self._turn += 1
        delay, copies, names = 0.0, 1, list[str]()
        for plan, key in self._plans:
            fates = [uniform(key, 8 * self._turn + n) for n in range(5)]
            if fates[0] < plan.drop:
                return Fate((), ("dropped",))
            if fates[1] < plan.duplicate:
                copies, names = copies + 1, [*names, "duplicated"]
            if fates[2] < plan.reorder:
                delay, names = delay + _OVERTAKEN, [*names, "reordered"]
            if fates[3] < plan.delay:
                delay, names = delay + plan.delay_seconds * exponential(fates[4]), [*names, "delayed"]
        return Fate((delay,) * copies, tuple(names))
