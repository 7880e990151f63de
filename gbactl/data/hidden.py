"""The hidden model behind synthetic labels: first order, pairs, drift, with no table to store.

Every id's weights come from one counter hash of (seed, field, id): five numbers of 12 bits, two for the first
order (today's and where it drifts to) and three for the vector of the pairwise part. About 20 ns a value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gbactl.hashing import GOLDEN, mix, mix_int

RANK = 3
PARTS = 2 + RANK
SHARES = {"first": 0.5, "numeric": 0.2, "pairs": 0.3}
Floats = NDArray[np.float32]


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x))."""
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def weights(keys: NDArray[np.uint64]) -> list[Floats]:
    """Five uniform numbers in [-1, 1) from each key."""
    hashed = mix(keys)
    parts = []
    for k in range(PARTS):
        bits = ((hashed >> np.uint64(12 * k)) & np.uint64(0xFFF)).astype(np.float32)
        parts.append(bits * np.float32(2.0**-11) - np.float32(1))
    return parts


class HiddenModel:
    """True logits of rows. `drift` is the angle (radians a day) by which the first order turns."""

    def __init__(self, cardinalities: tuple[int, ...], numeric: int, seed: int, drift: float) -> None:
        self.drift = drift
        self.scale = {name: 1.0 for name in SHARES}
        self.shift = 0.0
        self._base = [np.uint64(mix_int(seed * GOLDEN + f + 1)) for f in range(len(cardinalities))]
        self._size = np.array([(10 / c) ** 0.1 for c in cardinalities], np.float32)
        keys = np.arange(numeric, dtype=np.uint64) ^ np.uint64(mix_int(seed * GOLDEN))
        self._numeric = np.stack(weights(keys)) if numeric else np.zeros((PARTS, 0), np.float32)

    def _parts(self, numeric: Floats, ids: NDArray[np.int32], day: int) -> dict[str, Floats]:
        rows = len(ids)
        turn = np.float32(np.cos(self.drift * day)), np.float32(np.sin(self.drift * day))
        first, squares = np.zeros((2, rows), np.float32)
        sums = np.zeros((RANK, rows), np.float32)
        for f, base in enumerate(self._base):
            now, later, *vector = weights(ids[:, f].astype(np.uint64) ^ base)
            first += self._size[f] * (turn[0] * now + turn[1] * later)
            for k in range(RANK):
                part = self._size[f] * vector[k]
                sums[k] += part
                squares += part * part
        slope = turn[0] * self._numeric[0] + turn[1] * self._numeric[1]
        crossed = numeric @ (self._numeric[2:].T * np.float32(0.5))
        sums += crossed.T
        squares += (numeric * numeric) @ (self._numeric[2:] ** 2 * np.float32(0.25)).sum(axis=0)
        pairs = np.float32(0.5) * ((sums * sums).sum(axis=0) - squares)
        return {"first": first, "numeric": numeric @ slope, "pairs": pairs}

    def logits(self, numeric: Floats, ids: NDArray[np.int32], day: int) -> Floats:
        """float32[n] true logits, before noise."""
        parts = self._parts(numeric, ids, day)
        total = np.full(len(ids), self.shift, np.float32)
        for name, part in parts.items():
            total += np.float32(self.scale[name]) * part
        return total

    def calibrate(self, numeric: Floats, ids: NDArray[np.int32], signal: float, ctr: float) -> None:
        """Scale the parts to their shares of a logit of deviation `signal`, and meet the click rate."""
        for name, part in self._parts(numeric, ids, 0).items():
            spread = float(part.std())
            self.scale[name] = signal * SHARES[name] ** 0.5 / spread if spread > 0 else 0.0
        raw = self.logits(numeric, ids, 0)
        low, high = -30.0, 30.0
        for _ in range(40):
            self.shift = (low + high) / 2
            too_low = sigmoid(raw + np.float32(self.shift)).mean() < ctr
            low, high = (self.shift, high) if too_low else (low, self.shift)
