"""The all-reduce behind `sync` as one small interface, and the buckets a vector is cut into.

A dense gradient is one flat float32 vector. It is summed in place over all ranks, in pieces
("buckets") that are fixed and named for the whole run: nothing is fused or reordered by timing, so the
same inputs give the same bits every time. Cost: one message round per bucket; a bucket can be started
while the backward pass still fills the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gbactl.errors import ClusterError

Vector = NDArray[np.float32]
Moved = Callable[[int, bool], None]
ALIGN = 16  # floats: bucket edges fall on cache lines


def uncounted(nbytes: int, shared: bool) -> None:
    """Nobody asks how much a collective moves."""


class Handle(Protocol):
    """What start() returns; only wait() of the same collective understands it."""


class Collective(Protocol):
    """Sums of float32 vectors over the ranks of one group.

    Every rank must start the same names with the same lengths in the same order. A name stands for one
    length for the life of the collective. Buffers are 1-D contiguous float32, NumPy arrays or CPU torch
    tensors, and may not be touched between start() and wait().
    """

    rank: int
    size: int
    #: told of the bytes that this rank has sent for a sum, or (True) written to memory that ranks share
    moved: Moved

    def start(self, name: str, buffer: Any) -> Any:
        """Begin summing `buffer` (f32[n]) over the ranks and return a handle at once."""

    def wait(self, handle: Any) -> None:
        """Block until the buffer holds the sum. Raises ClusterError when a peer is gone."""

    def close(self) -> None:
        """Leave the group and release sockets, threads and memory; also after a failure. Idempotent."""


def all_reduce_sum(collective: Collective, name: str, buffer: Any) -> None:
    """Sum `buffer` in place and block: start() and wait() in one."""
    collective.wait(collective.start(name, buffer))


@dataclass(frozen=True)
class Buckets:
    """Fixed cuts of a flat vector: bucket i is [edges[i], edges[i+1]) and is called `name.i`."""

    name: str
    edges: tuple[int, ...]

    @classmethod
    def even(cls, name: str, length: int, count: int) -> Buckets:
        """`count` pieces of nearly equal length (fewer when the vector is very short)."""
        blocks = -(-length // ALIGN)
        count = max(1, min(count, blocks))
        edges = [min(length, ALIGN * (blocks * i // count)) for i in range(count)]
        return cls(name, (*edges, length))

    @classmethod
    def of_parameters(cls, name: str, sizes: Sequence[int], count: int) -> Buckets:
        """At most `count` pieces whose edges fall between parameters, of nearly equal length.

        `sizes` are the parameters' lengths in the order of the flat vector. A backward pass fills the
        vector from its end, so the last bucket is ready first.
        """
        ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
        total = int(ends[-1]) if len(ends) else 0
        wanted = [total * (i + 1) / count for i in range(count - 1)]
        inner = {int(ends[np.abs(ends - at).argmin()]) for at in wanted}
        return cls(name, (0, *sorted(inner - {0, total}), total))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def label(self, index: int) -> str:
        """The collective's name of bucket `index`."""
        return f"{self.name}.{index}"

    def piece(self, buffer: Any, index: int) -> Any:
        """The view of `buffer` that is bucket `index`."""
        return buffer[self.edges[index] : self.edges[index + 1]]

    def start(self, collective: Collective, buffer: Any) -> list[Any]:
        """Start every bucket of `buffer` (f32[edges[-1]]), last one first: the order of a backward pass."""
        order = reversed(range(len(self)))
        return [collective.start(self.label(i), self.piece(buffer, i)) for i in order]

    def all_reduce_sum(self, collective: Collective, buffer: Any) -> None:
        """Sum the whole of `buffer` in place and block."""
        for handle in self.start(collective, buffer):
            collective.wait(handle)


def as_array(buffer: Any) -> Vector:
    """A NumPy view of the caller's memory (never a copy). Raises ValueError for anything else."""
    array = buffer if isinstance(buffer, np.ndarray) else buffer.detach().numpy()
    if array.dtype != np.float32 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"a collective sums contiguous float32[n], not {array.dtype}{list(array.shape)}")
    return array


def as_tensor(buffer: Any) -> Any:
    """A torch view of the caller's memory (never a copy). Raises ValueError for anything else."""
    import torch

    return torch.from_numpy(as_array(buffer))


def ring_item(collective: str, wire_dtype: str) -> int:
    """Bytes of a value on its way through a collective: Gloo, with which Horovod sums, too, adds fp16 and knows no
    bf16; in shared memory all have four."""
    return 2 if wire_dtype == "fp16" and collective != "shm" else 4


def ring_bytes(length: int, ranks: int, item: int = 4) -> int:
    """What all ranks of a ring together send to sum `length` values: each 2 (W - 1) / W of its bytes, W being `ranks`.

    Values alone: no headers, and nothing of what ranks say to agree on what is summed next (Horovod does)."""
    return 2 * (ranks - 1) * item * length


def ring_share(length: int, ranks: int, rank: int, item: int = 4) -> int:
    """One rank's part of `ring_bytes`, in whole bytes that add up to it."""
    return (ring_bytes(length, ranks, item) + rank) // ranks


class Handed:
    """What a ring is given: the buffers themselves, or, values being of two bytes, others that it sums in their place.

    Costs two passes over the vector there; rounding is the caller's (see kernels/halves.py)."""

    def __init__(self, item: int) -> None:
        self.item = item
        self._halves: dict[str, Any] = {}

    def of(self, name: str, buffer: Any) -> Any:
        """A tensor with the values of `buffer` (f32[n]); its memory is the name's until `back`."""
        tensor = as_tensor(buffer)
        if self.item == 4:
            return tensor
        if name not in self._halves:
            self._halves[name] = tensor.half()
        return self._halves[name].copy_(tensor)

    def back(self, handed: Any, buffer: Any) -> None:
        """The sum is in what was handed: it is in the buffer now."""
        if self.item != 4:
            as_tensor(buffer).copy_(handed)


def sum_in_rank_order(parts: list[Vector]) -> Vector:
    """((p0 + p1) + p2) + ... in float32."""
    total = parts[0].copy()
    for part in parts[1:]:
        np.add(total, part, out=total)
    return total


def rank_gone(name: str, rank: int) -> ClusterError:
    """What an all-reduce that fails half-way means."""
    return ClusterError(f"all-reduce {name} failed on rank {rank}: another rank is gone.")


class Single:
    """A group of one rank: every sum is already there."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.moved: Moved = uncounted

    def start(self, name: str, buffer: Any) -> Any:
        """Check the buffer; there is nothing to sum."""
        as_array(buffer)
        return name

    def wait(self, handle: Any) -> None:
        """Return at once."""

    def abandon(self) -> None:
        """Nobody else can be gone."""

    def close(self) -> None:
        """Nothing to release."""
