"""The log's checksums against the replay's own."""

from __future__ import annotations

from typing import Any

from gbactl.coordinator.phase_log import Divergence, DivergenceError, named
from gbactl.errors import EventLogError
from gbactl.policies import Step
from gbactl.replay.recording import PhaseRecord, Recording
from gbactl.replay.replica import Replica
from gbactl.store.checksum import MODULUS
from gbactl.store.gradient_slice import Order
from gbactl.store.shard import Shard


class Checks:
    """`lenient`: bits may differ on this machine; the first difference is then kept instead of raised."""

    def __init__(self, recording: Recording, lenient: bool) -> None:
        self.recording, self.lenient = recording, lenient
        self.compared = 0
        self.first: Divergence | None = None
        self._agreed = -1

    def apply(self, shards: list[Shard], order: Order, step: Step) -> None:
        """Take a step on every shard and compare what the log has a checksum of."""
        members = [(member.worker, member.batch) for member in step.members]
        differ = []
        for number, shard in enumerate(shards):
            logged = self.recording.digests.get((order.step, number))
            touched = None if logged is None else shard.touched(order)
            shard.apply(order)
            if touched is not None:
                self.compared += 1
                if shard.step_digest(touched) != logged:
                    differ.append(number)
        for number in differ:
            self._report(number, order.step, members, f"in step {order.step} ({named(members)})")
        if not differ and (order.step, 0) in self.recording.digests:
            self._agreed = order.step

    def close(self, shards: list[Shard], phase: PhaseRecord) -> None:
        """A phase is over: everything a shard holds must be as logged. Raises EventLogError if nothing is."""
        step = shards[0].version - 1
        for number, shard in enumerate(shards):
            logged = phase.whole.get(number)
            if logged is None:
                raise EventLogError(
                    f"{self.recording.path} has no checksum of shard {number} at the end of phase {phase.begin.number}."
                )
            if not logged:  # at a switch, where the tables are too large to be read while everybody waits
                continue
            self.compared += 1
            if shard.checksum() != logged:
                self._report(number, step, [], f"at the end of phase {phase.begin.number}, after step {step}")
        self._agreed = step

    def model(self, replica: Replica, logged: dict[str, Any]) -> None:
        """Before and after a switch: the model of shards and workers together, if it was summed up."""
        own = replica.model_sum(logged["of"] == "dense")
        if not logged["model"] or own is None:
            return
        self.compared += 1
        if f"{own % MODULUS:016x}" != logged["model"]:
            self._report(-1, logged["step"], [], f"at a switch, {logged['when']}, after step {logged['step']}")

    def _report(self, shard: int, step: int, members: list[tuple[int, int]], where: str) -> None:
        since = "the start" if self._agreed < 0 else f"step {self._agreed}"
        what = "The model" if shard < 0 else f"Shard {shard}"
        text = f"{what} is not as logged {where}; the last checksum that agreed was at {since}."
        workers, batches = tuple(w for w, _ in members), tuple(b for _, b in members)
        found = Divergence("bits", step, text, shard, workers, batches)
        if not self.lenient:
            raise DivergenceError(found)
        self.first = self.first or found
