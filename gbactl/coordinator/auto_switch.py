"""Automatic choice of the mode (switch=auto): feed the controller with announced gradients and log its decisions.

auto.jsonl in the run directory has one line per decision: the measurements, the decision, the reason. A gradient costs
2 us, a decision 0.2 ms with ten workers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig
from gbactl.coordinator.handout import LivePhase
from gbactl.policies import Policy
from gbactl.switching.auto_controller import SYNC, AutoController, AutoOptions, SwitchDecision

NAME = "auto.jsonl"


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
        return cls(cfg, run_dir / NAME, now, tell) if cfg.candidates else None

    def begin(self, mode: str, policy: Policy) -> None:
        """Begin a phase in a mode."""
        self._full, self._step = policy.phase.local_batch, policy.step
        self.controller.begin(self.now(), mode)

    def heard(self, worker: int, samples: int, seconds: float) -> None:
        """Feed an announced gradient to the controller; a short batch (the last of a day) is ignored."""
        if samples >= self._full:
            self.controller.seen(self.now(), worker, seconds, samples)

    def look(self, training: LivePhase) -> SwitchDecision | None:
        """Feed the steps to the controller; every `switch.every` seconds return the mode that it recommends."""
        policy, now = training.policy, self.now()
        if policy.step != self._step:
            self._step = policy.step
            self.controller.stepped(now, policy.ledger.finished)
        if now < self._next:
            return None
        self._next = now + self.every
        return self.controller.look(now)

    def note(self, look: SwitchDecision, at: dict[str, Any], obstacle: str) -> None:
        """Log a decision and the run's position; `obstacle`: why the wanted mode is impossible, empty if it is not."""
        self._looks += 1
        self.last = {**at, **dataclasses.asdict(look), **({"obstacle": obstacle} if obstacle else {})}
        with self.path.open("a") as out:
            out.write(json.dumps(self.last) + "\n")
        if look.wanted != look.mode and not obstacle:
            self._asked.append(self.last)
        self.tell(self.last)

    def summary(self) -> dict[str, Any]:
        """result.json's `auto`: number of decisions, those that led to a switch, the last one."""
        return {"looks": self._looks, "switched": self._asked, "last": self.last or None}
