"""Plan of mode switches: the schedule, requests from outside, and the automatic choice (switch=auto).

Entries of the schedule are taken in order; a request takes effect at once and does not change the entries after it.
switch=auto feeds its controller with announced gradients. auto.jsonl in the run directory has one line per decision:
the measurements, the decision, the reason. A gradient costs 2 us, a decision 0.2 ms with ten workers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig
from gbactl.coordinator.live_phase import LivePhase
from gbactl.policies import Policy
from gbactl.switching.auto_controller import SYNC, AutoController, AutoOptions, SwitchDecision
from gbactl.switching.switch_schedule import ScheduleEntry, located


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run: its round (day or epoch), samples handed out, global step, seconds since its start."""

    round: int
    samples: int
    step: int
    seconds: float


class SwitchPlan:
    """Plan of mode switches. `rows`: samples of each round. Raises ConfigError for an entry that is never reached."""

    def __init__(self, cfg: RunConfig, rows: Sequence[int]) -> None:
        self.entries, self.phases = cfg.entries, cfg.phases
        self.points = located(self.entries, rows)
        self.asked: RunConfig | None = None
        self.fresh = False  # whether the last switch taken resets the optimizer's state
        self.point = ""  # scheduled point of the last switch taken; empty if it was requested
        self.taken = 0  # number of entries taken

    @property
    def next(self) -> ScheduleEntry | None:
        """Next entry of the schedule; None after the last."""
        return self.entries[self.taken] if self.taken < len(self.entries) else None

    @property
    def coming(self) -> str:
        """Name of the mode that the next switch, requested or scheduled, leads to; empty if there is none."""
        if self.asked is not None:
            return self.asked.mode.name
        return "" if self.next is None else self.next.to

    def take(self, at: RunProgress) -> RunConfig | None:
        """Remove the due switch (requested or scheduled). Returns the configuration after it; None if none is due."""
        found, self.fresh, self.point = None, False, ""
        while (entry := self.next) is not None and self._due(entry, at):
            self.taken, self.point = self.taken + 1, entry.point
            found, self.fresh = self.phases[self.taken], self.fresh or entry.fresh
        if self.asked is not None:
            found, self.asked, self.point = self.asked, None, ""
        return found

    def _due(self, entry: ScheduleEntry, at: RunProgress) -> bool:
        if entry.unit in ("day", "epoch"):
            return entry.value <= at.round
        if entry.unit == "step":
            return entry.value <= at.step
        if entry.unit == "seconds":
            return entry.value <= at.seconds
        point = self.points[self.taken]
        return point is not None and point <= at.samples

    def called(self, seconds: float) -> bool:
        """Whether the phase must end now because a switch was requested or is scheduled at this time."""
        entry = self.next
        return self.asked is not None or (entry is not None and entry.unit == "seconds" and entry.value <= seconds)

    def last_batch(self, policy: Policy, at: RunProgress) -> int | None:
        """Batch of a phase, begun at `at`, before which the schedule's next entry is due; None if unknown."""
        entry, point = self.next, None if self.next is None else self.points[self.taken]
        if entry is None or entry.unit in ("day", "epoch"):
            return None
        if entry.unit == "step":
            return policy.batches_of(int(entry.value) - at.step)
        return None if point is None else -(-(point - at.samples) // policy.phase.local_batch)

    def due_step(self) -> int | None:
        """Global step at which the schedule's next entry is due; None if the entry is not given in steps."""
        entry = self.next
        return int(entry.value) if entry is not None and entry.unit == "step" else None


AUTO_FILE = "auto.jsonl"


class AutoSwitch:
    """Controller of switch=auto within a run. `now`: seconds since the run began.

    `tell` gets every decision's fields."""

    def __init__(
        self, cfg: RunConfig, path: Path, now: Callable[[], float], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        switch = cfg.switch
        options = AutoOptions(switch.window, switch.margin, switch.hysteresis, switch.minimum_stay)
        self.candidates, self.every, self.now, self.tell = cfg.candidates, switch.every, now, tell
        batch = self.candidates[SYNC].local_batch
        self.controller = AutoController(cfg.cluster.workers, cfg.train.global_batch, batch, options)
        self.path, self.last = path, dict[str, Any]()
        self._looks, self._asked = 0, list[dict[str, Any]]()
        self._full, self._step, self._next = 0, -1, 0.0

    @classmethod
    def of(
        cls, cfg: RunConfig, run_dir: Path, now: Callable[[], float], tell: Callable[[dict[str, Any]], None]
    ) -> AutoSwitch | None:
        """Controller of a run; None where switch=auto is off."""
        return cls(cfg, run_dir / AUTO_FILE, now, tell) if cfg.candidates else None

    def begin(self, mode: str, policy: Policy) -> None:
        """Reset the controller for a phase that begins in a mode."""
        self._full, self._step = policy.phase.local_batch, policy.step
        self.controller.begin(self.now(), mode)

    def heard(self, worker: int, samples: int, seconds: float) -> None:
        """Pass an announced gradient's compute time to the controller; a short batch (the last of a day) is ignored."""
        if samples >= self._full:
            self.controller.seen(self.now(), worker, seconds, samples)

    def look(self, training: LivePhase) -> SwitchDecision | None:
        """Pass the applied steps to the controller; every `switch.every` seconds return its decision."""
        policy, now = training.policy, self.now()
        if policy.step != self._step:
            self._step = policy.step
            self.controller.stepped(now, policy.ledger.finished)
        if now < self._next:
            return None
        self._next = now + self.every
        return self.controller.look(now)

    def note(self, look: SwitchDecision, at: dict[str, Any], obstacle: str) -> None:
        """Log a decision of the controller and the run's position; `obstacle`: why its mode is impossible, or empty."""
        self._looks += 1
        self.last = {**at, **dataclasses.asdict(look), **({"obstacle": obstacle} if obstacle else {})}
        with self.path.open("a") as out:
            out.write(json.dumps(self.last) + "\n")
        if look.wanted != look.mode and not obstacle:
            self._asked.append(self.last)
        self.tell(self.last)

    def summary(self) -> dict[str, Any]:
        """Field `auto` of result.json: number of decisions, those that led to a switch, the last one."""
        return {"looks": self._looks, "switched": self._asked, "last": self.last or None}
