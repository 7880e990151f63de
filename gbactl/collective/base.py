"""Interface of an all-reduce among workers, and the buckets that a vector is cut into.

A dense gradient is one flat float32 vector. It is summed in place over all ranks, in pieces ("buckets") that are fixed
and named for the whole run. Nothing is fused or reordered by timing, so that the same inputs give the same bits every
time. Cost: one message round per bucket. A bucket can be started while the backward pass still fills the next one.
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
    """Ignore the number of bytes that a collective moves."""


class SumHandle(Protocol):
    """Handle of a started sum; only wait() of the same collective accepts it."""


class Collective(Protocol):
    """Sums of float32 vectors over the ranks of one group.

    Every rank must start the same names with the same lengths in the same order. A name stands for one length for the
    lifetime of the collective. Buffers are 1-D contiguous float32, NumPy arrays or CPU torch tensors, and may not be
    touched between start() and wait()."""

    rank: int
    size: int
    #: called with the bytes that this rank has sent for a sum, or (True) written to shared memory
    moved: Moved

    def start(self, name: str, buffer: Any) -> Any:
        """Begin summing `buffer` (f32[n]) over the ranks and return a handle at once."""

    def wait(self, handle: Any) -> None:
        """Block until the buffer holds the sum. Raises ClusterError when another rank has failed."""

    def close(self) -> None:
        """Leave the group and release sockets, threads and memory; also after a failure. Idempotent."""


def all_reduce_sum(collective: Collective, name: str, buffer: Any) -> None:
    """Sum `buffer` in place and block: start() and wait() in one."""
    collective.wait(collective.start(name, buffer))


@dataclass(frozen=True)
class Buckets:
    """Fixed partition of a flat vector: bucket i is [edges[i], edges[i+1]) and is called `name.i`."""

    name: str
    edges: tuple[int, ...]

    @classmethod
    def even(cls, name: str, length: int, count: int) -> Buckets:
        """Cut a vector into `count` buckets of nearly equal length (fewer when it is very short)."""
        blocks = -(-length // ALIGN)
        count = max(1, min(count, blocks))
        edges = [min(length, ALIGN * (blocks * i // count)) for i in range(count)]
        return cls(name, (*edges, length))

    @classmethod
    def of_parameters(cls, name: str, sizes: Sequence[int], count: int) -> Buckets:
        """Cut a vector into at most `count` buckets of nearly equal length, with edges between parameters.

        `sizes` are the parameters' lengths in the order of the flat vector. A backward pass fills the vector from its
        end, so the last bucket is ready first."""
        ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
        total = int(ends[-1]) if len(ends) else 0
        wanted = [total * (i + 1) / count for i in range(count - 1)]
        inner = {int(ends[np.abs(ends - at).argmin()]) for at in wanted}
        return cls(name, (0, *sorted(inner - {0, total}), total))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def label(self, index: int) -> str:
        """Return the name of bucket `index` in the collective."""
        return f"{self.name}.{index}"

    def piece(self, buffer: Any, index: int) -> Any:
        """Return the view of `buffer` that is bucket `index`."""
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
    """Return a NumPy view of the caller's memory (never a copy). Raises ValueError for anything else."""
    array = buffer if isinstance(buffer, np.ndarray) else buffer.detach().numpy()
    if array.dtype != np.float32 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"a collective sums contiguous float32[n], not {array.dtype}{list(array.shape)}")
    return array


def as_tensor(buffer: Any) -> Any:
    """Return a torch view of the caller's memory (never a copy). Raises ValueError for anything else."""
    import torch

    return torch.from_numpy(as_array(buffer))


def ring_item(collective: str, wire_dtype: str) -> int:
    """Return the bytes of a value in a collective's messages: 2 with fp16 on Gloo, else 4.

    Gloo, with which Horovod sums too, adds fp16 and not bf16. In shared memory values have four bytes."""
    return 2 if wire_dtype == "fp16" and collective != "shm" else 4


def ring_bytes(length: int, ranks: int, item: int = 4) -> int:
    """Compute the bytes that all ranks of a ring send together to sum `length` values.

    Each rank sends 2 (W - 1) / W of the vector's bytes, W being `ranks`. Values alone: no headers, and no negotiation
    of what is summed next (Horovod's)."""
    return 2 * (ranks - 1) * item * length


def ring_share(length: int, ranks: int, rank: int, item: int = 4) -> int:
    """Compute one rank's share of `ring_bytes`, in whole bytes that add up to it."""
    return (ring_bytes(length, ranks, item) + rank) // ranks


class WireTensors:
    """Tensors that a ring sums: the buffers themselves, or fp16 copies where values have two bytes on the wire.

    A copy costs two passes over the vector; rounding is the caller's (see kernels/halves.py)."""

    def __init__(self, item: int) -> None:
        self.item = item
        self._halves: dict[str, Any] = {}

    def of(self, name: str, buffer: Any) -> Any:
        """Return a tensor with the values of `buffer` (f32[n]); its memory is reserved for `name` until `back`."""
        tensor = as_tensor(buffer)
        if self.item == 4:
            return tensor
        if name not in self._halves:
            self._halves[name] = tensor.half()
        return self._halves[name].copy_(tensor)

    def back(self, handed: Any, buffer: Any) -> None:
        """Copy the sum from the ring's tensor to the buffer."""
        if self.item != 4:
            as_tensor(buffer).copy_(handed)


def sum_in_rank_order(parts: list[Vector]) -> Vector:
    """Sum vectors in float32 in rank order: ((p0 + p1) + p2) + ..."""
    total = parts[0].copy()
    for part in parts[1:]:
        np.add(total, part, out=total)
    return total


def rank_gone(name: str, rank: int) -> ClusterError:
    """Build the error of an all-reduce that failed half-way."""
    return ClusterError(f"all-reduce {name} failed on rank {rank}: another rank is gone.")


class SingleRankCollective:
    """Collective of a single rank, whose sums are the buffers themselves."""

    rank = 0
    size = 1

    def __init__(self) -> None:
        self.moved: Moved = uncounted

    def start(self, name: str, buffer: Any) -> Any:
        """Return at once after checking the buffer, which already is the sum."""
        as_array(buffer)
        return name

    def wait(self, handle: Any) -> None:
        """Return at once, as a single rank has nothing to wait for."""

    def abandon(self) -> None:
        """Do nothing, as no other rank can fail."""

    def close(self) -> None:
        """Do nothing, as there is nothing to release."""
