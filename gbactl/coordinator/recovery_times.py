"""What each failure cost: seconds until it was noticed, replaced, useful again, and what it undid. Pure.

Two kinds of samples are undone. A server that goes back alone, or a worker that takes a part of the dense parameters
with it, lacks their updates for good: `samples_undone` of this process, while the others keep them, and in
`row_updates_undone` the rows' updates among them. Their fate stays "trained"; what share of the job they are is `pls`.
Where everybody goes back, `samples_rolled_back` lose their fate and are read again; they are those of the first server
of several that are lost at once, so that the sum over `recovery` is `samples.rolled_back`, beside
read = trained + decayed + lost. A note costs a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gbactl.checkpoint.ledger import Loss


@dataclass
class Failed:
    """One process's failure. Times by the run's clock; None: it did not come to that. `at`: when it was injected, else
    the last sign of life."""

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

    def add(self, loss: Loss) -> None:
        """It cost this, too."""
        self.samples_undone += loss.samples
        self.pls += loss.pls
        self.row_updates_undone += loss.updates

    def timed(self) -> dict[str, Any]:
        """As the event log has it: seconds since it was injected, else since the last sign of life."""
        times = {"detected_s": self.detected, "loaded_s": self.loaded, "useful_s": self.useful}
        since = {name: None if time is None else time - self.at for name, time in times.items()}
        return {"process": self.process, "failure": self.failure, **since}

    def told(self) -> dict[str, Any]:
        """As result.json has it: with what it undid."""
        undone = ("samples_undone", "pls", "row_updates_undone", "samples_rolled_back")
        return {**self.timed(), **{name: getattr(self, name) for name in undone}}


@dataclass
class Failures:
    """`injured`: what the fault plan did that nobody has missed yet, and when; `struck`: step and seconds of training
    of its last injection."""

    failed: list[Failed] = field(default_factory=list)
    injured: dict[str, tuple[str, float]] = field(default_factory=dict)
    struck: tuple[int, float] = (-1, -1.0)


class RecoveryTimes:
    """`now` in seconds. A process may fail more than once. `log` gets each failure with its number, once: when its
    process is of use again, or at the end."""

    def __init__(
        self, now: Callable[[], float], log: Callable[[int, Failed], None] = lambda *_: None,
        state: Failures | None = None,
    ) -> None:  # fmt: skip
        self.now, self._log = now, log
        self.state = Failures() if state is None else state
        self._reborn: Failed | None = None  # this coordinator's own predecessor
        self._logged: set[int] = set()
        self._began = now()
        self._signs: dict[str, float] = {}  # of life: the last one of each process

    @property
    def all(self) -> list[Failed]:
        """Failures so far."""
        return self.state.failed

    def alive(self, process: str) -> None:
        """A message of a process is there."""
        self._signs[process] = self.now()

    def injected(self, process: str, kind: str) -> None:
        """A fault plan hurts a process now."""
        self.state.injured[process] = (kind, self.now())

    def detected(self, process: str, failure: str) -> None:
        """A process was missed; `failure` is what it looks like where no fault plan was at work."""
        sign = self._signs.pop(process, self._began)  # who was never heard of was silent since this began
        kind, at = self.state.injured.pop(process, (failure, sign))
        self.all.append(Failed(process, kind, at, self.now()))

    def reborn(self, process: str, failure: str, detected: float, sign: float) -> None:
        """It is in the place of one that was missed, whose last sign of life was then, and can go on."""
        kind, at = self.state.injured.pop(process, (failure, sign))
        self._reborn = Failed(process, kind, min(at, detected), detected, self.now())
        self.all.append(self._reborn)

    def loaded(self, process: str) -> None:
        """Another one is ready in its place."""
        failed = self.last(process)
        if failed is not None and failed.loaded is None:
            failed.loaded = self.now()

    def useful(self, process: str) -> None:
        """It has done its first work."""
        if self._reborn is not None:
            reborn, self._reborn = self._reborn, None
            self._of_use(reborn)
        failed = self.last(process)
        if failed is not None and failed.loaded is not None and failed.useful is None:
            self._of_use(failed)

    def _of_use(self, failed: Failed) -> None:
        failed.useful = self.now()
        self._tell(failed)

    def _tell(self, failed: Failed) -> None:
        number = next(number for number, each in enumerate(self.all) if each is failed)
        if number not in self._logged:
            self._logged.add(number)
            self._log(number, failed)

    def end(self) -> None:
        """The run is over: whoever is not of use by now will not be."""
        for failed in self.all:
            if failed.useful is None:
                self._tell(failed)

    def heard(self, logged: Iterable[Mapping[str, Any]]) -> None:
        """What another coordinator logged; it may have died before it noted as much."""
        for each in logged:
            self._logged.add(each["number"])
            failed = self.all[each["number"]]
            if failed.useful is None and each["useful_s"] is not None:
                failed.useful = failed.at + each["useful_s"]

    def dense_lost(self, samples: int) -> None:
        """The dense part of so many samples' gradients is gone with a worker: with the last one, as far as is known."""
        failed = next((failed for failed in reversed(self.all) if failed.process.startswith("W")), None)
        if failed is not None:
            failed.samples_undone += samples

    def cost(self, process: str, loss: Loss) -> None:
        """Add to what a process's last failure undid."""
        failed = self.last(process)
        if failed is not None:
            failed.add(loss)

    def last(self, process: str) -> Failed | None:
        """A process's last failure."""
        return next((failed for failed in reversed(self.all) if failed.process == process), None)

    def told(self) -> list[dict[str, Any]]:
        """result.json's `recovery`."""
        return [failed.told() for failed in self.all]
