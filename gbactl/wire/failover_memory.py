"""What a node remembers for a coordinator that takes the place of one that died. A dictionary entry a batch."""

from __future__ import annotations

from collections import deque

from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase, Granted, Holding, Staged

LAST = 256  # grants remembered: more than a worker may have at once
MOST = 256  # parts remembered beyond those that wait


class Holdings:
    """A worker's: which batches it was granted, and which of them it has not pushed or given back."""

    def __init__(self) -> None:
        self._granted: deque[tuple[int, int]] = deque(maxlen=LAST)
        self._held: dict[tuple[int, int], bool] = {}

    def granted(self, grant: Granted, phase: BeginPhase) -> None:
        """A batch has come."""
        batch = (grant.phase, grant.batch)
        self._granted.append(batch)
        self._held[batch] = phase.training

    def returned(self, grant: Granted) -> None:
        """It is about to be pushed, or given back."""
        self._held.pop((grant.phase, grant.batch), None)

    def told(self, worker: int, epoch: int, phase: BeginPhase | None) -> Holding:
        """For a coordinator, of this epoch, that asks."""
        granted = [number for pair in self._granted for number in pair]
        held = [number for pair, training in list(self._held.items()) for number in (*pair, int(training))]
        return Holding(worker, epoch, 0 if phase is None else phase.number, granted, held)


class Waiting:
    """A server's: what it told of every part of a gradient that waits for its step."""

    def __init__(self) -> None:
        self._told: dict[int, Staged] = {}

    def told(self, message: Staged, shard: Shard) -> None:
        """A part was staged in a shard."""
        self._told[message.batch] = message
        if len(self._told) > MOST:
            self._told = {each.batch: each for each in self.waiting(shard)}

    def waiting(self, shard: Shard) -> list[Staged]:
        """What was told of those that still wait there."""
        return [self._told[batch] for batch in shard.staged if batch in self._told]

    def clear(self) -> None:
        """Another phase begins: batches count from 0 again."""
        self._told.clear()
