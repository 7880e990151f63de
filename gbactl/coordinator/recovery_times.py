"""Cost of each failure: seconds until it was detected, replaced, useful again, and the updates undone. Pure.

Two kinds of samples are undone. A server that goes back alone, or a worker that loses a gradient slice of the dense
parameters, lacks their updates for good: `samples_undone` of this process, while the others keep them, and in
`row_updates_undone` the row updates among them. Their fate stays "trained"; their share of the job is `pls`.
Where all nodes go back, `samples_rolled_back` lose their fate and are read again. They are counted for the first
of several servers that fail at once, so that the sum over `recovery` is `samples.rolled_back`, beside
read = trained + decayed + lost. A record costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gbactl.checkpoint.ledger import ServerFailureLoss


@dataclass
class FailureRecord:
    """Failure of one process. Times by the run's clock; None: not reached.

    `at`: when it was injected, else the last sign of life."""

    process: str
    failure: str
    at: float
    detected: float
    loaded: float | None = None
    useful: float | None = None
    samples_undone: int = 0
    pls: float = 0.0
    row_updates_undone: int = 0
    samples_rolled_back: int = 0

    def add(self, loss: ServerFailureLoss) -> None:
        """Add to the cost of the failure."""
        self.samples_undone += loss.samples
        self.pls += loss.pls
        self.row_updates_undone += loss.updates

    def timed(self) -> dict[str, Any]:
        """Fields for the event log: seconds since it was injected, else since the last sign of life."""
        times = {"detected_s": self.detected, "loaded_s": self.loaded, "useful_s": self.useful}
        since = {name: None if time is None else time - self.at for name, time in times.items()}
        return {"process": self.process, "failure": self.failure, **since}

    def told(self) -> dict[str, Any]:
        """Fields for result.json: times and what the failure undid."""
        undone = ("samples_undone", "pls", "row_updates_undone", "samples_rolled_back")
        return {**self.timed(), **{name: getattr(self, name) for name in undone}}


@dataclass
class FailureRecords:
    """Failures of a run so far.

    `injured`: injected failures that are not detected yet, and their times; `struck`: step and seconds of training
    of the fault plan's last injection."""

    failed: list[FailureRecord] = field(default_factory=list)
    injured: dict[str, tuple[str, float]] = field(default_factory=dict)
    struck: tuple[int, float] = (-1, -1.0)


class RecoveryTimes:
    """Times of all failures. `now` in seconds. A process may fail more than once.

    `log` gets each failure with its number, once: when its process is useful again, or at the end."""

    def __init__(
        self, now: Callable[[], float], log: Callable[[int, FailureRecord], None] = lambda *_: None,
        state: FailureRecords | None = None,
    ) -> None:  # fmt: skip
        self.now, self._log = now, log
        self.state = FailureRecords() if state is None else state
        self._reborn: FailureRecord | None = None  # failure of this coordinator's own predecessor
        self._logged: set[int] = set()
        self._began = now()
        self._signs: dict[str, float] = {}  # last sign of life of each process

    @property
    def all(self) -> list[FailureRecord]:
        """Failures so far."""
        return self.state.failed

    def alive(self, process: str) -> None:
        """Record a message of a process as a sign of life."""
        self._signs[process] = self.now()

    def injected(self, process: str, kind: str) -> None:
        """Record that the fault plan injects a fault into a process now."""
        self.state.injured[process] = (kind, self.now())

    def detected(self, process: str, failure: str) -> None:
        """Record that a failure was detected; `failure` is its kind where no fault plan caused it."""
        sign = self._signs.pop(process, self._began)  # a process never heard of was silent from the start
        kind, at = self.state.injured.pop(process, (failure, sign))
        self.all.append(FailureRecord(process, kind, at, self.now()))

    def reborn(self, process: str, failure: str, detected: float, sign: float) -> None:
        """Record a failover of this process: when its predecessor's failure was detected, and its last sign of life."""
        kind, at = self.state.injured.pop(process, (failure, sign))
        self._reborn = FailureRecord(process, kind, min(at, detected), detected, self.now())
        self.all.append(self._reborn)

    def loaded(self, process: str) -> None:
        """Record that a process's successor is ready."""
        failed = self.last(process)
        if failed is not None and failed.loaded is None:
            failed.loaded = self.now()

    def useful(self, process: str) -> None:
        """Record that a process has done useful work."""
        if self._reborn is not None:
            reborn, self._reborn = self._reborn, None
            self._of_use(reborn)
        failed = self.last(process)
        if failed is not None and failed.loaded is not None and failed.useful is None:
            self._of_use(failed)

    def _of_use(self, failed: FailureRecord) -> None:
        failed.useful = self.now()
        self._tell(failed)

    def _tell(self, failed: FailureRecord) -> None:
        number = next(number for number, each in enumerate(self.all) if each is failed)
        if number not in self._logged:
            self._logged.add(number)
            self._log(number, failed)

    def end(self) -> None:
        """Log the failures whose processes are not useful again by the end of the run."""
        for failed in self.all:
            if failed.useful is None:
                self._tell(failed)

    def heard(self, logged: Iterable[Mapping[str, Any]]) -> None:
        """Restore the times that a failed coordinator logged; it may have failed before it saved them in its state."""
        for each in logged:
            self._logged.add(each["number"])
            failed = self.all[each["number"]]
            if failed.useful is None and each["useful_s"] is not None:
                failed.useful = failed.at + each["useful_s"]

    def dense_lost(self, samples: int) -> None:
        """Count samples whose dense gradients were lost with a worker; the last failed one, as far as is known."""
        failed = next((failed for failed in reversed(self.all) if failed.process.startswith("W")), None)
        if failed is not None:
            failed.samples_undone += samples

    def cost(self, process: str, loss: ServerFailureLoss) -> None:
        """Add to the cost of a process's last failure."""
        failed = self.last(process)
        if failed is not None:
            failed.add(loss)

    def last(self, process: str) -> FailureRecord | None:
        """Last failure of a process; None if there was none."""
        return next((failed for failed in reversed(self.all) if failed.process == process), None)

    def told(self) -> list[dict[str, Any]]:
        """Entries of result.json's `recovery`."""
        return [failed.told() for failed in self.all]
