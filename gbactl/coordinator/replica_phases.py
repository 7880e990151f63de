"""The coordinator's part in phases whose workers are trainers: opens them, closes them, adds up what was noted.

A phase is closed when everything has arrived, since a dead trainer's batches may still be handed to one that was out
of data. Where replicas meet in rounds in the foreground, who is out of data is told so before: it must answer those who
are not (see trainer/exchange.py). Then every trainer gives the servers its replica, and they hold the mean of what all
gave, or keep the centre. Who dies is in no mean from then on. Where a server is lost meanwhile, and what it was given,
all give again; so they do for a coordinator in the place of one that died. Costs two or three messages to and one from
every worker.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from gbactl.config import RunConfig
from gbactl.coordinator.membership import Members
from gbactl.coordinator.statistics import check_notes, notes_summary, total_notes
from gbactl.policies import Policy
from gbactl.policies.base import policy_class
from gbactl.policies.replicas import ReplicaOptions, ReplicaPolicy
from gbactl.wire.messages import Absent, ClosedReplicas, CloseReplicas, OpenReplicas, SettleReplicas


class Trainers:
    """Does nothing in other modes. `wait` handles messages until a condition holds; `seconds` of the run so far; `lost`
    counts the servers that were; `life`: how many coordinators there were before."""

    def __init__(
        self, members: Members, wait: Callable[[Callable[[], bool]], Any], seconds: Callable[[], float],
        lost: Callable[[], int] = lambda: 0, life: int = 0,
    ) -> None:  # fmt: skip
        self.members, self.wait, self.seconds, self.lost = members, wait, seconds, lost
        self._began = 0.0
        self._turn = life << 20  # of a closing; no coordinator before has had it
        self._kind: type[ReplicaPolicy] | None = None
        self._told: set[int] = set()
        self._idle = False
        self._more: list[int] = []
        self._late: Counter[int] = Counter()
        self._notes: dict[int, dict[str, Any]] = {}
        self._phases: list[dict[str, Any]] = []
        self._last: dict[str, Any] = {}
        self._of_all: dict[str, Any] = {}

    def open(self, cfg: RunConfig, phase: int, waiting: deque[int], began: float | None = None) -> None:
        """Phase number `phase`, of `cfg`, has begun, and nobody has a batch of it yet; `waiting` are those who ask for
        one.

        A trainer asks for as many more as its threads beyond the first have use for. One that `began` so many seconds
        into the run goes on: who has heard of it takes no notice, and who waits is known already."""
        kind, self._last = policy_class(cfg.mode.name), {}
        self._kind = kind if issubclass(kind, ReplicaPolicy) else None
        if self._kind is None:
            return
        options, trainers = cfg.policy_options(), cfg.cluster.workers
        assert isinstance(options, ReplicaOptions)
        values = dataclasses.asdict(options)
        self._began = self.seconds() if began is None else began
        self._ask_anew()
        self._idle = False
        self.members.tell("worker", OpenReplicas(phase, self._kind.rule, self._kind.shadow, trainers, values))
        self._tell_of_the_dead()
        self._close(worker for worker in self.members.of("worker") if worker >= trainers)
        threads = options.hogwild_threads
        live = [worker for worker in self.members.of("worker") if worker < trainers]
        self._more = [worker for _ in range((threads - 1) * (1 + cfg.mode.prefetch)) for worker in live]
        waiting.extend(self._more if began is None else ())
        self._last = self._of_all = {
            "evaluated": "mean of the replicas" if self._kind.collective else "centre",
            "trainers": trainers, "hogwild_threads": threads, "elp": cfg.local_batch * threads * trainers,
        }  # fmt: skip

    def _tell_of_the_dead(self) -> None:
        """A group that was formed anew knows nobody who died before."""
        for worker in sorted(set(range(self.members.expected["worker"])) - set(self.members.of("worker"))):
            self.members.tell("worker", Absent(worker))

    def look(self, policy: Policy) -> None:
        """Between two messages: tell those who meet in the foreground when nothing is left to hand out."""
        if self._kind is None or self._kind.shadow or not self._kind.collective or self._idle or not policy.exhausted:
            return
        self._idle = True
        for worker in sorted(set(self.members.of("worker")) - self._told):
            self.members.of("worker")[worker].send(CloseReplicas(self._turn, False))

    def close(self, waiting: deque[int]) -> None:
        """Nothing is in flight: wait until all have parted, and have the servers settle what they gave."""
        if self._kind is None:
            return
        more, self._more = self._more, []
        for worker in more:
            if worker in waiting:
                waiting.remove(worker)
            else:
                self._late[worker] += 1
        self._give()
        self.members.tell("server", SettleReplicas(self._kind.collective))
        notes = total_notes(self._notes.values())
        notes["distances"] = [[self._began + at, distance] for at, distance in notes["distances"]]
        self._phases.append(notes)
        self._last = {**self._last, **notes_summary(notes)}
        self._kind = None

    def _give(self) -> None:
        """Until every server has what every trainer gives."""
        while True:
            lost = self.lost()
            self._close(self.members.of("worker"))
            self.wait(lambda: set(self.members.of("worker")) <= set(self._notes))
            if lost == self.lost():
                return
            self._ask_anew()

    def _ask_anew(self) -> None:
        self._turn += 1
        self._told, self._notes = set(), {}

    def _close(self, workers: Any) -> None:
        for worker in sorted(set(workers) - self._told):
            self._told.add(worker)
            self.members.of("worker")[worker].send(CloseReplicas(self._turn))

    def left(self, worker: int) -> None:
        """A worker is gone, and what its threads asked for: one in its place asks for its own."""
        self._more = [each for each in self._more if each != worker]
        self._late.pop(worker, None)

    def one_too_many(self, worker: int) -> bool:
        """Whether a worker that asks for a batch does so for a thread of a phase that is over."""
        if not self._late[worker]:
            return False
        self._late[worker] -= 1
        return True

    def more(self, worker: int) -> int:
        """For how many batches a worker's threads ask in this phase, beside those that it asks for in any mode."""
        return self._more.count(worker)

    def too_many(self, worker: int, batches: int) -> None:
        """A worker has so many more than it may have outside of a phase: it asks in vain when they are done."""
        self._late[worker] = batches

    def closed(self, message: ClosedReplicas) -> None:
        """A worker's answer. Raises WireError where its notes are none."""
        check_notes(message.notes)
        if message.turn == self._turn:
            self._notes[message.worker] = message.notes

    @property
    def saved(self) -> list[int]:
        """Those whose replicas a checkpoint needs now: every trainer, within a phase."""
        trainers = self._last.get("trainers", 0) if self._kind is not None else 0
        return [worker for worker in self.members.of("worker") if worker < trainers]

    @property
    def centred(self) -> bool:
        """Whether the dense parameters of this phase are a centre, which the servers hold."""
        return self._kind is not None and not self._kind.collective

    def told(self) -> dict[str, Any]:
        """What a coordinator that takes over between two phases has to know, as plain containers."""
        return {"phases": self._phases, "last": self._last, "all": self._of_all}

    def restore(self, told: dict[str, Any]) -> None:
        """Go on where another one was."""
        self._phases, self._last, self._of_all = list(told["phases"]), told["last"], told["all"]

    @property
    def kept(self) -> str:
        """What became the dense parameters at the end of the last phase: "centre" or "mean of the replicas"; "" where
        it had none."""
        return str(self._last.get("evaluated", ""))

    def phase(self) -> dict[str, Any]:
        """What the phase just closed says of its replicas: nothing where it had none."""
        return {"replicas": self._last} if self._last else {}

    def result(self) -> dict[str, Any]:
        """What result.json says of all phases with replicas together."""
        if not self._phases:
            return {}
        return {"replicas": {**self._of_all, **notes_summary(total_notes(self._phases))}}
