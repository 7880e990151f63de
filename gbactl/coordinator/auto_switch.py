"""switch=auto in a run: feeds the controller with what is announced, looks now and then, notes every look.

auto.jsonl in the run directory has a line a look: the numbers it went by, what was decided, why. A gradient costs
2 us, a look 0.2 ms with ten workers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig
from gbactl.coordinator.handout import Training
from gbactl.policies import Policy
from gbactl.switching.controller import SYNC, AutoOptions, Controller, Look

NAME = "auto.jsonl"


class AutoSwitch:
    """Part of the switcher. `now`: seconds since the run began; `tell` gets every look's fields."""

    def __init__(
        self, cfg: RunConfig, path: Path, now: Callable[[], float], tell: Callable[[dict[str, Any]], None]
    ) -> None:
        switch = cfg.switch
        options = AutoOptions(switch.window, switch.margin, switch.hysteresis, switch.minimum_stay)
        self.candidates, self.every, self.now, self.tell = cfg.candidates, switch.every, now, tell
        batch = self.candidates[SYNC].local_batch
        self.controller = Controller(cfg.cluster.workers, cfg.train.global_batch, batch, options)
        self.path, self.last = path, dict[str, Any]()
        self._looks, self._asked = 0, list[dict[str, Any]]()
        self._full, self._step, self._next = 0, -1, 0.0

    @classmethod
    def of(
        cls, cfg: RunConfig, run_dir: Path, now: Callable[[], float], tell: Callable[[dict[str, Any]], None]
    ) -> AutoSwitch | None:
        """For a run; None where it does not choose by itself."""
        return cls(cfg, run_dir / NAME, now, tell) if cfg.candidates else None

    def begin(self, mode: str, policy: Policy) -> None:
        """A phase begins."""
        self._full, self._step = policy.phase.local_batch, policy.step
        self.controller.begin(self.now(), mode)

    def heard(self, worker: int, samples: int, seconds: float) -> None:
        """A gradient was announced; a day's last, short batch says nothing of a step."""
        if samples >= self._full:
            self.controller.seen(self.now(), worker, seconds, samples)

    def look(self, training: Training) -> Look | None:
        """Between two messages: count steps; every so many seconds say what would be best."""
        policy, now = training.policy, self.now()
        if policy.step != self._step:
            self._step = policy.step
            self.controller.stepped(now, policy.ledger.finished)
        if now < self._next:
            return None
        self._next = now + self.every
        return self.controller.look(now)

    def note(self, look: Look, at: dict[str, Any], obstacle: str) -> None:
        """A look and where the run was; `obstacle`: why what it wants cannot be, empty if nothing is in the way."""
        self._looks += 1
        self.last = {**at, **dataclasses.asdict(look), **({"obstacle": obstacle} if obstacle else {})}
        with self.path.open("a") as out:
            out.write(json.dumps(self.last) + "\n")
        if look.wanted != look.mode and not obstacle:
            self._asked.append(self.last)
        self.tell(self.last)

    def summary(self) -> dict[str, Any]:
        """result.json's `auto`: how many looks there were, those that led to a switch, the last one."""
        return {"looks": self._looks, "switched": self._asked, "last": self.last or None}
