"""All-reduce fallback for workers that share no memory: the first server computes the sums of a broken ring.

While the ring works, every rank keeps a copy of its part of an all-reduce round and of the last sum: a step costs two
copies of the vector, and nothing is sent. Once the ring breaks, every rank sends the server both copies, so that a sum
which reached some ranks reaches all. What a failed rank had contributed to a sum that reached no other rank is lost.
After that a round costs the vector to that server and back, over the existing connections. The server's successor is
sent both again. server/allreduce_fallback.py has the server's side.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gbactl.collective.base import Vector, as_array
from gbactl.collective.fault_tolerant import FaultTolerantCollective, InterruptedSum
from gbactl.errors import PeerGoneError, WireError
from gbactl.wire.frames import Frame
from gbactl.wire.messages import Sum, Summand
from gbactl.worker.client import WorkerClient

SERVER = 0  # the shard that sums: its decision about failed ranks holds for all


@dataclass
class _Round:
    """State of an all-reduce round on this rank: its own summands and, once received, the sum."""

    number: int
    part_count: int  # number of parts; 0: one part of every rank
    after: int  # for a round with dealt parts: the first version of the rows that includes its step
    length: int
    parts: dict[int, Vector] = field(default_factory=dict)  # this rank's own
    total: Vector | None = None


@dataclass(frozen=True)
class _Handle:
    round: _Round
    buffer: Vector


class ServerSums(FaultTolerantCollective):
    """All-reduce fallback that sums on the first server, as seen by one of `size` ranks.

    Its own bytes are those of messages, which are counted where they are sent. Any thread may call `fall_back`,
    `leave_out` and `interrupt`; one thread all else."""

    def __init__(self, client: WorkerClient, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.client = client
        self._lock = threading.Lock()  # may be taken while the client's lock is held, never the other way round
        self._generation, self._fallback_active = 0, False
        self._current_rounds: dict[str, _Round] = {}
        self._previous_rounds: dict[str, _Round] = {}
        self._free_arrays: list[Vector] = []
        client.handlers[Sum] = self._on_sum
        client.on_server_back = self._send_recent_to

    # -- methods of FaultTolerantCollective ---------------------------------------------------------

    def on_rank_failed(self, rank: int) -> None:
        with self._lock:
            self._absent.add(rank)
            for name, round_ in self._current_rounds.items() if self._fallback_active else ():
                self._request_sum(name, round_)

    def interrupt(self) -> None:
        self.client.wake()

    def renew(self, generation: int) -> None:
        with self._lock:
            super().renew(generation)
            self._generation = generation
            self._current_rounds.clear()
            self._previous_rounds.clear()
            self._free_arrays.clear()

    def on_ring_broken(self) -> None:
        with self._lock:
            if not self._fallback_active:
                self._fallback_active = True
                self._send_recent()

    # -- sums ---------------------------------------------------------------------------------------

    def give(self, name: str, buffer: Any) -> _Handle:
        array = as_array(buffer)
        with self._lock:
            current = self._current_rounds.get(name)
            following = 1 if current is None else current.number + 1
            number, part, parts, after = self._assignment or (following, self.rank, 0, 0)
            if current is None or current.number != number:
                current = self._next(name, _Round(number, parts, after, len(array)))
            if part is not None and part not in current.parts:
                current.parts[part] = self._copy(array)
            if self._fallback_active:
                self._send_part(name, current, -1 if part is None else part)
        return _Handle(current, array)

    def sum_given(self, handle: _Handle) -> None:
        self.on_ring_broken()
        round_ = handle.round
        self.client.wait_until(lambda: round_.total is not None or (self._assignment is not None and self.wanted()))
        if round_.total is None:
            if self._assignment is not None:
                raise InterruptedSum
            raise PeerGoneError("The run ended before a sum of gradients was complete.")
        np.copyto(handle.buffer, round_.total)

    def confirm_sum(self, handle: _Handle) -> bool:
        """Record the ring's sum of an all-reduce round; return False if the server's sum replaces the ring's."""
        with self._lock:
            if not self._fallback_active and handle.round.total is None:
                handle.round.total = self._copy(handle.buffer)
            return not self._fallback_active

    def _next(self, name: str, new: _Round) -> _Round:
        """Begin an all-reduce round, and free the arrays of the round before the last, which no rank needs now."""
        previous, current = self._previous_rounds.get(name), self._current_rounds.get(name)
        if previous is not None:
            self._free_arrays += [*previous.parts.values(), *(() if previous.total is None else (previous.total,))]
        if current is not None:
            self._previous_rounds[name] = current
        self._current_rounds[name] = new
        return new

    def _copy(self, array: Vector) -> Vector:
        """Copy an array, into the memory of a freed one where possible."""
        for index, free in enumerate(self._free_arrays):
            if len(free) == len(array):
                np.copyto(self._free_arrays.pop(index), array)
                return free
        return array.copy()

    # -- messages to the server; the lock is held ---------------------------------------------------------------

    def _send_recent(self) -> None:
        """Send the server this rank's sums and summands of the last two all-reduce rounds, in case it lacks them."""
        for name, round_ in [*self._previous_rounds.items(), *self._current_rounds.items()]:
            if round_.total is not None:
                self._send(Sum(self._generation, name, round_.number), round_.total)
            elif round_ is self._current_rounds.get(name):
                for part in round_.parts:
                    self._send_part(name, round_, part, more_follow=True)
                self._request_sum(name, round_)

    def _request_sum(self, name: str, round_: _Round) -> None:
        if round_.total is None:
            self._send_part(name, round_, -1)

    def _send_part(self, name: str, round_: _Round, part: int, more_follow: bool = False) -> None:
        fields = (part, round_.part_count, self.size, sorted(self._absent), 0 if more_follow else round_.after)
        self._send(Summand(self._generation, name, round_.number, round_.length, *fields), round_.parts.get(part))

    def _send(self, message: Summand | Sum, values: Vector | None) -> None:
        channel = self.client.servers[SERVER]
        if values is None:
            channel.send(message)
            return
        out = channel.reserve(values.nbytes)
        out.view(np.float32)[:] = values
        channel.send(message, out)

    def _send_recent_to(self, shard: int) -> None:
        """Send a replacement server this rank's sums and summands of the last two all-reduce rounds."""
        with self._lock:
            if shard == SERVER and self._fallback_active:
                self._send_recent()

    def _on_sum(self, shard: int, message: Sum, frame: Frame) -> None:
        """Store a sum that the server sent; a repetition is ignored."""
        with self._lock:
            round_ = self._current_rounds.get(message.name)
            if round_ is not None and (message.generation, message.number) == (self._generation, round_.number):
                if frame.payload.size != 4 * round_.length:
                    raise WireError(f"S{shard} sent a sum of {frame.payload.size} bytes, not {4 * round_.length}.")
                if round_.total is None:
                    round_.total = self._copy(frame.payload.view(np.float32))
            frame.release()
