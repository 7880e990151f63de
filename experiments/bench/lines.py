"""The lines of the bench: what is measured against what, by alternating rounds, and the target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sides import Bench, Side, gbactl, hvd_peer, reference, rpc_peer

Tell = Callable[[str], None]


@dataclass
class Line:
    """A measured line: `values` one a round; met when the median is at least (or at most) the target."""

    name: str
    what: str
    values: list[float]
    target: float | None = None
    at_least: bool = True
    percent: bool = False
    note: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Of the rounds."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool | None:
        """None without a target."""
        if self.target is None:
            return None
        return self.median >= self.target if self.at_least else self.median <= self.target


@dataclass(frozen=True)
class Pair:
    """variant / base, to be at least `target`."""

    name: str
    what: str
    variant: Side
    base: Side
    target: float

    def measure(self, rounds: int, tell: Tell) -> Line:
        """Alternate the two sides, base first."""
        line = Line(self.name, self.what, [], self.target)
        for number in range(rounds):
            base = self.base()
            variant = self.variant()
            ratio = variant["rate"] / base["rate"]
            line.values.append(ratio)
            line.rounds.append({"base": base, "variant": variant, "ratio": ratio})
            sides = f"{variant['rate']:,.0f} / {base['rate']:,.0f}"
            tell(f"{self.name} {number + 1}/{rounds}: {sides} = {ratio:.3f}")
        rates = [statistics.median(r[side]["rate"] for r in line.rounds) for side in ("variant", "base")]
        line.note = f"{rates[0]:,.0f} / {rates[1]:,.0f} samples/s"
        return line


def pairs(bench: Bench) -> list[Pair]:
    """Every line that is a ratio of two rates."""
    shm, tcp = (gbactl(bench, "async", 4, 512, f"cluster.transport={t}") for t in ("shm", "tcp"))
    alone = reference(bench, 4, 512)
    return [
        Pair("async-shm", "async 4+1, shared memory / reference", shm, alone, 0.90),
        Pair("async-tcp", "async 4+1, TCP / reference", tcp, alone, 0.78),
        Pair("gba", "gba 4+1 / async 4+1", gbactl(bench, "gba", 4, 512), shm, 0.97),
        Pair("rpc", "async 4+1 / torch.distributed.rpc 4+1", shm, rpc_peer(bench, 4, 512), 1.2),
        *_sync_pairs(bench),
    ]


def _sync_pairs(bench: Bench) -> Iterator[Pair]:
    for batch, target in ((512, 0.62), (4096, 0.80)):
        sync = gbactl(bench, "sync", 2, batch, "collective=horovod")
        what = f"sync 2+1 on Horovod, batch {batch}"
        yield Pair(f"sync-{batch}", f"{what} / reference", sync, reference(bench, 2, batch), target)
        yield Pair(f"hvd-{batch}", f"{what} / plain Horovod script", sync, hvd_peer(bench, 2, batch), 1.0)
