"""What a lost shard takes with it of gradients that are announced."""

from __future__ import annotations

from gbactl.coordinator.phase import StagedSlices


def test_parts_are_applied_missed_or_forgotten() -> None:
    hit: list[tuple[int, int]] = []
    missed: list[tuple[int, int, int]] = []
    parts = StagedSlices(lambda *told: hit.append(told), lambda *told: missed.append(told))
    parts.announced(0, [5, 7])
    parts.announced(1, [3, ~4])  # its second part had gone to a server that was lost before
    parts.announced(2, [9, 9])
    parts.announced(3, [2, 2])
    parts.dropped(2)
    parts.applied(0, 32, 1.0)
    parts.gone(1)
    parts.gone(1)
    assert parts.waiting == [1, 3]
    parts.applied(1, 32, 0.5)
    parts.applied(3, 20, 0.0)  # decayed: it would have changed nothing
    assert hit == [(0, 5), (1, 7), (0, 3)] and missed == [(1, 32, 4)] and parts.waiting == []


def test_what_is_held_is_told_afterwards_unless_it_was_taken_out() -> None:
    hit: list[tuple[int, int]] = []
    parts = StagedSlices(lambda *told: hit.append(told), lambda *_: None)
    for batch in range(2):
        parts.announced(batch, [5 + batch, 7])
    with parts.held() as counted:
        parts.applied(0, 32, 1.0)
        counted.clear()
        parts.applied(1, 32, 1.0)
        assert hit == []
    assert hit == [(0, 6), (1, 7)]
    parts.announced(2, [1, 1])
    parts.applied(2, 32, 1.0)
    assert hit[2:] == [(0, 1), (1, 1)]


def test_a_part_without_rows_is_lost_like_any_other() -> None:
    missed: list[tuple[int, int, int]] = []
    parts = StagedSlices(lambda *_: None, lambda *told: missed.append(told))
    parts.announced(0, [0])
    parts.gone(0)
    parts.applied(0, 8, 1.0)
    assert missed == [(0, 8, 0)]
