"""Links and trainings of the hosts study, and its cache of measurements."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Link:
    """Link between two hosts: `rate` as tc writes it ("": unlimited), `delay` in ms one way (0: the machine's own)."""

    rate: str
    delay: float

    def __str__(self) -> str:
        return f"{self.rate or 'any'}-{self.delay:g}ms"


@dataclass(frozen=True)
class Training:
    """One training on a link; `wire`: transport.wire_dtype."""

    link: Link
    mode: str
    seed: int = 0
    wire: str = "fp32"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of this training."""
        return (f"mode={self.mode}", f"seed={self.seed}", f"transport.wire_dtype={self.wire}")

    def __str__(self) -> str:
        return f"{self.link}-{self.mode}-{self.wire}-s{self.seed}"


class Kept:
    """Cache of results, one file each, by code version."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder, self.version = folder, version

    def path(self, name: str, suffix: str = "json") -> Path:
        """Path of the result of this name."""
        return self.folder / f"{name}-{self.version}.{suffix}"

    def get(self, name: str, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the result of this name; where it does not exist, compute it with `find` and keep it."""
        path = self.path(name)
        if not path.exists():
            partial = path.with_suffix(".partial")
            partial.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(find()))
            partial.replace(path)
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def links(rates: Sequence[str], delays: Sequence[float]) -> list[Link]:
    """Make a link of every rate with every delay."""
    return [Link(rate, delay) for delay in delays for rate in rates]


def waiting(delay: float, own_us: float) -> float | None:
    """Seconds that the relay must hold frames, one way, given that it takes `own_us` itself.

    None: there is no relay.
    """
    return max(0.0, delay * 1e-3 - own_us * 1e-6) if delay else None
