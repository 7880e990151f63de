"""Synthetic Criteo-like clicks from a hidden factorisation model, generated in parallel, reproducible from a seed.

Chunks of 65,536 rows are seeded by (seed, day, chunk), so the bytes do not depend on the number of threads
(numpy releases the interpreter lock, so threads use all cores). Memory is a few MB a thread.

The hidden model has a first order, pairs and drift, and no table to store. Every id's weights come from one counter
hash of (seed, field, id): five numbers of 12 bits, two for the first order (today's and the one it drifts to) and three
for the vector of the pairwise part. About 20 ns a value.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Bounds, Days, Seed
from gbactl.data.dataset import Batch, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.data.writer import WrittenArrays, allocate
from gbactl.hashing import GOLDEN, mix, mix_int

CHUNK = 1 << 16
BINS = 1 << 14
SMALLEST = 10
RANK = 3
PARTS = 2 + RANK
SHARES = {"first": 0.5, "numeric": 0.2, "pairs": 0.3}
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Synthetic:
    """Options of the data source data=synthetic."""

    rows_per_day: Annotated[int, Bounds(at_least=1, at_most=10**10)] = 200_000
    days: Days = 5
    numeric: Annotated[int, Bounds(at_least=0, at_most=10_000)] = 13
    fields: Annotated[int, Bounds(at_least=1, at_most=10_000)] = 26
    max_cardinality: Annotated[int, Bounds(at_least=SMALLEST, at_most=2**31 - 1)] = 100_000
    skew: Annotated[float, Bounds(at_least=0, at_most=10)] = 1.05
    signal: Annotated[float, Bounds(at_least=0, at_most=100)] = 1.6
    noise: Annotated[float, Bounds(at_least=0, at_most=100)] = 0.3
    drift: Annotated[float, Bounds(at_least=0, at_most=100)] = 0.1
    ctr: Annotated[float, Bounds(at_least=1e-6, at_most=0.999999)] = 0.25
    seed: Seed = 1

    def sources(self) -> list[SourceFile]:
        """Return no source files, as the data are generated."""
        return []

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of ids of each field: from 10 to `max_cardinality`, evenly spaced on a logarithmic scale."""
        return tuple(int(c) for c in np.geomspace(SMALLEST, self.max_cardinality, self.fields).round())

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        maps = allocate(folder, self.rows_per_day * self.days, self.numeric, self.fields)
        seen = Generator(self).fill(maps, progress)
        names = [f"day{d}" for d in range(self.days)]
        splits = [(name, d * self.rows_per_day, (d + 1) * self.rows_per_day) for d, name in enumerate(names)]
        numeric, fields = _names("I", self.numeric), _names("C", self.fields)
        best = {name: best_auc(seen[d]) for d, name in enumerate(names)}
        return WrittenArrays("days", Schema(self.numeric, self.cardinalities), splits, numeric, fields, best_auc=best)


def _names(letter: str, count: int) -> list[str]:
    return [f"{letter}{i + 1}" for i in range(count)]


def zipf(uniform: NDArray[np.float64], size: int, skew: float) -> NDArray[np.int32]:
    """Draw Zipf-distributed ids in [0, size), id 0 the most frequent, by inverting the continuous power law.

    `skew` is the exponent: 0 is uniform, 1 is Zipf's law.
    """
    power = 1.0 - skew
    if abs(power) < 1e-6:
        x = np.exp(uniform * np.log(size + 1.0))
    else:
        x = (1.0 + uniform * ((size + 1.0) ** power - 1.0)) ** (1.0 / power)
    ids: NDArray[np.int32] = np.clip(x.astype(np.int64) - 1, 0, size - 1).astype(np.int32)
    return ids


def best_auc(seen: NDArray[np.int64]) -> float:
    """Compute the AUC of the true click probabilities, the best possible one.

    From counts int64[2, bins] by (label, bin of the true logit)."""
    negatives, positives = seen.astype(np.float64)
    below = np.cumsum(negatives) - negatives / 2
    pairs = negatives.sum() * positives.sum()
    return float((positives * below).sum() / pairs) if pairs else float("nan")


