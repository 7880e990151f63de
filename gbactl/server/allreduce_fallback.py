"""All-reduce fallback on the first server: sums gradients if the workers' ring is broken and they share no memory.

The sum of an all-reduce round is complete when all its parts are there (where every rank contributes one part: those of
all live ranks), or as soon as a rank sends the sum that the ring had still computed. If a rank dies before it sends its
part, the server waits for the part until the step is ordered: by then all batches of the step were announced, none is
handed out again, and ranks that have sent all their parts send no more. The sum is then made without the part, and the
coordinator is told.

A sum is made once, in the order of the parts, and is the same for all ranks. It is sent when all live ranks have
reached the round before: so no rank is more than one round behind. The memory is that of the parts of two rounds and of
two sums. A part costs a pass over it in the server's one thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from gbactl.collective.base import sum_in_rank_order
from gbactl.errors import WireError
from gbactl.kernels.base import Floats
from gbactl.store.shard import Shard
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import Frame
from gbactl.wire.messages import RingBroken, Sum, Summand, SummandsLost

KEPT = 2  # sums: the newest one, and the one before, which a rank may still need
OPEN = 8  # maximum of rounds of one name that a server keeps
NAMES = 256
RANKS = 1 << 16  # limit of ranks, and of parts
log = logging.getLogger(__name__)


class SumAnswer(NamedTuple):
    """Answer to one rank: the sum of an all-reduce round."""

    rank: int
    message: Sum
    total: Floats


@dataclass
class _Round:
    parts: dict[int, Floats] = field(default_factory=dict)
    part_count: int = 0  # number of parts; 0: one part of every rank
    after: int = 0  # for a round of dealt parts: the first version of rows that includes its step
    total: Floats | None = None
    waiting_ranks: set[int] = field(default_factory=set)
    finished_ranks: set[int] = field(default_factory=set)  # ranks that will send no further part

    def missing(self, ranks: int) -> set[int]:
        """Return the indexes of a sum's gradients that have not arrived."""
        return set(range(self.part_count or ranks)) - set(self.parts)

    def complete(self, ranks: int, absent: set[int], version: int) -> bool:
        """Whether all gradients that can still arrive have arrived, so that the sum can be computed."""
        missing = self.missing(ranks)
        if not self.part_count:
            return bool(self.parts) and not missing - absent
        return not missing or (0 < self.after <= version and set(range(ranks)) - absent <= self.finished_ranks)


@dataclass
class _Name:
    length: int
    rounds: dict[int, _Round] = field(default_factory=dict)
    reached: dict[int, int] = field(default_factory=dict)  # rank -> the last round that it has reached
    forgotten_up_to: int = 0  # rounds up to this one are forgotten

    def forget(self, number: int) -> None:
        """Discard the all-reduce rounds up to round `number`, which no rank needs any more."""
        self.forgotten_up_to = max(self.forgotten_up_to, number)
        for old in [each for each in self.rounds if each <= number]:
            del self.rounds[old]


