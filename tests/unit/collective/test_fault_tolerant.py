"""Sums whose parts are dealt: a rank may put in several, one or none, twice, late; whoever dies is not waited for."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.collective.base import sum_in_rank_order
from gbactl.collective.fault_tolerant import InterruptedSum
from gbactl.collective.shared_memory import SharedMemoryCollective, available
from gbactl.errors import ClusterError
from tests.support.in_memory_collective import MemoryGroup
from tests.support.serving import Serving

SHM = pytest.param("shm", marks=pytest.mark.skipif(not available(), reason="no shared memory"))
KINDS = ("memory", SHM, "served")
N = 100
SERVING: list[Serving] = []  # of the test that runs


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    yield
    while SERVING:
        SERVING.pop().close()


def group(kind: str, size: int, folder: Path) -> list[Any]:
    if kind == "shm":
        return [SharedMemoryCollective(folder, rank, size) for rank in range(size)]
    if kind == "served":
        SERVING.append(Serving(size))
        return [served(rank) for rank in range(size)]
    made = MemoryGroup(size, timeout=5)
    return [made.member(rank) for rank in range(size)]


def served(rank: int, epoch: int = 0) -> Any:
    made = SERVING[-1].member(rank, epoch)
    made.use_ring(None)
    return made


def another(kind: str, ranks: list[Any], folder: Path) -> Any:
    """One in the place of rank 1 of two."""
    if kind == "memory":
        return ranks[0].group.member(1)
    return served(1, 1) if kind == "served" else SharedMemoryCollective(folder, 1, 2)


def part(number: int, position: int) -> np.ndarray:
    rng = np.random.default_rng([number, position])
    return (rng.standard_normal(N) * 10.0 ** rng.integers(-3, 4, N)).astype(np.float32)


def total(number: int, parts: int) -> bytes:
    return sum_in_rank_order([part(number, position) for position in range(parts)]).tobytes()


def put(rank: Any, number: int, position: int | None, parts: int) -> tuple[Any, np.ndarray]:
    buffer = np.zeros(N, np.float32) if position is None else part(number, position)
    rank.assign_summand(number, position, parts, number)
    return rank.start("d", buffer), buffer


def summed(rank: Any, number: int, position: int | None, parts: int) -> bytes:
    handle, buffer = put(rank, number, position, parts)
    rank.wait(handle)
    return buffer.tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_do_the_work_of_three_in_the_same_order(kind: str, tmp_path: Path) -> None:
    """Rank 2 is gone; its part is rank 0's in one round and rank 1's in the next."""
    one, two, _ = group(kind, 3, tmp_path)
    for rank in (one, two):
        rank.leave_out(2)
    for number in range(1, 8):
        worker, other = (one, two) if number % 2 else (two, one)
        put(worker, number, 2, 3)
        put(other, number, 1, 3)
        assert summed(worker, number, 0, 3) == total(number, 3) == summed(other, number, 1, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_may_come_twice_and_a_rank_may_only_listen(kind: str, tmp_path: Path) -> None:
    one, two = group(kind, 2, tmp_path)
    put(one, 1, 0, 1)
    assert summed(one, 1, 0, 1) == total(1, 1) == summed(two, 1, None, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wait_is_broken_off_for_something_else(kind: str, tmp_path: Path) -> None:
    one, two = group(kind, 2, tmp_path)
    wanted = threading.Event()
    one.wanted = wanted.is_set
    handle, buffer = put(one, 1, 0, 2)

    def call() -> None:
        time.sleep(0.05)
        wanted.set()
        one.interrupt()

    threading.Thread(target=call).start()
    with pytest.raises(InterruptedSum):
        one.wait(handle)
    wanted.clear()
    put(two, 1, 1, 2)
    one.wait(handle)
    assert buffer.tobytes() == total(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_generation_begins_with_round_one(kind: str, tmp_path: Path) -> None:
    one, two = group(kind, 2, tmp_path)
    put(two, 1, 1, 2)
    assert summed(one, 1, 0, 2) == total(1, 2)
    for rank in (one, two):
        rank.renew(5)
    put(two, 1, 0, 1)
    assert summed(one, 1, None, 1) == total(1, 1)


@pytest.mark.skipif(not available(), reason="no shared memory")
def test_nothing_is_overwritten_that_a_slow_rank_still_has_to_read(tmp_path: Path) -> None:
    one, two = group("shm", 2, tmp_path)
    handles = [put(two, number, None, 1) for number in (1, 2)]
    for number in (1, 2):
        assert summed(one, number, 0, 1) == total(number, 1)
    late = threading.Thread(target=put, args=(one, 3, 0, 1))
    late.start()
    late.join(0.1)
    assert late.is_alive()  # round 3 goes where round 1 is
    for number, (handle, buffer) in enumerate(handles, start=1):
        two.wait(handle)
        assert buffer.tobytes() == total(number, 1)
    late.join(5)
    assert not late.is_alive()


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from gbactl.collective.shared_memory import SharedMemoryCollective
rank = SharedMemoryCollective(Path(sys.argv[1]), 2, 3)
rank.sum_live_ranks()
for number in (1, 2):
    rank.start("d", np.full(100, 100.0 * number, np.float32))
"""


