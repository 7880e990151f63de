"""Interfaces of an all-reduce among workers (rendezvous and ranks), and a gradient that is summed while it is computed.

A vector is summed in place over all ranks, under a name that stands for one length for the whole run. Nothing is fused
or reordered by timing, so that the same inputs give the same bits every time.

A gradient is summed in pieces ("buckets") that are fixed and named for the whole run; each is one all-reduce. A bucket
is started as soon as its last parameter has its gradient and every bucket behind it is started. The order of starts is
fixed, whatever the order in which gradients are computed, so that all ranks agree. This costs a few microseconds for
each parameter.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gbactl.errors import PeerGoneError
from gbactl.kernels.half_precision import Codec, round_here

SHARED_MEMORY = "shm"  # collective=
Vector = NDArray[np.float32]
OnBytesSent = Callable[[int, bool], None]


def ignore_bytes(nbytes: int, shared: bool) -> None:
    """Ignore the number of bytes that a collective sends: the default callback Collective.on_bytes_sent."""


class Collective(Protocol):
    """Interface of an all-reduce: sums float32 vectors over the ranks of one group.

    Every rank must start the same names with the same lengths in the same order. A name stands for one length for the
    lifetime of the collective. Buffers are 1-D contiguous float32, NumPy arrays or CPU torch tensors, and may not be
    touched between start() and wait()."""

    rank: int
    size: int
    #: called with the bytes that this rank has sent for a sum, or (True) written to shared memory
    on_bytes_sent: OnBytesSent

    def start(self, name: str, buffer: Any) -> Any:
        """Begin summing `buffer` (f32[n]) over the ranks, and return a handle for `wait` at once."""

    def wait(self, handle: Any) -> None:
        """Block until the buffer holds the sum. Raises ClusterError when another rank has failed."""

    def close(self) -> None:
        """Leave the group and release sockets, threads and memory; also after a failure. Idempotent."""


def as_array(buffer: Any) -> Vector:
    """Return a NumPy view of a buffer's memory, never a copy. Raises ValueError unless it is contiguous float32[n]."""
    array = buffer if isinstance(buffer, np.ndarray) else buffer.detach().numpy()
    if array.dtype != np.float32 or array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"a collective sums contiguous float32[n], not {array.dtype}{list(array.shape)}")
    return array


def as_tensor(buffer: Any) -> Any:
    """Return a torch view of a buffer's memory, never a copy. Raises ValueError unless it is contiguous float32[n]."""
    import torch

    return torch.from_numpy(as_array(buffer))


def ring_item(collective: str, wire_dtype: str) -> int:
    """Return the bytes per float in a collective's messages: 2 with fp16 on Horovod or Gloo, else 4.

    Gloo, with which Horovod sums too, adds fp16 and not bf16. In shared memory values have four bytes."""
    return 2 if wire_dtype == "fp16" and collective != SHARED_MEMORY else 4


def ring_bytes(length: int, ranks: int, item: int) -> int:
    """Compute the bytes that all ranks of a ring send together to sum `length` values.

    Each rank sends 2 (W - 1) / W of the vector's bytes, W being `ranks`. Values alone: no headers, and no negotiation
    of what is summed next (Horovod's)."""
    return 2 * (ranks - 1) * item * length


def ring_share(length: int, ranks: int, rank: int, item: int) -> int:
    """Compute the bytes that one rank of a ring sends to sum `length` values; summed over ranks: `ring_bytes`."""
    return (ring_bytes(length, ranks, item) + rank) // ranks


def sum_in_rank_order(parts: list[Vector]) -> Vector:
    """Sum vectors in float32 in rank order: ((p0 + p1) + p2) + ..."""
    total = parts[0].copy()
    for part in parts[1:]:
        np.add(total, part, out=total)
    return total


def rank_failed_error(name: str, rank: int) -> PeerGoneError:
    """Build the error for an all-reduce that failed because another rank has failed."""
    return PeerGoneError(f"all-reduce {name} failed on rank {rank}: another rank is gone.")


@dataclass(frozen=True)
class RingHandle:
    """Sum in a ring that was started: `work` is the library's own handle, `tensor` what the ring sums in place."""

    name: str
    work: Any
    tensor: Any  # keeps the memory alive until `wait`
    buffer: Any


class Ring(Collective):
    """Rank of a ring all-reduce by another library; `item`: bytes of a value on the wire, 4 or 2 (fp16).

    With fp16 the ring sums copies of the callers' buffers, which costs two passes over the vector; rounding is the
    caller's (see kernels/half_precision.py)."""

    def __init__(self, item: int) -> None:
        self.item, self.on_bytes_sent = item, ignore_bytes
        self._halves: dict[str, Any] = {}

    def start(self, name: str, buffer: Any) -> RingHandle:
        tensor = as_tensor(buffer)
        if self.item != 4:
            if name not in self._halves:
                self._halves[name] = tensor.half()
            tensor = self._halves[name].copy_(tensor)
        try:
            work = self._begin(name, tensor)
        except Exception as error:
            raise rank_failed_error(name, self.rank) from error
        return RingHandle(name, work, tensor, buffer)

    def wait(self, handle: RingHandle) -> None:
        try:
            self._finish(handle)
        except Exception as error:
            raise rank_failed_error(handle.name, self.rank) from error
        if self.item != 4:
            as_tensor(handle.buffer).copy_(handle.tensor)
        self.on_bytes_sent(ring_share(handle.tensor.numel(), self.size, self.rank, self.item), False)

    @abstractmethod
    def abandon(self) -> None:
        """Make pending and later waits fail soon, as another rank has failed. Callable from any thread."""

    @abstractmethod
    def _begin(self, name: str, tensor: Any) -> Any:
        """Begin to sum a tensor in place, and return the library's handle."""

    @abstractmethod
    def _finish(self, handle: RingHandle) -> None:
        """Wait for a sum. Raises an exception if another rank has failed."""


