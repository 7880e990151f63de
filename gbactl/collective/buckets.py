"""Buckets of a gradient vector, summed by all-reduce while the backward pass computes the rest of the gradient.

A vector is summed in pieces ("buckets") that are fixed and named for the whole run: one message round each. A bucket is
started as soon as its last parameter has its gradient and every bucket behind it is started. The order of starts is
fixed, whatever the order in which gradients are computed, so that all ranks agree. Costs a few microseconds a
parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gbactl.collective.base import Collective
from gbactl.kernels.half_precision import Codec, round_here


def bucket_edges(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """Cut a vector into at most `count` buckets of nearly equal length, with edges between parameters.

    `sizes` are the parameters' lengths in the order of the flat vector. A backward pass fills the vector from its
    end, so the last bucket is ready first. Bucket i is [edges[i], edges[i + 1])."""
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    wanted = [total * (i + 1) / count for i in range(count - 1)]
    inner = {int(ends[np.abs(ends - at).argmin()]) for at in wanted}
    return (0, *sorted(inner - {0, total}), total)


class OverlappedGradient:
    """Gradient vector whose buckets are summed over ranks while a backward pass fills it.

    It has float32[edges[-1]] and is filled parameter by parameter, once a step. The collective sums bucket i of `edges`
    as `name.i`. `spans`: each parameter's (low, high) in the vector; none of them crosses an edge of a bucket. `codec`:
    rounds the summands and the sums, as values of two bytes on the wire would be."""

    def __init__(
        self, collective: Collective, name: str, edges: Sequence[int], buffer: Any, spans: Sequence[tuple[int, int]],
        codec: Codec | None = None,
    ) -> None:  # fmt: skip
        self.collective, self.name, self.edges, self.buffer, self.codec = collective, name, edges, buffer, codec
        self._bucket = [self._bucket_of(*span) for span in spans]
        self._parameters = [self._bucket.count(bucket) for bucket in range(len(edges) - 1)]
        self.begin()

    def _bucket_of(self, low: int, high: int) -> int:
        """Return the index of the bucket that contains [low, high). Raises ValueError if no bucket does."""
        for bucket, (begin, end) in enumerate(pairwise(self.edges)):
            if begin <= low and high <= end:
                return bucket
        raise ValueError(f"a parameter at [{low}, {high}) lies in no single bucket of {self.edges}")

    def begin(self) -> None:
        """Start a new step, in which no parameter's gradient is computed yet."""
        self._missing = list(self._parameters)
        self._next = len(self._parameters) - 1
        self._started: list[tuple[Any, Any]] = []

    def filled(self, parameter: int) -> None:
        """Record that a parameter's gradient is computed, and start the all-reduce of buckets that are now complete."""
        self._missing[self._bucket[parameter]] -= 1
        while self._next >= 0 and self._missing[self._next] <= 0:
            self._start()

    def flush(self) -> None:
        """Start the all-reduce of all remaining buckets, without waiting."""
        while self._next >= 0:
            self._start()

    def wait(self) -> None:
        """Block until the gradient vector holds the sums over all ranks; then start a new step."""
        self.flush()
        try:
            for handle, piece in self._started:
                self.collective.wait(handle)
                round_here(self.codec, piece)
        finally:
            self.begin()

    def _start(self) -> None:
        number, self._next = self._next, self._next - 1
        piece = self.buffer[self.edges[number] : self.edges[number + 1]]
        round_here(self.codec, piece)
        self._started.append((self.collective.start(f"{self.name}.{number}", piece), piece))
