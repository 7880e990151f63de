"""Evaluation shared by the workers, on fixed batches: predictions do not depend on who computes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gbactl.errors import DivergedError, WireError
from gbactl.metrics import evaluate
from gbactl.wire.messages import Predictions


class Evaluation:
    """Hands out evaluation batches and collects float32[samples] predictions."""

    def __init__(self, samples: int, batch: int, version: int) -> None:
        self.samples, self.batch, self.version = samples, batch, version
        self.predictions = np.full(samples, np.nan, np.float32)
        self.missing = samples
        self._arrived: set[int] = set()
        self._leases: dict[int, int] = {}
        self._again: list[int] = []
        self._next = 0

    def take(self, worker: int) -> tuple[int, int, int] | None:
        """(batch, start, samples) of a worker's next batch; None when all are handed out."""
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
        """Store a batch's predictions. Raises WireError when their sizes do not match."""
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

    def metrics(self, labels: Any) -> dict[str, float]:
        """Compute auc (exact), logloss, ne, calibration over all predictions. Raises DivergedError."""
        if not np.isfinite(self.predictions).all():
            raise DivergedError("The model diverged: its predictions are no numbers; type a smaller optim.lr.")
        return evaluate(labels, self.predictions)
