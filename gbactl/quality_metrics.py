"""Quality metrics of predicted click probabilities: exact ones for results, pairs within batches for curves.

Exact AUC sorts (about 0.5 s a million scores). A metric that the data do not define (AUC of one class, calibration
without a click) is nan.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[Any]
Probabilities = NDArray[Any]


def _checked(labels: Labels, p: Probabilities) -> None:
    if labels.shape != p.shape or labels.ndim != 1 or labels.size == 0:
        raise ValueError(f"labels and p must be 1-D, not empty, of one length: {labels.shape}, {p.shape}")


def _both_classes(labels: Labels) -> bool:
    return bool(0 < np.count_nonzero(labels) < labels.size)


def auc(labels: Labels, p: Probabilities) -> float:
    """Compute the exact area under the ROC curve of labels uint8[n] and p float32[n]; ties count a half."""
    from sklearn.metrics import roc_auc_score

    _checked(labels, p)
    if "mlflow" in sys.modules:  # it may be importing polars in another thread, and scikit-learn asks for a class of it
        import polars  # noqa: F401
    return float(roc_auc_score(labels, p)) if _both_classes(labels) else math.nan


def gauc(labels: Labels, p: Probabilities, users: NDArray[Any]) -> float:
    """Compute the AUC within each user's samples, averaged over users with both classes by their numbers of samples."""
    _checked(labels, p)
    order = np.lexsort((p, users))
    labels, p, users = labels[order] > 0, p[order], users[order]
    new_user = np.diff(users, prepend=users[:1] - 1) != 0
    first = np.flatnonzero(new_user)
    ties = np.flatnonzero(new_user | (np.diff(p, prepend=p[:1] - 1) != 0))
    of_tie = np.diff(ties, append=labels.size)
    rank = np.repeat(ties + (of_tie + 1) / 2, of_tie)  # within all samples, from 1; ties share their mean rank
    samples, clicks = np.diff(first, append=labels.size), np.add.reduceat(labels, first, dtype=np.int64)
    won = np.add.reduceat(rank * labels, first) - clicks * first - clicks * (clicks + 1) / 2
    both = (clicks > 0) & (clicks < samples)
    if not both.any():
        return math.nan
    return float(np.average(won[both] / (clicks * (samples - clicks))[both], weights=samples[both]))


def logloss(labels: Labels, p: Probabilities) -> float:
    """Compute the mean binary cross-entropy in nats, with p clipped to [eps, 1 - eps] (eps of float32)."""
    _checked(labels, p)
    tiny = float(np.finfo(np.float32).eps)
    kept = np.clip(p.astype(np.float64), tiny, 1.0 - tiny)
    return float(-np.mean(np.log(np.where(labels > 0, kept, 1.0 - kept))))


def _normalised(labels: Labels, loss: float) -> float:
    """Compute the normalised entropy: log loss divided by the log loss of always predicting the base rate.

    1 is as bad as that prediction."""
    if not _both_classes(labels):
        return math.nan
    rate = np.count_nonzero(labels) / labels.size
    entropy = -(rate * math.log(rate) + (1.0 - rate) * math.log1p(-rate))
    return loss / entropy


def calibration(labels: Labels, p: Probabilities) -> float:
    """Compute the mean prediction divided by the mean label; 1 is perfect."""
    _checked(labels, p)
    clicks = np.count_nonzero(labels)
    return float(np.sum(p, dtype=np.float64) / clicks) if clicks else math.nan


def evaluate(labels: Labels, p: Probabilities, users: NDArray[Any] | None = None) -> dict[str, float]:
    """Compute all metrics, by name: auc, logloss, ne, calibration, and gauc if the samples' users are known."""
    loss = logloss(labels, p)
    grouped = {} if users is None else {"gauc": gauc(labels, p, users)}
    return {
        "auc": auc(labels, p),
        "logloss": loss,
        "ne": _normalised(labels, loss),
        "calibration": calibration(labels, p),
        **grouped,
    }


def ranked_pairs(labels: NDArray[Any], scores: NDArray[Any]) -> tuple[float, int]:
    """Count a batch's (click, non-click) pairs: those ranked correctly (a tie counts a half), and all of them.

    The quotient of their sums over batches is a progressive AUC, over the pairs within each batch."""
    clicked = labels > 0
    hits, others = scores[clicked], np.sort(scores[~clicked])
    if not hits.size or not others.size:
        return 0.0, 0
    below = np.searchsorted(others, hits, "left").sum() + np.searchsorted(others, hits, "right").sum()
    return float(below) / 2.0, hits.size * others.size
