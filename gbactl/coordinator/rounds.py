"""Rounds of a run: the data to train and evaluate on, the evaluation itself, early stopping.

A round is a day with next-day evaluation, or an epoch with validation. Also the disk space that such a run needs for
what it writes beside its checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from gbactl.config import RunConfig, TrainConfig
from gbactl.coordinator import event_log
from gbactl.data.dataset import Dataset
from gbactl.errors import ConfigError, DivergedError, WireError
from gbactl.metrics import evaluate
from gbactl.wire.messages import Predictions

END_BYTES = 1 << 20  # a run's last files: result, report, what the tracking store has not taken yet


@dataclass(frozen=True)
class Round:
    """Round of a run: train on one split, then evaluate on others. Early stopping uses the score on `judged_by`."""

    split: int
    epoch: int
    label: str
    evaluate: tuple[int, ...]
    judged_by: int


class Splits(Protocol):
    """Attributes of a Dataset from which the list of rounds is made."""

    @property
    def kind(self) -> str:
        """Kind of the dataset's splits: "days", "splits" (train, validation and test) or "parts"."""

    @property
    def splits(self) -> tuple[object, ...]:
        """Days or splits of the dataset."""


def rounds(dataset: Splits, train: TrainConfig) -> list[Round]:
    """List the rounds of a run. Raises ConfigError if a round would have no data for its evaluation."""
    if dataset.kind == "splits":
        return [Round(0, epoch, f"epoch {epoch}", (1, 2), 1) for epoch in range(train.epochs)]
    if train.epochs != 1:
        raise ConfigError("train.epochs is for data with a validation set; days are passed once: type train.epochs=1.")
    days = len(dataset.splits) - 1
    if days < 1:
        raise ConfigError("One day cannot be judged by the next; give two days or more, or type data.days=2.")
    if train.days is not None:
        if not 1 <= train.days <= days:
            raise ConfigError(f"train.days={train.days} is not possible with {days + 1} days; type 1 to {days}.")
        days = train.days
    judged_by = [len(dataset.splits) - 1 if dataset.kind == "parts" else day + 1 for day in range(days)]
    return [Round(day, 0, f"day {day}", (judge,), judge) for day, judge in enumerate(judged_by)]


def samples_of(dataset: Dataset, train: TrainConfig) -> int:
    """Number of training samples in all rounds of a run."""
    return sum(dataset.splits[part.split].rows for part in rounds(dataset, train))


def spare_bytes(cfg: RunConfig, samples: int) -> int:
    """Bytes of disk that checkpoints must leave free for the event log and last files of a job of `samples` samples."""
    gradients = -(-samples // min(phase.local_batch for phase in cfg.possible))
    return event_log.most_bytes(gradients, cfg.cluster.servers) + END_BYTES


@dataclass
class EarlyStopping:
    """Early stopping after `patience` rounds without a better score; with patience 0 training never stops early."""

    patience: int
    best: float = float("-inf")
    best_round: int = -1
    seen: int = 0

    def update(self, score: float) -> bool:
        """Record a round's score. Returns whether to stop."""
        if score > self.best:
            self.best, self.best_round = score, self.seen
        self.seen += 1
        return self.patience > 0 and self.seen - 1 - self.best_round >= self.patience


class Evaluation:
    """Evaluation of a split: hands out batches and collects float32[samples] predictions."""

    def __init__(self, samples: int, batch: int, version: int) -> None:
        self.samples, self.batch, self.version = samples, batch, version
        self.predictions = np.full(samples, np.nan, np.float32)
        self.missing = samples
        self._arrived: set[int] = set()
        self._leases: dict[int, int] = {}
        self._again: list[int] = []
        self._next = 0

    def take(self, worker: int) -> tuple[int, int, int] | None:
        """Next evaluation batch for a worker, as (batch, start, samples); None when all are handed out."""
        number = self._again.pop() if self._again else self._next
        start = number * self.batch
        if start >= self.samples:
            return None
        self._next = max(self._next, number + 1)
        self._leases[number] = worker
        return number, start, min(self.batch, self.samples - start)

    def left(self, worker: int) -> None:
        """Hand out a failed worker's evaluation batches again."""
        self._again += [batch for batch, owner in self._leases.items() if owner == worker]
        self._leases = {batch: owner for batch, owner in self._leases.items() if owner != worker}

    def put(self, message: Predictions, payload: Any) -> None:
        """Store a batch's predictions. Raises WireError when their number does not match the batch."""
        expected = min(self.batch, self.samples - message.batch * self.batch)
        if message.batch < 0 or message.samples != expected or payload.size != 4 * expected:
            raise WireError(f"predictions of {message.samples} samples for a batch of {expected}")
        if message.batch in self._arrived:
            raise WireError(f"predictions of batch {message.batch} came twice")
        self._arrived.add(message.batch)
        self._leases.pop(message.batch, None)
        start = message.batch * self.batch
        self.predictions[start : start + expected] = payload.view(np.float32)
        self.missing -= expected

    def metrics(self, labels: Any, users: Any = None) -> dict[str, float]:
        """Compute auc (exact), logloss, ne, calibration, with `users` gauc. Raises DivergedError."""
        if not np.isfinite(self.predictions).all():
            raise DivergedError("The model diverged: its predictions are no numbers; type a smaller optim.lr.")
        return evaluate(labels, self.predictions, users)