class GenerationSums:
    """Sums of one generation (group membership) of the workers, as a state machine: messages in, answers out."""

    def __init__(self) -> None:
        self.generation = 0
        self.version = 0  # version of the rows on this server
        self.lost: dict[int, set[int]] = {}  # step -> parts that its sum lacks
        self._ranks = 0
        self._absent: set[int] = set()
        self._names: dict[str, _Name] = {}

    def add_part(self, rank: int, message: Summand, values: Floats | None) -> Iterator[SumAnswer]:
        """Store a rank's vector f32[n] to be summed, or (part -1) only its request for the sum. Raises WireError."""
        parts = message.parts or message.ranks
        if not 0 <= rank < message.ranks <= RANKS or not -1 <= message.part < parts <= RANKS:
            place = f"part {message.part} of {message.parts} from rank {rank} of {message.ranks}"
            raise WireError(f"an impossible summand: {place}")
        if self._is_current(message.generation):
            self._ranks = message.ranks
            self._absent.update(set(message.absent) & set(range(message.ranks)))
            round_ = self._round(rank, message, message.length)
            if round_ is not None:
                round_.part_count = message.parts
                round_.waiting_ranks.add(rank)
                if message.after > 0:
                    round_.after = message.after
                    round_.finished_ranks.add(rank)
            if round_ is not None and values is not None and round_.total is None:
                round_.parts[message.part] = values
        return self._answer_complete()

    def add_ring_sum(self, rank: int, message: Sum, total: Floats) -> Iterator[SumAnswer]:
        """Store a sum that a rank had received from the ring before the ring broke. Raises WireError if invalid."""
        if self._is_current(message.generation):
            round_ = self._round(rank, message, len(total))
            if round_ is not None and round_.total is None:
                round_.total = total
        return self._answer_complete()

    def on_version(self, version: int) -> Iterator[SumAnswer]:
        """Record the new version of this server's rows, and answer sums that waited for it."""
        self.version = version
        return self._answer_complete()

    def _is_current(self, generation: int) -> bool:
        """Make a newer generation (group membership) the current one. Returns whether this generation is current."""
        if generation > self.generation:
            self.generation = generation
            self._absent.clear()
            self._names.clear()
        return generation == self.generation

    def _round(self, rank: int, message: Summand | Sum, length: int) -> _Round | None:
        """Find or create the all-reduce round that a message belongs to; None if every rank has finished that round."""
        name = self._names.get(message.name)
        if name is None:
            if len(self._names) == NAMES:
                raise WireError(f"the sums have more than {NAMES} names")
            name = self._names[message.name] = _Name(length)
        if length != name.length or message.number < 1:
            which = f"round {message.number} of {message.name}"
            raise WireError(f"{which}, numbered from 1, has {length} values; such rounds have {name.length}")
        if message.number <= name.forgotten_up_to:
            return None
        if message.number not in name.rounds and len(name.rounds) >= OPEN:
            raise WireError(f"round {message.number} of {message.name} begins while {OPEN} others are open")
        name.reached[rank] = max(name.reached.get(rank, 0), message.number)
        return name.rounds.setdefault(message.number, _Round())

    def _answer_complete(self) -> Iterator[SumAnswer]:
        for label, name in self._names.items():
            for number, round_ in sorted(name.rounds.items()):
                if round_.total is None and round_.complete(self._ranks, self._absent, self.version):
                    round_.total = self._sum(round_, name.length)
                if round_.total is None:
                    continue
                round_.parts.clear()
                if round_.waiting_ranks and self._all_reached(name, number - 1):
                    message = Sum(self.generation, label, number)
                    yield from (SumAnswer(rank, message, round_.total) for rank in sorted(round_.waiting_ranks))
                    round_.waiting_ranks.clear()
                    name.forget(number - KEPT)

    def _sum(self, round_: _Round, length: int) -> Floats:
        missing = round_.missing(self._ranks) if round_.part_count else set()
        if missing:
            self.lost.setdefault(round_.after - 1, set()).update(missing)
        received = [values for _, values in sorted(round_.parts.items())]
        return sum_in_rank_order(received) if received else np.zeros(length, np.float32)

    def _all_reached(self, name: _Name, number: int) -> bool:
        live = set(range(self._ranks)) - self._absent
        return all(name.reached.get(rank, 0) >= number for rank in live)


class SumHandlers:
    """Handlers of the all-reduce fallback's messages on a server's channels."""

    def __init__(self, shard: Shard, coordinator: Channel) -> None:
        self.sums, self.shard, self.coordinator = GenerationSums(), shard, coordinator
        self._channels: dict[int, Channel] = {}
        self._reported: dict[int, int] = {}  # step -> number of its lost parts that the coordinator knows
        self._ring_broken = False  # whether a ring is broken, which was reported
        #: message -> its handler, called by the server
        self.from_workers: dict[type[Any], Any] = {Summand: self._on_summand, Sum: self._on_ring_sum}

    def _on_summand(self, channel: Channel, message: Summand, frame: Frame) -> None:
        self._register_worker(channel)
        size = 0 if message.part < 0 else message.length
        if message.length < 0 or frame.payload.size != 4 * size:
            raise WireError(f"a summand of {message.length} values has {frame.payload.size} bytes")
        values = frame.payload.view(np.float32).copy() if message.part >= 0 else None
        self.sums.version = self.shard.version
        self._send_answers(self.sums.add_part(channel.peer.index, message, values))
        frame.release()

    def _on_ring_sum(self, channel: Channel, message: Sum, frame: Frame) -> None:
        self._register_worker(channel)
        self._send_answers(self.sums.add_ring_sum(channel.peer.index, message, frame.floats()))
        frame.release()

    def _register_worker(self, worker: Channel) -> None:
        """Record a worker that uses this server's sums, and report the broken ring to the coordinator once."""
        self._channels[worker.peer.index] = worker
        if not self._ring_broken:
            self._ring_broken = True
            self.coordinator.send(RingBroken())

    def on_step(self) -> None:
        """After a step was applied, send the sums held back until the shard's rows had reached it."""
        self._send_answers(self.sums.on_version(self.shard.version))

    def on_takeover(self) -> None:
        """Report missing gradients and a broken ring to a new coordinator, which may not know of them."""
        self._reported.clear()
        self._report()
        if self._ring_broken:
            self.coordinator.send(RingBroken())

    def _report(self) -> None:
        for step, parts in sorted(self.sums.lost.items()):
            if self._reported.get(step) != len(parts):
                self._reported[step] = len(parts)
                log.warning("parts %s of the dense gradient of step %d are gone with a worker", sorted(parts), step)
                self.coordinator.send(SummandsLost(step, sorted(parts)))

    def _send_answers(self, answers: Iterator[SumAnswer]) -> None:
        for rank, message, total in answers:
            channel = self._channels[rank]
            out = channel.reserve(total.nbytes)
            out.view(np.float32)[:] = total
            channel.send(message, out)
        self._report()
