"""Subset of a data set on which modes are compared: data for the base, for training in each mode, and for evaluation.

Of data divided into days the subset has consecutive rows: the beginning of the last training day for the training in
each mode, the rows just before it for the base, and the beginning of the day after it for the evaluation. Of data with
a training and a test file it has random rows of each. Rows of days are views of the cache; random rows are copied.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gbactl.config import TrainConfig
from gbactl.data.dataset import Dataset, Split, open_dataset, permuted
from gbactl.errors import UsageError
from gbactl.hashes_and_random_numbers import training_key

PARTS = 2  # evaluations after the switch, from which the time to an AUC is read
BASE = 4  # samples of the base for each one trained in the mode
MOST_JUDGED = 65_536  # samples to judge by: the time is better spent on seeds
opened = functools.lru_cache(maxsize=2)(open_dataset)  # its files are checked once a process


@dataclass(frozen=True)
class SwitchSplits:
    """Parts of a data set: training data before the switch in time order, training data after it, evaluation data."""

    before: tuple[Split, ...]
    after: Split
    judge: Split

    @classmethod
    def divide(cls, dataset: Dataset, days: int | None = None) -> SwitchSplits:
        """Divide the first `days` training days of a data set (None: all) into these parts. Raises UsageError."""
        if dataset.kind == "splits":
            train, _, test = dataset.splits
            return cls(*_divided(train), test)
        splits = dataset.splits if days is None else dataset.splits[: days + 1]
        if len(splits) < 2:
            raise UsageError(
                "The data have one day, and a mode is evaluated on the day after the one that it trains on; "
                "give two days or more, or type data.days=2."
            )
        *before, after, judge = splits
        return cls(tuple(before), after, judge) if before else cls(*_divided(after), judge)

    @property
    def base_rows(self) -> int:
        """Number of training rows of the base: those before the simulated switch from sync."""
        return sum(split.rows for split in self.before)


def _divided(split: Split) -> tuple[tuple[Split, ...], Split]:
    """Divide a split into BASE + 1 equal shares: the last one is after the switch, all others before it."""
    place = split.rows * BASE // (BASE + 1)
    return (_part(split, 0, place),), _part(split, place, split.rows)


def _part(split: Split, low: int, high: int) -> Split:
    return Split(split.name, split.slice(low, high))


@dataclass(frozen=True)
class DataSubset:
    """Sizes of a subset in rows, and the prepared data that it is taken from.

    `base`: rows before the switch, `part`: rows of each of `parts` parts after it, `judged`: rows to judge by. `timed`:
    rows of the simulations for times alone. `days`: as train.days."""

    path: Path
    base: int
    part: int
    parts: int
    judged: int
    timed: int
    days: int | None = None

    @property
    def trained(self) -> int:
        """Number of samples that are trained in the mode."""
        return self.parts * self.part

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the subset: the whole data's fingerprint, and the subset's sizes."""
        return f"{opened(self.path).fingerprint}-{self.base}-{self.parts}x{self.part}-{self.judged}"

    def dataset(self) -> Dataset:
        """Build the subset as a data set of parts; its last split is the evaluation data."""
        whole = opened(self.path)
        stretches = SwitchSplits.divide(whole, self.days)
        base, after = stretches.before, stretches.after
        if whole.kind == "splits":
            base, after = (_chosen(base[0], self.base),), _chosen(after, self.trained)
        base = tuple(_last(base, self.base))
        parts = [_part(after, n * self.part, (n + 1) * self.part) for n in range(self.parts)]
        named = [Split(f"part {n}", split.whole) for n, split in enumerate([*base, *parts])]
        return replace(whole, splits=(*named, self.judge()), kind="parts", fingerprint=self.fingerprint, best_auc={})

    def judge(self) -> Split:
        """Return the evaluation data."""
        whole = opened(self.path)
        judge = SwitchSplits.divide(whole, self.days).judge
        judge = _chosen(judge, self.judged) if whole.kind == "splits" else judge
        return Split("judge", judge.slice(0, self.judged))

    def timed_dataset(self) -> Dataset:
        """Build the data set to predict EPS on: rows after the switch as one day, and at most 2,048 evaluation rows."""
        whole = opened(self.path)
        stretches = SwitchSplits.divide(whole, self.days)
        judge = _part(stretches.judge, 0, min(self.judged, 2048))
        return replace(whole, splits=(_part(stretches.after, 0, self.timed), judge), kind="days", best_auc={})


def _last(splits: Sequence[Split], rows: int) -> list[Split]:
    """Take the last `rows` rows of consecutive splits."""
    found: list[Split] = []
    for split in reversed(splits):
        if rows > 0:
            taken = min(rows, split.rows)
            found.insert(0, _part(split, split.rows - taken, split.rows))
            rows -= taken
    return found


def _chosen(split: Split, rows: int) -> Split:
    """Choose random rows of a split, always the same ones."""
    return Split(split.name, split.take(permuted(0, rows, split.rows, training_key(split.rows))))


def choose_subset(path: Path, train: TrainConfig, wanted: int, timed: int) -> DataSubset:
    """Choose the sizes of a subset: about `wanted` samples to train in each mode, or fewer if the data have fewer.

    Parts are whole global batches, so that no step but the run's last is partial. Raises UsageError for data with less
    than a global batch."""
    stretches, size = SwitchSplits.divide(opened(path), train.days), train.global_batch
    steps = min(wanted, stretches.after.rows) // size
    if steps < 1 or stretches.base_rows < size:
        raise UsageError(
            f"train.global_batch={size} is too large for {stretches.after.rows:,} samples after a switch and "
            f"{stretches.base_rows:,} before it; give more data, or type a smaller train.global_batch."
        )
    parts = min(PARTS, steps)
    part = steps // parts * size
    base = min(BASE * parts * part, stretches.base_rows)
    judged = min(parts * part, MOST_JUDGED, stretches.judge.rows)
    limited = min(stretches.after.rows, max(timed, size))
    return DataSubset(path, _whole(base, size), part, parts, judged, _whole(limited, size), train.days)


def has_batches(path: Path, train: TrainConfig, before: int, after: int) -> bool:
    """Return whether data have `before` global batches before a switch, and `after` global batches after it."""
    stretches = SwitchSplits.divide(opened(path), train.days)
    return stretches.base_rows >= before * train.global_batch and stretches.after.rows >= after * train.global_batch


def samples_that_fit(seconds: float, a_sample: float, a_base_sample: float, base_rows: int) -> float:
    """Compute how many samples to train in each mode fit into `seconds`, with BASE times as many in the base.

    The base has at most `base_rows`. `a_sample`, `a_base_sample`: seconds for one sample of all simulations and of all
    bases."""
    return max(seconds / (a_sample + BASE * a_base_sample), (seconds - base_rows * a_base_sample) / a_sample)


def _whole(rows: int, size: int) -> int:
    return rows // size * size
