"""What of a day is still unread, against a list of every sample."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gbactl.checkpoint.remaining_samples import (
    FinishedBatches,
    decode_ranges,
    encode_ranges,
    merge_ranges,
    ranges_within,
    total_samples,
    without_first,
)
from gbactl.policies.policy import Drop, Member, Step

ranges_ = (
    st.lists(st.integers(0, 60), max_size=8, unique=True)
    .map(sorted)
    .map(lambda edges: merge_ranges(zip(edges[::2], edges[1::2], strict=False)))
)


def samples(ranges: object) -> list[int]:
    return [sample for low, high in ranges for sample in range(low, high)]  # type: ignore[attr-defined]


@given(ranges_, st.integers(0, 70), st.integers(0, 70))
def test_pieces_are_cut_from_the_joined_ranges(ranges: tuple[tuple[int, int], ...], start: int, count: int) -> None:
    assert samples(ranges_within(ranges, start, count)) == samples(ranges)[start : start + count]
    assert samples(without_first(ranges, count)) == samples(ranges)[count:]
    assert total_samples(ranges) == len(samples(ranges))


@given(ranges_)
def test_a_message_tells_the_same_ranges(ranges: tuple[tuple[int, int], ...]) -> None:
    if ranges:
        assert decode_ranges(ranges[0][0], total_samples(ranges), encode_ranges(ranges)) == ranges


@given(ranges_, st.integers(1, 7), st.data())
def test_what_has_no_fate_is_unread(ranges: tuple[tuple[int, int], ...], size: int, data: st.DataObject) -> None:
    everything = samples(ranges)
    batches = [everything[low : low + size] for low in range(0, len(everything), size)]
    order = data.draw(st.permutations(range(len(batches))))
    done = order[: data.draw(st.integers(0, len(batches)))]
    finished = FinishedBatches()
    for number, batch in enumerate(done):
        member = Member(batch, 0, number % 2, len(batches[batch]), 0)
        finished.add_step(Step(number, (member,), 1.0)) if number % 3 else finished.drop(
            Drop(batch, len(batches[batch]))
        )
    left = [sample for batch, found in enumerate(batches) if batch not in done for sample in found]
    assert samples(finished.remaining(ranges, size)) == left
    assert finished.ledger.finished == len(everything) - len(left)


def test_what_was_given_up_at_a_switch_has_a_fate() -> None:
    finished = FinishedBatches()
    finished.add_abandoned([0, 2], 8)
    assert finished.remaining(((100, 116),), 4) == ((104, 108), (112, 116))
    assert finished.ledger.decayed == 8