def both(ranks: list[Any]) -> list[float]:
    """Two ranks take part in a round with 1 and 2; what each gets."""
    buffers = [np.full(N, rank.rank + 1.0, np.float32) for rank in ranks]
    handles = [rank.start("d", buffer) for rank, buffer in zip(ranks, buffers, strict=True)]
    for rank, handle in zip(ranks, handles, strict=True):
        rank.wait(handle)
    assert all(buffer.min() == buffer.max() for buffer in buffers)
    return [float(buffer[0]) for buffer in buffers]


@pytest.mark.skipif(not available(), reason="no shared memory")
def test_a_dead_process_counts_in_what_it_had_put_in_and_then_no_more(tmp_path: Path) -> None:
    child = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], timeout=60, check=False)
    assert child.returncode == 0
    ranks = group("shm", 3, tmp_path)[:2]
    for rank in ranks:
        rank.sum_live_ranks()
    assert [both(ranks) for _ in range(4)] == [[103.0] * 2, [203.0] * 2, [3.0] * 2, [3.0] * 2]


@pytest.mark.parametrize("kind", KINDS)
def test_one_that_never_came_is_missing_once_it_is_given_up(kind: str, tmp_path: Path) -> None:
    ranks = group(kind, 3, tmp_path)[:2]
    for rank in ranks:
        rank.sum_live_ranks()
    handles = [rank.start("d", np.ones(N, np.float32)) for rank in ranks]
    late = threading.Thread(target=ranks[0].wait, args=(handles[0],))
    late.start()
    late.join(0.1)
    assert late.is_alive()  # nobody knows yet that rank 2 will not come
    for rank in ranks:
        rank.leave_out(2)
    late.join(5)
    ranks[1].wait(handles[1])
    assert not late.is_alive()
    assert both(ranks) == [3.0, 3.0]


@pytest.mark.parametrize("kind", KINDS)
def test_another_one_in_its_place_takes_part_in_the_next_generation(kind: str, tmp_path: Path) -> None:
    ranks = group(kind, 2, tmp_path)
    for rank in ranks:
        rank.sum_live_ranks()
    assert both(ranks) == [3.0, 3.0]
    ranks[0].leave_out(1)
    successor = another(kind, ranks, tmp_path)
    for rank in (ranks[0], successor):
        rank.renew(7)
        rank.sum_live_ranks()
    assert both([ranks[0], successor]) == [3.0, 3.0]


def under(kind: str, folder: Path) -> list[Any]:
    """Two ranks, of which the first has a ring."""
    if kind == "shm":
        return group(kind, 2, folder)
    SERVING.append(Serving(2))
    return [SERVING[-1].member(0), served(1)]


