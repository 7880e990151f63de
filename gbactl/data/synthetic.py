"""Synthetic Criteo-like clicks from a hidden factorisation model, generated in parallel, reproducible from a seed.

Chunks of 65,536 rows are seeded by (seed, day, chunk), so the bytes do not depend on the number of threads
(numpy releases the interpreter lock, so threads use all cores). Memory is a few MB a thread.

The hidden model has first-order weights, pairwise terms and drift, and stores no table. Every id's weights come from
one counter hash of (seed, field, id): five numbers of 12 bits, two for the first order (today's and the one it drifts
to) and three for the vector of the pairwise part. A value costs about 20 ns.

Multi-valued fields (tags) add the mean of their ids' first-order weights. A history, a sequence of ids from the table
of the last field (the target item), adds its best match: the greatest product of its items' vectors with the target's.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from gbactl.checked_dataclasses import Bounds, Days, Seed
from gbactl.cpu import available_cores
from gbactl.data.cache_writer import WrittenArrays, allocate
from gbactl.data.dataset import Batch, Jagged, ListField, Pooling, Progress, Schema
from gbactl.data.remote_files import SourceFile
from gbactl.hashes_and_random_numbers import GOLDEN, mix, mix_int

CHUNK = 1 << 16
BINS = 1 << 14
SMALLEST = 10
RANK = 3
PARTS = 2 + RANK
SHARES = {"first": 0.5, "numeric": 0.2, "pairs": 0.3, "lists": 0.4, "history": 0.6}
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
    lists: Annotated[int, Bounds(at_least=0, at_most=1000)] = 0
    list_length: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 10
    history_length: Annotated[int, Bounds(at_least=0, at_most=100_000)] = 0
    pooling: Pooling = "mean"

    def sources(self) -> list[SourceFile]:
        """Return no source files, as the data are generated."""
        return []

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Number of ids of each field: from 10 to `max_cardinality`, evenly spaced on a logarithmic scale."""
        return tuple(int(c) for c in np.geomspace(SMALLEST, self.max_cardinality, self.fields).round())

    @property
    def longest(self) -> list[int]:
        """Length of the longest list of each multi-valued field; the history is the last one."""
        return [self.list_length] * self.lists + ([self.history_length] if self.history_length else [])

    @property
    def schema(self) -> Schema:
        """Shape of the data; a multi-valued field has as many ids as the last field, whose table the history shares."""
        largest, fields = self.cardinalities[-1], self.fields
        own = range(fields + self.lists)
        tables = (*own, fields - 1) if self.history_length else ()
        lists = tuple(ListField(length, self.pooling) for length in self.longest)
        return Schema(self.numeric, (*self.cardinalities, *[largest] * len(lists)), tables, lists)

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        maker, rows = Generator(self), self.rows_per_day * self.days
        values = maker.count_values()
        maps = allocate(folder, self.schema, rows, values)
        seen = maker.fill(maps, progress)
        names = [f"day{d}" for d in range(self.days)]
        splits = [(name, d * self.rows_per_day, (d + 1) * self.rows_per_day) for d, name in enumerate(names)]
        numeric = _names("I", self.numeric)
        fields = [*_names("C", self.fields), *_names("L", self.lists), *(["history"] if self.history_length else [])]
        best = {name: best_auc(seen[d]) for d, name in enumerate(names)}
        return WrittenArrays("days", self.schema, splits, numeric, fields, best_auc=best)


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
        self.options, self.lists = options, len(options.longest)
        self.rows = CHUNK // 8 if self.lists else CHUNK  # of a chunk
        self.hidden = HiddenModel(options.schema, options.seed, options.drift)
        batch = self._features(0, 0, min(self.rows, 1 << 15))[1]
        self.hidden.calibrate(batch, options.signal, options.ctr)

    def _random(self, *place: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64([self.options.seed, *place]))

    def _lengths(self, day: int, chunk: int, rows: int) -> NDArray[np.int64]:
        """Draw the lengths of the lists of a chunk, uniformly from 0 on, int64[rows * lists]."""
        most = np.array(self.options.longest, np.int64)
        return self._random(day, chunk, 1).integers(0, most + 1, (rows, self.lists)).reshape(-1)

    def _jagged(self, day: int, chunk: int, rows: int) -> Jagged:
        o, lengths = self.options, self._lengths(day, chunk, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = zipf(self._random(day, chunk, 2).random(offsets[-1]), o.cardinalities[-1], o.skew)
        return Jagged(self.lists, offsets, values)

    def _features(self, day: int, chunk: int, rows: int) -> tuple[np.random.Generator, Batch]:
        """Draw the features of a chunk, without labels, and return the generator that its labels are drawn from."""
        o, random = self.options, self._random(day, chunk)
        numeric = random.standard_normal((rows, o.numeric), dtype=np.float32)
        ids = np.empty((rows, o.fields), np.int32)
        for f, size in enumerate(o.cardinalities):
            ids[:, f] = zipf(random.random(rows), size, o.skew)
        jagged = self._jagged(day, chunk, rows) if self.lists else None
        return random, Batch(np.zeros(rows, np.uint8), numeric, ids, jagged)

    def chunk(self, day: int, chunk: int, rows: int) -> tuple[Batch, NDArray[np.int64]]:
        """Generate the rows of one chunk, and their counts by (label, bin of the true logit)."""
        random, batch = self._features(day, chunk, rows)
        logit = self.hidden.logits(batch, day)
        noisy = logit + np.float32(self.options.noise) * random.standard_normal(rows, dtype=np.float32)
        labels = (random.random(rows, dtype=np.float32) < sigmoid(noisy)).astype(np.uint8)
        bins = np.clip((logit + 12) * (BINS / 24), 0, BINS - 1).astype(np.int64)
        seen = np.bincount(bins + labels * np.int64(BINS), minlength=2 * BINS)
        return replace(batch, labels=labels), seen

    def _tasks(self) -> list[tuple[int, int, int, int]]:
        """List the chunks as (day, chunk, its first row, its rows)."""
        per_day, size = self.options.rows_per_day, self.rows
        starts = list(enumerate(range(0, per_day, size)))
        return [(d, c, d * per_day + lo, min(size, per_day - lo)) for d in range(self.options.days) for c, lo in starts]

    def count_values(self) -> int:
        """Return the total number of ids in the multi-valued fields of all samples."""
        return sum(int(self._lengths(d, c, rows).sum()) for d, c, _, rows in self._tasks()) if self.lists else 0

    def fill(self, maps: Batch, progress: Progress) -> NDArray[np.int64]:
        """Generate all days into the memory-mapped arrays.

        Return counts int64[days, 2, bins] by (label, bin of the true logit).
        """
        seen, tasks = np.zeros((self.options.days, 2 * BINS), np.int64), self._tasks()
        if maps.jagged is not None:
            self._fill_offsets(maps.jagged, tasks)

        def work(day: int, chunk: int, first: int, rows: int) -> tuple[int, NDArray[np.int64]]:
            batch, counts = self.chunk(day, chunk, rows)
            at = slice(first, first + rows)
            maps.labels[at], maps.numeric[at], maps.ids[at] = batch.labels, batch.numeric, batch.ids
            if maps.jagged is not None and batch.jagged is not None:
                maps.jagged.slice(first, first + rows).values[:] = batch.jagged.values
            return day, counts

        with ThreadPoolExecutor(len(available_cores())) as pool:
            done = [pool.submit(work, *task) for task in tasks]
            try:
                for i, future in enumerate(as_completed(done)):
                    day, counts = future.result()
                    seen[day] += counts
                    progress("generating", (i + 1) / len(tasks))
            finally:
                pool.shutdown(cancel_futures=True)
        return seen.reshape(self.options.days, 2, BINS)

    def _fill_offsets(self, jagged: Jagged, tasks: list[tuple[int, int, int, int]]) -> None:
        offsets, lists = jagged.offsets, self.lists
        for day, chunk, first, rows in tasks:
            low, high = first * lists, (first + rows) * lists
            np.cumsum(self._lengths(day, chunk, rows), out=offsets[low + 1 : high + 1])
            offsets[low + 1 : high + 1] += offsets[low]


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

    def __init__(self, schema: Schema, seed: int, drift: float) -> None:
        self.drift, self.schema, numeric = drift, schema, schema.numeric
        self.scale = dict.fromkeys(SHARES, 1.0)
        self.shift = 0.0
        self._base = [np.uint64(mix_int(seed * GOLDEN + table + 1)) for table in schema.table_of]
        self._size = np.array([(10 / c) ** 0.1 for c in schema.cardinalities[: schema.columns]], np.float32)
        self._has_history = len(set(schema.table_of)) < schema.fields
        keys = np.arange(numeric, dtype=np.uint64) ^ np.uint64(mix_int(seed * GOLDEN))
        self._numeric = np.stack(weights(keys)) if numeric else np.zeros((PARTS, 0), np.float32)

    def _parts(self, batch: Batch, day: int) -> dict[str, Floats]:
        numeric, ids = batch.numeric, batch.ids
        rows = len(ids)
        turn = np.float32(np.cos(self.drift * day)), np.float32(np.sin(self.drift * day))
        first, squares = np.zeros((2, rows), np.float32)
        sums = np.zeros((RANK, rows), np.float32)
        vector: list[Floats] = []
        for f, size in enumerate(self._size):
            now, later, *vector = weights(ids[:, f].astype(np.uint64) ^ self._base[f])
            first += size * (turn[0] * now + turn[1] * later)
            for k in range(RANK):
                part = size * vector[k]
                sums[k] += part
                squares += part * part
        slope = turn[0] * self._numeric[0] + turn[1] * self._numeric[1]
        crossed = numeric @ (self._numeric[2:].T * np.float32(0.5))
        sums += crossed.T
        squares += (numeric * numeric) @ (self._numeric[2:] ** 2 * np.float32(0.25)).sum(axis=0)
        pairs = np.float32(0.5) * ((sums * sums).sum(axis=0) - squares)
        found = {"first": first, "numeric": numeric @ slope, "pairs": pairs}
        return found if batch.jagged is None else {**found, **self._list_parts(batch.jagged, turn, np.stack(vector))}

    def _list_parts(self, jagged: Jagged, turn: tuple[np.float32, np.float32], target: Floats) -> dict[str, Floats]:
        """Compute the multi-valued fields' terms of the logit; `target`: target items' vectors, float32[RANK, n]."""
        lists, rows = jagged.lists, target.shape[1]
        lengths = np.diff(jagged.offsets)
        of_list = np.repeat(np.arange(rows * lists), lengths)
        base = np.array(self._base[self.schema.columns :])[of_list % lists]
        now, later, *vectors = weights(jagged.values.astype(np.uint64) ^ base)
        sums = np.bincount(of_list, turn[0] * now + turn[1] * later, minlength=rows * lists)
        means = (sums / np.maximum(lengths, 1)).astype(np.float32).reshape(rows, lists)
        if not self._has_history:
            return {"lists": means.sum(axis=1)}
        match = np.zeros(len(of_list), np.float32)
        for own, other in zip(vectors, target, strict=True):
            match += own * other[of_list // lists]
        history = of_list % lists == lists - 1
        best = np.full(rows, -np.inf, np.float32)
        np.maximum.at(best, of_list[history] // lists, match[history])
        best[np.isinf(best)] = 0
        return {**({"lists": means[:, :-1].sum(axis=1)} if lists > 1 else {}), "history": best}

    def logits(self, batch: Batch, day: int) -> Floats:
        """Compute the rows' true logits before noise, float32[n]."""
        total = np.full(len(batch), self.shift, np.float32)
        for name, part in self._parts(batch, day).items():
            total += np.float32(self.scale[name]) * part
        return total

    def calibrate(self, batch: Batch, signal: float, ctr: float) -> None:
        """Scale the terms for logits of standard deviation `signal`; shift them for a mean click rate of `ctr`."""
        parts = self._parts(batch, 0)
        every = sum(SHARES[name] for name in parts)
        for name, part in parts.items():
            spread = float(part.std())
            self.scale[name] = signal * (SHARES[name] / every) ** 0.5 / spread if spread > 0 else 0.0
        raw = self.logits(batch, 0)
        low, high = -30.0, 30.0
        for _ in range(40):
            self.shift = (low + high) / 2
            too_low = sigmoid(raw + np.float32(self.shift)).mean() < ctr
            low, high = (self.shift, high) if too_low else (low, self.shift)
