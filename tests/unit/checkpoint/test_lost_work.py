"""What a lost shard lacks, by what was saved of it and by what it could load."""

from __future__ import annotations

import msgspec
import pytest

from gbactl.checkpoint.lost_work import Loss, UnsavedWork


def test_it_counts_from_the_last_save() -> None:
    stakes = UnsavedWork.begin(1000, 2)
    stakes.updates.applied(0, 50)
    stakes.updates.applied(1, 60)
    stakes.saved(4, 100, dict(enumerate(stakes.updates.unsaved)))
    stakes.updates.applied(0, 7)
    assert stakes.lost(0, 140) == Loss(40, 40 / 2000, 7)
    assert stakes.lost(0, 140) == Loss(0, 0.0, 0), "what is lost is lost once"
    assert stakes.missed(0, 10, 3) == Loss(10, 10 / 2000, 3)
    assert stakes.pls.total == pytest.approx(50 / 2000) and stakes.updates.total_lost == 10


def test_where_the_newest_is_damaged_more_is_lost() -> None:
    stakes = UnsavedWork.begin(1000, 1)
    for step, samples in ((2, 100), (4, 200), (6, None), (8, 300)):
        stakes.saved(step, samples, {})
    stakes.lost(0, 330)
    assert stakes.older(0, 8).samples == 0
    assert stakes.older(0, 6) == Loss(100, 100 / 1000, 0), "PLS counts from the whole one before the chosen rows"
    assert stakes.older(0, -1).samples == 300


def test_another_goes_on_with_what_was_told() -> None:
    """As JSON has it; also about what was saved before, which a shard may have to go back to."""
    stakes = UnsavedWork.begin(1000, 2)
    stakes.updates.applied(0, 50)
    stakes.updates.applied(1, 60)
    stakes.saved(4, 100, {0: 40, 1: 60})
    stakes.saved(8, 300, {})
    stakes.lost(0, 330)
    stakes.missed(1, 8, 3)
    other = msgspec.json.decode(msgspec.json.encode(stakes), type=UnsavedWork)
    assert other == stakes and other.pls.total == stakes.pls.total > 0
    assert (other.updates.total, other.updates.total_lost) == (113, 13)
    assert other.older(0, 4) == stakes.older(0, 4) == Loss(200, 200 / 2000, 0)
    assert other.lost(1, 340) == stakes.lost(1, 340)


def test_a_job_that_goes_on_counts_from_there() -> None:
    assert UnsavedWork.begin(1000, 1, 12, 400).lost(0, 450).samples == 50
