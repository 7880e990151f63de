"""All-reduce fallback for workers that share no memory: the first server computes the sums of a broken ring.

While the ring works, every rank keeps a copy of its part of a round and of the last sum: two copies of the vector a
step, and nothing is sent. Once it breaks, every rank sends the server both, so that a sum which reached some ranks
reaches all. What a failed rank had contributed to a sum that reached no other rank is lost. From then on a round costs
the vector to that server and back, over the existing connections. The server's successor is sent both again.
server/allreduce_fallback.py has the server's side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gbactl.collective.base import InterruptedSum, Moved, RingFallback, Vector, as_array, ignore_bytes
from gbactl.errors import PeerGoneError, WireError
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Sum, Summand
from gbactl.worker.client import WorkerClient

SERVER = 0  # the shard that sums: its decision about failed ranks holds for all


@dataclass
class _Round:
    """State of an all-reduce round on this rank: its own summands and, once received, the sum."""

    number: int
    dealt: int  # number of parts; 0: one part of every rank
    after: int  # for a round with dealt parts: the first version of the rows that includes its step
    length: int
    parts: dict[int, Vector] = field(default_factory=dict)  # this rank's own
    total: Vector | None = None


@dataclass(frozen=True)
class _Handle:
    name: str
    round: _Round
    buffer: Vector


class ServerSums(RingFallback):
    """All-reduce fallback that sums on the first server, as seen by one of `size` ranks.

    Any thread may call `fall_back`, `leave_out` and `interrupt`; one thread all else."""

    def __init__(self, exchange: WorkerClient, rank: int, size: int) -> None:
        self.exchange, self.rank, self.size = exchange, rank, size
        self.wanted: Callable[[], bool] = lambda: False
        self.moved: Moved = ignore_bytes  # messages, which are counted where they are sent
        self._lock = threading.Lock()  # may be taken while the exchange's lock is held, never the other way round
        self._generation, self._fallen = 0, False
        self._dealt: tuple[int, int | None, int, int] | None = None
        self._absent: set[int] = set()
        self._now: dict[str, _Round] = {}
        self._before: dict[str, _Round] = {}
        self._free: list[Vector] = []
        exchange.handlers[Sum] = self._arrived
        exchange.on_server_back = self._again

    # -- methods of RingFallback --------------------------------------------------------------------

    def sum_live_ranks(self) -> None:
        self._dealt = None

    def assign_summand(self, number: int, part: int | None, parts: int, after: int) -> None:
        self._dealt = (number, part, parts, after)

    def leave_out(self, rank: int) -> None:
        with self._lock:
            self._absent.add(rank)
            for name, each in self._now.items() if self._fallen else ():
                self._ask(name, each)

    def interrupt(self) -> None:
        self.exchange.wake()

    def renew(self, generation: int) -> None:
        with self._lock:
            self._generation, self._dealt = generation, None
            self._absent.clear()
            self._now.clear()
            self._before.clear()
            self._free.clear()

    def fall_back(self) -> None:
        with self._lock:
            if not self._fallen:
                self._fallen = True
                self._tell()

    # -- sums ---------------------------------------------------------------------------------------

    def start(self, name: str, buffer: Any) -> _Handle:
        array = as_array(buffer)
        with self._lock:
            now = self._now.get(name)
            number, part, parts, after = self._dealt or (1 if now is None else now.number + 1, self.rank, 0, 0)
            if now is None or now.number != number:
                now = self._next(name, _Round(number, parts, after, len(array)))
            if part is not None and part not in now.parts:
                now.parts[part] = self._copied(array)
            if self._fallen:
                self._put(name, now, -1 if part is None else part)
        return _Handle(name, now, array)

    def wait(self, handle: _Handle) -> None:
        self.fall_back()
        each = handle.round
        self.exchange.wait_until(lambda: each.total is not None or (self._dealt is not None and self.wanted()))
        if each.total is None:
            if self._dealt is not None:
                raise InterruptedSum
            raise PeerGoneError("The run was over before a sum was.")
        np.copyto(handle.buffer, each.total)

    def confirm_sum(self, handle: _Handle) -> bool:
        """Record the ring's sum of a round; return False where the server's sum replaces the ring's."""
        with self._lock:
            if not self._fallen and handle.round.total is None:
                handle.round.total = self._copied(handle.buffer)
            return not self._fallen

    def close(self) -> None:
        """Do nothing: the connections to the server belong to the worker, which closes them."""

    def _next(self, name: str, new: _Round) -> _Round:
        """Begin an all-reduce round, and free the arrays of the round before the last, which no rank needs now."""
        old, last = self._before.get(name), self._now.get(name)
        if old is not None:
            self._free += [*old.parts.values(), *(() if old.total is None else (old.total,))]
        if last is not None:
            self._before[name] = last
        self._now[name] = new
        return new

    def _copied(self, array: Vector) -> Vector:
        """Copy an array, into the memory of a freed one where possible."""
        for index, free in enumerate(self._free):
            if len(free) == len(array):
                np.copyto(self._free.pop(index), array)
                return free
        return array.copy()

    # -- messages to the server; the lock is held ---------------------------------------------------------------

    def _tell(self) -> None:
        """Send the server this rank's sums and summands of the last two rounds, in case the server lacks them."""
        for name, each in [*self._before.items(), *self._now.items()]:
            if each.total is not None:
                self._bring(name, each)
            elif each is self._now.get(name):
                for part in each.parts:
                    self._put(name, each, part, more=True)
                self._ask(name, each)

    def _ask(self, name: str, each: _Round) -> None:
        if each.total is None:
            self._put(name, each, -1)

    def _put(self, name: str, each: _Round, part: int, more: bool = False) -> None:
        told = (part, each.dealt, self.size, sorted(self._absent), 0 if more else each.after)
        self._send(Summand(self._generation, name, each.number, each.length, *told), each.parts.get(part))

    def _bring(self, name: str, each: _Round) -> None:
        self._send(Sum(self._generation, name, each.number), each.total)

    def _send(self, message: Summand | Sum, values: Vector | None) -> None:
        channel = self.exchange.servers[SERVER]
        if values is None:
            channel.send(message)
            return
        out = channel.reserve(values.nbytes)
        out.view(np.float32)[:] = values
        channel.send(message, out)

    def _again(self, shard: int) -> None:
        """Send a replacement server this rank's sums and summands of the last two rounds."""
        with self._lock:
            if shard == SERVER and self._fallen:
                self._tell()

    def _arrived(self, shard: int, message: Sum, frame: Frame) -> None:
        """Store a sum that the server sent; a repetition is ignored."""
        with self._lock:
            each = self._now.get(message.name)
            if each is not None and (message.generation, message.number) == (self._generation, each.number):
                if frame.payload.size != 4 * each.length:
                    raise WireError(f"S{shard} made a sum of {frame.payload.size} bytes.")
                if each.total is None:
                    each.total = self._copied(frame.payload.view(np.float32))
            frame.release()