def bucket_edges(sizes: Sequence[int], count: int) -> tuple[int, ...]:
    """Cut a vector into at most `count` buckets of nearly equal length, with edges between parameters.

    `sizes` are the parameters' lengths in the order of the flat vector. A backward pass fills the vector from its
    end, so the last bucket is ready first. Bucket i is [edges[i], edges[i + 1])."""
    ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
    total = int(ends[-1]) if len(ends) else 0
    wanted = [total * (i + 1) / count for i in range(count - 1)]
    inner = {int(ends[np.abs(ends - at).argmin()]) for at in wanted}
    return (0, *sorted(inner - {0, total}), total)


class OverlappedGradient:
    """Gradient vector whose buckets are summed over ranks while a backward pass fills it.

    It has float32[edges[-1]] and is filled parameter by parameter, once a step. The collective sums bucket i of `edges`
    as `name.i`. `spans`: each parameter's (low, high) in the vector; none of them crosses an edge of a bucket. `codec`:
    rounds the summands and the sums, as values of two bytes on the wire would be."""

    def __init__(
        self, collective: Collective, name: str, edges: Sequence[int], buffer: Any, spans: Sequence[tuple[int, int]],
        codec: Codec | None = None,
    ) -> None:  # fmt: skip
        self.collective, self.name, self.edges, self.buffer, self.codec = collective, name, edges, buffer, codec
        self._bucket = [self._bucket_of(*span) for span in spans]
        self._parameters = [self._bucket.count(bucket) for bucket in range(len(edges) - 1)]
        self.begin()

    def _bucket_of(self, low: int, high: int) -> int:
        """Return the index of the bucket that contains [low, high). Raises ValueError if no bucket does."""
        for bucket, (begin, end) in enumerate(pairwise(self.edges)):
            if begin <= low and high <= end:
                return bucket
        raise ValueError(f"a parameter at [{low}, {high}) lies in no single bucket of {self.edges}")

    def begin(self) -> None:
        """Start a new step, in which no parameter's gradient is computed yet."""
        self._missing = list(self._parameters)
        self._next = len(self._parameters) - 1
        self._started: list[tuple[Any, Any]] = []

    def filled(self, parameter: int) -> None:
        """Record that a parameter's gradient is computed, and start the all-reduce of buckets that are now complete."""
        self._missing[self._bucket[parameter]] -= 1
        while self._next >= 0 and self._missing[self._next] <= 0:
            self._start()

    def flush(self) -> None:
        """Start the all-reduce of all remaining buckets, without waiting."""
        while self._next >= 0:
            self._start()

    def wait(self) -> None:
        """Block until the gradient vector holds the sums over all ranks; then start a new step."""
        self.flush()
        try:
            for handle, piece in self._started:
                self.collective.wait(handle)
                round_here(self.codec, piece)
        finally:
            self.begin()

    def _start(self) -> None:
        number, self._next = self._next, self._next - 1
        piece = self.buffer[self.edges[number] : self.edges[number + 1]]
        round_here(self.codec, piece)
        self._started.append((self.collective.start(f"{self.name}.{number}", piece), piece))


@dataclass(frozen=True)
class RankSlot:
    """Host and local rank of a rank, as in Horovod's SlotInfo, and the network interface of its host."""

    hostname: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    size: int
    interface: str


class Rendezvous:
    """Launcher's rendezvous of `size` ranks: every rank's environment variables, and a count of rejected requests.

    `fallback`: the rendezvous of what sums once a rank of this one has failed, if anything does."""

    name = ""  # collective=
    refused = 0

    def __init__(self, size: int) -> None:
        self.size = size
        self.fallback: Rendezvous | None = None

    def environment(self, rank: int) -> dict[str, str]:
        """Return the environment variables that the process of `rank` needs at its start."""
        common = {"GBACTL_COLLECTIVE": self.name, "GBACTL_RANK": str(rank), "GBACTL_SIZE": str(self.size)}
        return {**({} if self.fallback is None else self.fallback.environment(rank)), **common, **self.own(rank)}

    def own(self, rank: int) -> dict[str, str]:
        """Return the environment variables of a rank that this collective alone needs."""
        raise NotImplementedError

    def release(self) -> None:
        """Stop answering ranks, and release all resources. Idempotent."""

    def close(self) -> None:
        """Close this rendezvous and the fallback's. Idempotent."""
        self.release()
        if self.fallback is not None:
            self.fallback.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
