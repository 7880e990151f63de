"""Ranges of a day's samples, in order: what of it is still to be trained. Pure.

A batch is cut from the ranges as if they were one after the other without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gbactl.policies.records import Drop, Ledger, Step

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def merged(found: Iterable[Range]) -> Ranges:
    """The same samples, with neighbours joined and nothing empty; `found` is ascending."""
    out: list[Range] = []
    for low, high in found:
        if low >= high:
            continue
        if out and out[-1][1] == low:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return tuple(out)


def total(ranges: Iterable[Range]) -> int:
    """Samples in all."""
    return sum(high - low for low, high in ranges)


def pieces(ranges: Iterable[Range], start: int, samples: int) -> list[Range]:
    """Where samples [start, start + samples) of the joined ranges lie; less where they end before."""
    found, end = [], start + samples
    for low, high in ranges:
        size = high - low
        first, last = max(0, start), min(size, end)
        if first < last:
            found.append((low + first, low + last))
        start, end = start - size, end - size
        if end <= 0:
            break
    return found


def after(ranges: Ranges, samples: int) -> Ranges:
    """What is left once the first `samples` are gone."""
    return merged(pieces(ranges, samples, total(ranges)))


def flat(ranges: Ranges) -> list[int]:
    """[low, high, low, high, ...], for a message; empty where one range says it all."""
    return [] if len(ranges) < 2 else [number for pair in ranges for number in pair]


def of_phase(first: int, samples: int, numbers: Sequence[int]) -> Ranges:
    """The ranges that a message told: `numbers` as `flat` made them, else one that begins at `first`."""
    if not numbers:
        return ((first, first + samples),)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


class Finished:
    """Which batches of a phase have a fate, and the ledger of those. O(1) a batch; holds those out of order alone."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._below = 0
        self._beyond: set[int] = set()

    def settle(self, step: Step) -> None:
        """A step was ordered."""
        self.ledger.settle(step)
        for member in step.members:
            self._add(member.batch)

    def drop(self, drop: Drop) -> None:
        """A gradient was discarded for good."""
        self.ledger.lost += drop.samples
        self._add(drop.batch)

    def forgo(self, batches: Iterable[int], samples: int) -> None:
        """Batches in flight, of `samples` in all, were given up."""
        self.ledger.decayed += samples
        for batch in batches:
            self._add(batch)

    def _add(self, batch: int) -> None:
        self._beyond.add(batch)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1

    def unread(self, ranges: Ranges, local_batch: int) -> Ranges:
        """What of a phase's ranges has no fate: a job that goes on from here has yet to read it."""
        edges = [self._below, *(batch + 1 for batch in sorted(self._beyond))]
        ends = [*sorted(self._beyond), -(-total(ranges) // local_batch)]
        found: list[Range] = []
        for low, high in zip(edges, ends, strict=True):
            if low < high:
                found += pieces(ranges, low * local_batch, (high - low) * local_batch)
        return merged(found)
