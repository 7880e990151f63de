"""What must be kept of which shard when it moves on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gbactl.coordinator.event_log import AnnounceRecord
from gbactl.replay.gradient_recomputation import PulledVersions

VERSIONS = st.lists(st.tuples(*[st.integers(0, 5)] * 2, *[st.integers(-1, 5)] * 2), max_size=12)


@given(VERSIONS, st.sets(st.integers(0, 11)))
def test_every_pull_is_due_once_at_its_version(versions: list[tuple[int, int, int, int]], dropped: set[int]) -> None:
    pulls, expected = PulledVersions(2), set()
    for batch, (a, b, c, d) in enumerate(versions):
        pulls.add(AnnounceRecord(0, batch, (a, b), (c, d)))
        if batch not in dropped:
            expected |= {(a, 0, False, batch), (b, 1, False, batch)}
            expected |= {(c if c >= 0 else a, 0, True, batch), (d if d >= 0 else b, 1, True, batch)}
    for batch in dropped:
        pulls.drop(batch)
    due = [(version, *one) for version in range(7) for one in pulls.pulls_at(version)]
    assert set(due) == expected
    assert len(due) == len(expected)


def test_a_batch_announced_twice_is_known() -> None:
    pulls = PulledVersions(1)
    for batch in (4, 2, 4):
        assert pulls.repeated() is None
        pulls.add(AnnounceRecord(0, batch, (0,), (0,)))
    assert pulls.repeated() == 4