class Brittle:
    """A ring of one that breaks when it is told to."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.broken = self.abandoned = self.closed = False

    def start(self, name: str, buffer: Any) -> Any:
        return buffer

    def wait(self, handle: Any) -> None:
        if self.broken:
            raise ClusterError("all-reduce d failed on rank 0: another rank is gone.")
        handle[:] = 42.0

    def abandon(self) -> None:
        self.abandoned = True

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("kind", [SHM, "served"])
def test_a_ring_that_breaks_leaves_the_sum_to_what_is_under_it(kind: str, tmp_path: Path) -> None:
    ring, slots = Brittle(), under(kind, tmp_path)
    one = slots[0]
    one.use_ring(ring)
    assert summed(one, 1, 0, 2) == np.full(N, 42.0, np.float32).tobytes()
    put(slots[1], 1, 1, 2)
    ring.broken = True
    put(slots[1], 2, 1, 2)
    assert summed(one, 2, 0, 2) == total(2, 2)
    assert ring.abandoned and one.ring is None
    one.close()
    assert not ring.closed


@pytest.mark.parametrize("kind", [SHM, "served"])
def test_where_a_ring_breaks_the_replicas_of_those_who_live_are_averaged(kind: str, tmp_path: Path) -> None:
    ring, slots = Brittle(), under(kind, tmp_path)
    one = slots[0]
    one.use_ring(ring)
    one.sum_live_ranks()
    buffer = part(1, 0)
    one.wait(one.start("d", buffer))
    assert buffer.tobytes() == np.full(N, 42.0, np.float32).tobytes()
    one.leave_out(1)
    buffer = part(2, 0)
    one.wait(one.start("d", buffer))
    assert buffer.tobytes() == part(2, 0).tobytes() and ring.abandoned


@pytest.mark.skipif(not available(), reason="no shared memory")
def test_without_room_the_ring_does_alone_until_it_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring, one = Brittle(), group("shm", 2, tmp_path)[0]
    one.use_ring(ring)

    def full(*_: Any) -> None:
        raise ClusterError("/dev/shm has no room for 9 MiB.")

    monkeypatch.setattr(SharedMemoryCollective, "give", full)
    for number in (1, 2):
        assert summed(one, number, 0, 2) == np.full(N, 42.0, np.float32).tobytes()
    ring.broken = True
    with pytest.raises(ClusterError, match="another rank is gone"):
        summed(one, 3, 0, 2)


def counting(ranks: list[Any]) -> Counter[bool]:
    """What `ranks` tell from now on: bytes sent, and (True) written to shared memory."""
    seen: Counter[bool] = Counter()
    for rank in ranks:
        rank.on_bytes_sent = lambda nbytes, shared: seen.update({shared: nbytes})
    return seen


@pytest.mark.parametrize("living", [3, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_who_lives_tells_what_a_sum_moves(kind: str, living: int, tmp_path: Path) -> None:
    """A server that sums is sent messages, which count themselves."""
    ranks = group(kind, 3, tmp_path)[:living]
    seen = counting(ranks)
    for rank in ranks if living == 2 else ():
        rank.leave_out(2)
    handles = [put(rank, 1, place, living)[0] for place, rank in enumerate(ranks)]
    for rank, handle in zip(ranks, handles, strict=True):
        rank.wait(handle)
    assert seen[False] == (2 * (living - 1) * 4 * N if kind == "memory" else 0)
    assert seen[True] == (living * 4 * N if kind == "shm" else 0)


@pytest.mark.skipif(not available(), reason="no shared memory")
def test_a_ring_and_what_lies_beside_it_are_both_counted(tmp_path: Path) -> None:
    rings = group("memory", 2, tmp_path)
    ones = group("shm", 2, tmp_path)
    for one, ring in zip(ones, rings, strict=True):
        one.use_ring(ring)
    seen = counting(ones)
    handles = [one.start("d", part(1, position)) for position, one in enumerate(ones)]
    for one, handle in zip(ones, handles, strict=True):
        one.wait(handle)
    assert seen == {False: 2 * 4 * N, True: 2 * 4 * N}
