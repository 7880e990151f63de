"""What trainers note."""

from __future__ import annotations

import numpy as np

from gbactl.trainer.statistics import ExchangeStatistics


def test_gaps_are_iterations_between_two_exchanges() -> None:
    notes = ExchangeStatistics()
    for iterations in (3, 3, 10):
        notes.met(iterations, 0.5, 100.0)
    assert notes.gaps == {3: 1, 0: 1, 7: 1} and (notes.seconds, notes.sent) == (1.5, 300.0)


def test_distances_are_taken_at_ever_wider_spacing() -> None:
    notes, zero = ExchangeStatistics(), np.zeros(4, np.float32)
    for number in range(10_000):
        notes.distance(float(number), zero + 3.0, zero)
        notes.met(number, 0.0, 0.0)
    assert notes.distances[0] == (0.0, 6.0) and 50 < len(notes.distances) < 120