class Generator:
    """Generator of rows, chunk by chunk; its memory (the hidden model) does not grow with their number."""

    def __init__(self, options: Synthetic) -> None:
        self.options = options
        self.hidden = HiddenModel(options.cardinalities, options.numeric, options.seed, options.drift)
        _, numeric, ids = self._features(self._random(0, 0), min(CHUNK, 1 << 15))
        self.hidden.calibrate(numeric, ids, options.signal, options.ctr)

    def _random(self, day: int, chunk: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.options.seed, day, chunk]))

    def _features(
        self, random: np.random.Generator, rows: int
    ) -> tuple[np.random.Generator, NDArray[np.float32], NDArray[np.int32]]:
        o = self.options
        numeric = random.standard_normal((rows, o.numeric), dtype=np.float32)
        ids = np.empty((rows, o.fields), np.int32)
        for f, size in enumerate(o.cardinalities):
            ids[:, f] = zipf(random.random(rows), size, o.skew)
        return random, numeric, ids

    def chunk(self, day: int, chunk: int, rows: int) -> tuple[Batch, NDArray[np.int64]]:
        """Generate the rows of one chunk, and their counts by (label, bin of the true logit)."""
        random, numeric, ids = self._features(self._random(day, chunk), rows)
        logit = self.hidden.logits(numeric, ids, day)
        noisy = logit + np.float32(self.options.noise) * random.standard_normal(rows, dtype=np.float32)
        labels = (random.random(rows, dtype=np.float32) < sigmoid(noisy)).astype(np.uint8)
        bins = np.clip((logit + 12) * (BINS / 24), 0, BINS - 1).astype(np.int64)
        return Batch(labels, numeric, ids), np.bincount(bins + labels * np.int64(BINS), minlength=2 * BINS)

    def fill(self, maps: Batch, progress: Progress) -> NDArray[np.int64]:
        """Generate all days into the memory-mapped arrays.

        Return counts int64[days, 2, bins] by (label, bin of the true logit).
        """
        o, seen = self.options, np.zeros((self.options.days, 2 * BINS), np.int64)
        tasks = [(d, c, lo) for d in range(o.days) for c, lo in enumerate(range(0, o.rows_per_day, CHUNK))]

        def work(day: int, chunk: int, lo: int) -> tuple[int, NDArray[np.int64]]:
            rows = min(CHUNK, o.rows_per_day - lo)
            batch, counts = self.chunk(day, chunk, rows)
            at = slice(day * o.rows_per_day + lo, day * o.rows_per_day + lo + rows)
            maps.labels[at], maps.numeric[at], maps.ids[at] = batch.labels, batch.numeric, batch.ids
            return day, counts

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            done = [pool.submit(work, *task) for task in tasks]
            try:
                for i, future in enumerate(as_completed(done)):
                    day, counts = future.result()
                    seen[day] += counts
                    progress("generating", (i + 1) / len(tasks))
            finally:
                pool.shutdown(cancel_futures=True)
        return seen.reshape(o.days, 2, BINS)


def sigmoid(x: Floats) -> Floats:
    """Compute 1 / (1 + exp(-x))."""
    return np.float32(1) / (np.float32(1) + np.exp(-x))


def weights(keys: NDArray[np.uint64]) -> list[Floats]:
    """Hash each key to five uniformly distributed numbers in [-1, 1)."""
    hashed = mix(keys)
    parts = []
    for k in range(PARTS):
        bits = ((hashed >> np.uint64(12 * k)) & np.uint64(0xFFF)).astype(np.float32)
        parts.append(bits * np.float32(2.0**-11) - np.float32(1))
    return parts


class HiddenModel:
    """Hidden model that determines the rows' true click probabilities.

    `drift` is the angle (radians a day) by which the first-order weights rotate.
    """

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
        """Compute the rows' true logits before noise, float32[n]."""
        parts = self._parts(numeric, ids, day)
        total = np.full(len(ids), self.shift, np.float32)
        for name, part in parts.items():
            total += np.float32(self.scale[name]) * part
        return total

    def calibrate(self, numeric: Floats, ids: NDArray[np.int32], signal: float, ctr: float) -> None:
        """Scale the model's terms so that logits have the deviation `signal`, and shift them to the click rate."""
        for name, part in self._parts(numeric, ids, 0).items():
            spread = float(part.std())
            self.scale[name] = signal * SHARES[name] ** 0.5 / spread if spread > 0 else 0.0
        raw = self.logits(numeric, ids, 0)
        low, high = -30.0, 30.0
        for _ in range(40):
            self.shift = (low + high) / 2
            too_low = sigmoid(raw + np.float32(self.shift)).mean() < ctr
            low, high = (self.shift, high) if too_low else (low, self.shift)
