"""Records that a worker and a server keep for a coordinator failover. Costs a dictionary entry a batch."""

from __future__ import annotations

from collections import deque

from gbactl.store.shard import Shard
from gbactl.wire.messages import BeginPhase, Granted, Staged, WorkerState

LAST = 256  # grants remembered: more than a worker may hold at once
MOST = 256  # slices remembered beyond those that are still staged


class GrantedBatches:
    """A worker's record of granted batches and of those that it has neither pushed nor given back."""

    def __init__(self) -> None:
        self._granted: deque[tuple[int, int]] = deque(maxlen=LAST)
        self._held: dict[tuple[int, int], bool] = {}

    def granted(self, grant: Granted, phase: BeginPhase) -> None:
        """Record that a batch was granted."""
        batch = (grant.phase, grant.batch)
        self._granted.append(batch)
        self._held[batch] = phase.training

    def returned(self, grant: Granted) -> None:
        """Mark a batch as pushed or given back, just before that happens."""
        self._held.pop((grant.phase, grant.batch), None)

    def told(self, worker: int, epoch: int, phase: BeginPhase | None) -> WorkerState:
        """Build the Holding message that answers a coordinator of incarnation `epoch`."""
        granted = [number for pair in self._granted for number in pair]
        held = [number for pair, training in list(self._held.items()) for number in (*pair, int(training))]
        return WorkerState(worker, epoch, 0 if phase is None else phase.number, granted, held)


class StagedGradients:
    """A server's record of the Staged messages that it sent for gradient slices not yet applied."""

    def __init__(self) -> None:
        self._told: dict[int, Staged] = {}

    def told(self, message: Staged, shard: Shard) -> None:
        """Record a Staged message, sent for a gradient slice."""
        self._told[message.batch] = message
        if len(self._told) > MOST:
            self._told = {each.batch: each for each in self.waiting(shard)}

    def waiting(self, shard: Shard) -> list[Staged]:
        """Return the Staged messages of slices that are still staged in the shard."""
        return [self._told[batch] for batch in shard.staged if batch in self._told]

    def clear(self) -> None:
        """Forget all records at the start of a phase, in which batch numbers begin at 0 again."""
        self._told.clear()
