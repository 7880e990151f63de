"""Shared-memory segments: odd offers are refused, and no name outlives the attaching."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gbactl.errors import ClusterError, WireError
from gbactl.wire import shared_memory
from tests.support.hubs import Pair

PAGE = shared_memory.PAGE


def mine() -> list[str]:
    return sorted(path.name for path in shared_memory.DIRECTORY.glob(f"gbactl-{os.getpid()}-*"))


def test_both_ends_see_the_same_slots() -> None:
    layout, memory = shared_memory.create(PAGE + 1, 100)
    assert (layout.outgoing, layout.incoming) == (2 * PAGE, PAGE)
    there = shared_memory.attach(layout)
    assert there is not None
    out, back = layout.slots(memory)
    their_out, their_back = layout.slots(there)
    assert (len(out), len(back)) == shared_memory.SLOTS
    for number, slot in enumerate(out + back):
        slot[:] = number
    for number, same in enumerate(their_out + their_back):
        assert (same == number).all()
    assert mine() == [layout.name]
    shared_memory.unlink(layout)
    shared_memory.unlink(layout)
    assert mine() == []
    out[0][:] = 9
    assert (their_out[0] == 9).all(), "the mapping lives on"


def test_only_the_owner_may_open_a_segment() -> None:
    layout, _ = shared_memory.create(PAGE, PAGE)
    assert (shared_memory.DIRECTORY / layout.name).stat().st_mode & 0o077 == 0
    shared_memory.unlink(layout)


GOOD = "gbactl-1-" + "a" * 16


@pytest.mark.parametrize(
    "name", ["", "passwd", "../etc/passwd", GOOD[:-1] + "g", GOOD + "/x", GOOD + "a", GOOD + "\n", "/" + GOOD]
)
def test_odd_names(name: str) -> None:
    with pytest.raises(WireError, match="not allowed"):
        shared_memory.attach(shared_memory.SegmentLayout(name, PAGE, PAGE))


def test_negative_sizes() -> None:
    with pytest.raises(WireError):
        shared_memory.attach(shared_memory.SegmentLayout("gbactl-1-" + "a" * 16, -PAGE, 3 * PAGE))


@pytest.mark.parametrize(("outgoing", "incoming"), [(2 * PAGE, PAGE), (PAGE, 0), (1 << 60, PAGE)])
def test_another_size_than_was_offered(outgoing: int, incoming: int) -> None:
    layout, _ = shared_memory.create(PAGE, PAGE)
    try:
        with pytest.raises(WireError, match="another size or owner"):
            shared_memory.attach(shared_memory.SegmentLayout(layout.name, outgoing, incoming))
    finally:
        shared_memory.unlink(layout)


def test_an_empty_segment() -> None:
    layout = shared_memory.SegmentLayout("gbactl-1-" + "b" * 16, 0, 0)
    path = shared_memory.DIRECTORY / layout.name
    path.touch()
    try:
        assert shared_memory.attach(layout) is None
    finally:
        path.unlink()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    layout = shared_memory.SegmentLayout("gbactl-1-" + "c" * 16, PAGE, 0)
    target = tmp_path / "file"
    target.write_bytes(bytes(layout.total))
    link = shared_memory.DIRECTORY / layout.name
    link.symlink_to(target)
    try:
        assert shared_memory.attach(layout) is None
    finally:
        link.unlink()


def test_a_segment_of_another_host_is_not_there() -> None:
    assert shared_memory.attach(shared_memory.SegmentLayout("gbactl-1-" + "d" * 16, PAGE, PAGE)) is None


def test_more_than_the_host_has_is_one_sentence_and_leaves_nothing() -> None:
    with pytest.raises(ClusterError, match=r"Shared memory is full.*type cluster\.transport=tcp"):
        shared_memory.create(1 << 45, PAGE)
    assert mine() == []


def test_nothing_is_left_once_two_nodes_are_connected() -> None:
    pair = Pair("shm")
    assert pair.near._send_slots
    assert mine() == []
    pair.close()
