"""Ranges of a day's samples that are still to be trained, in order. Pure.

Batches are cut from the ranges as if they were joined without gaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gbactl.policies.policy import Drop, Ledger, Step

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def merge_ranges(found: Iterable[Range]) -> Ranges:
    """Join adjacent ranges of samples and drop empty ones; `found` must be ascending."""
    out: list[Range] = []
    for low, high in found:
        if low >= high:
            continue
        if out and out[-1][1] == low:
            out[-1] = (out[-1][0], high)
        else:
            out.append((low, high))
    return tuple(out)


def total_samples(ranges: Iterable[Range]) -> int:
    """Return the number of samples in all ranges together."""
    return sum(high - low for low, high in ranges)


def ranges_within(ranges: Iterable[Range], start: int, samples: int) -> list[Range]:
    """Return the ranges that contain samples [start, start + samples) of the concatenated `ranges`.

    They are fewer where the ranges end before."""
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


def without_first(ranges: Ranges, samples: int) -> Ranges:
    """Return the ranges without their first `samples` samples."""
    return merge_ranges(ranges_within(ranges, samples, total_samples(ranges)))


def encode_ranges(ranges: Ranges) -> list[int]:
    """Encode ranges as [low, high, low, high, ...]; [] for a single range, which other fields of a message give."""
    return [] if len(ranges) < 2 else [number for pair in ranges for number in pair]


def decode_ranges(first: int, samples: int, numbers: Sequence[int]) -> Ranges:
    """Decode ranges from `numbers` (see `encode_ranges`); [] means one range that begins at sample `first`."""
    if not numbers:
        return ((first, first + samples),)
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


class FinishedBatches:
    """Finished batches of a phase (trained, decayed or lost), and the numbers of their samples by outcome.

    O(1) a batch; stores only those out of order."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._below = 0
        self._beyond: set[int] = set()

    def add_step(self, step: Step) -> None:
        """Record the batches of an ordered step as finished."""
        self.ledger.count_step(step)
        for member in step.members:
            self._add(member.batch)

    def drop(self, drop: Drop) -> None:
        """Record the batch of a discarded gradient as finished, and its samples as lost."""
        self.ledger.lost += drop.samples
        self._add(drop.batch)

    def add_abandoned(self, batches: Iterable[int], samples: int) -> None:
        """Record abandoned batches in flight as finished, and their `samples` samples as decayed."""
        self.ledger.decayed += samples
        for batch in batches:
            self._add(batch)

    def _add(self, batch: int) -> None:
        self._beyond.add(batch)
        while self._below in self._beyond:
            self._beyond.remove(self._below)
            self._below += 1

    def remaining(self, ranges: Ranges, local_batch: int) -> Ranges:
        """Return the ranges of a phase's samples that are not finished, for a resumed job to train on."""
        edges = [self._below, *(batch + 1 for batch in sorted(self._beyond))]
        ends = [*sorted(self._beyond), -(-total_samples(ranges) // local_batch)]
        found: list[Range] = []
        for low, high in zip(edges, ends, strict=True):
            if low < high:
                found += ranges_within(ranges, low * local_batch, (high - low) * local_batch)
        return merge_ranges(found)
