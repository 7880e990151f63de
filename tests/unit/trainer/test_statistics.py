"""What trainers note, and what it comes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.errors import WireError
from gbactl.trainer.statistics import Notes, curve, require, summary, total


def test_gaps_are_iterations_between_two_exchanges() -> None:
    notes = Notes()
    for iterations in (3, 3, 10):
        notes.met(iterations, 0.5, 100.0)
    assert notes.gaps == {3: 1, 0: 1, 7: 1} and (notes.seconds, notes.sent) == (1.5, 300.0)


def test_distances_are_taken_at_ever_wider_spacing() -> None:
    notes, zero = Notes(), np.zeros(4, np.float32)
    for number in range(10_000):
        notes.distance(float(number), zero + 3.0, zero)
        notes.met(number, 0.0, 0.0)
    assert notes.distances[0] == (0.0, 6.0) and 50 < len(notes.distances) < 120


def test_the_trainers_together() -> None:
    first, second = Notes(), Notes()
    first.met(2, 1.0, 10.0)
    second.met(4, 3.0, 10.0)
    second.met(8, 0.0, 10.0)
    second.foreground = 0.25
    told = summary(total([first.fields(), second.fields()]))
    assert told["sync_gap"]["mean"] == (2 + 4 + 4) / 3 and told["exchanges"] == 3
    assert (told["bytes_exchanged"], told["foreground_seconds"]) == (30, 0.25)
    again = total([total([first.fields()]), second.fields()])
    assert again == total([first.fields(), second.fields()])


def test_without_an_exchange_there_are_zeros() -> None:
    told = summary(total([Notes().fields()]))
    assert told["sync_gap"]["mean"] == 0.0 and told["exchange_ms"] == 0.0 and told["distance"] == []


def test_a_curve_has_at_most_twenty_points_in_order() -> None:
    points = curve([[float(n), 2.0 * n] for n in range(100)])
    assert len(points) == 20 and points[0] == [2.0, 4.0] and points == sorted(points)


def noted() -> Notes:
    notes = Notes(iterations=7)
    notes.distance(0.5, np.ones(4, np.float32), np.zeros(4, np.float32))
    notes.met(3, 0.25, 100.0)
    return notes


def test_what_a_trainer_tells_may_be_told() -> None:
    require(Notes().fields())
    require(noted().fields())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("iterations", -1), ("iterations", 1.0), ("exchanges", True), ("exchanges", None), ("seconds", "1"),
        ("seconds", float("nan")), ("foreground", float("inf")), ("sent", [1]), ("gaps", []), ("gaps", {"x": 1}),
        ("gaps", {"-1": 1}), ("gaps", {"1" * 5000: 1}), ("gaps", {"3": -1}), ("gaps", {"3": "1"}), ("distances", {}),
        ("distances", [[1.0]]), ("distances", [1.0]), ("distances", [["a", "b"]]),
    ],
)  # fmt: skip
def test_what_are_no_notes(key: str, value: Any) -> None:
    with pytest.raises(WireError):
        require({**noted().fields(), key: value})
    with pytest.raises(WireError):
        require({name: own for name, own in noted().fields().items() if name != key})
