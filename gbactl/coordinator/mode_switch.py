"""Switches the mode of a run between two of its phases: when, by whose wish, checked, told.

A phase that a switch ends early hands out no more; what is in flight arrives or, after a deadline, is given up. Then
the dense parameters move if they must, and the rest of the day is the next phase. The state is summed up after the
drain and before the next phase's first batch, and must be the same. A switch that cannot be is not begun.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.config import RunConfig, mode_values
from gbactl.config.rules import obstacle, wished
from gbactl.coordinator import event_log
from gbactl.coordinator.auto_switch import Auto
from gbactl.coordinator.dense_migration import Mover
from gbactl.coordinator.handout import Training
from gbactl.coordinator.late_gradients import Late
from gbactl.coordinator.summary import checksums
from gbactl.coordinator.switch_plan import Plan, Position
from gbactl.errors import ClusterError, ConfigError
from gbactl.models import row_width
from gbactl.policies import Policy
from gbactl.switching.history import switched
from gbactl.wire.messages import Abandon, Afresh, Inspected

if TYPE_CHECKING:
    from gbactl.coordinator.core import Coordinator

log = logging.getLogger(__name__)
BY_AUTO = 0  # the id of a wish of switch=auto; those from outside count from 1
SMALL_TABLES = 4 << 20  # bytes on all servers that are summed up at every switch: 40 ms


class Switcher:
    """Part of the coordinator. `rows`: the samples of each round."""

    def __init__(self, coordinator: Coordinator, rows: list[int], run_dir: Path) -> None:
        self.c, self.rows = coordinator, rows
        self.plan = Plan(coordinator.cfg, rows)
        coordinator.record.modes = coordinator.cfg.mode.name
        self.late = Late(coordinator.cfg.cluster.servers)
        self.mover = Mover(coordinator.members, coordinator.losses, self._in_time, coordinator.cfg.home)
        self.mover.noted = coordinator.journal.note
        self._round = 0
        self._rest = 0
        self._stopping = self._under_way = self._fresh = False
        self._drained: str | None = None
        self._losses = 0  # of servers, before the state was summed up: what comes in the place of one is older
        self._last_gradient: float | None = None
        self._wish: dict[str, Any] = {}
        self._report: dict[str, Any] | None = None
        tell = functools.partial(coordinator._event, "auto")
        self.auto = Auto.of(coordinator.cfg, run_dir, lambda: coordinator.record.seconds, tell)
        if self.auto is not None:
            coordinator.record.statistics.heard = self.auto.heard

    def told(self) -> dict[str, Any]:
        """What a coordinator that takes over has to know, as plain containers."""
        return {"report": self._report, "last": self._last_gradient}

    def moves(self) -> list[Any]:
        """What it has to know of the dense parameters: turns so far, where they are, where to and from they move."""
        return [self.mover.turn, self.mover.home, *self.mover.way]

    def settle(self, moves: list[Any]) -> None:
        """Nothing is in flight, or nothing was moved: the dense parameters are where the mode at hand has them."""
        mover = self.mover
        mover.turn, mover.home, mover.way = moves[0], moves[1], (moves[2], moves[3])
        mover.settle(self.c.now.home)

    def restore(self, number: int, taken: int, told: dict[str, Any], first: bool) -> None:
        """Go on in round `number`, `taken` entries of the schedule having come. A switch before this phase is told,
        perhaps again; without its pause where a gradient has come (`first`): nobody knows when."""
        self._round, self.plan.taken = number, taken
        self._report, self._last_gradient = told["report"], None if first else told["last"]

    # -- between two phases -------------------------------------------------------------------------

    def go_on(self, number: int, first: int, inside: bool) -> None:
        """Before a phase of round `number`, which begins at sample `first`: in another mode if one is due.

        `inside`: the day has begun before."""
        self._round = number
        self._tell(None)
        cfg = self.plan.take(self._position())
        self._fresh = False
        if cfg is not None:
            self._under_way = True
            self._switch(cfg, first, inside)
        self._under_way = self._stopping = False

    def _switch(self, cfg: RunConfig, first: int, inside: bool) -> None:
        wish, self._wish = self._wish, {}
        self._losses = self.c.returns.losses
        servers = self.c.inspect("server", what=self.what)
        if inside:
            self.c.log_checksums(servers)
        why_not = self._reason(cfg) or self._begun(cfg, servers, inside)
        kept = {"dense": self.c.trainers.kept} if self.c.now.home == "replicas" else {}
        report = {**wish, "from": self.c.now.mode.name, "to": cfg.mode.name, "step": self.c.step, **kept}
        if why_not:
            self._drained = None
            self.c._event("switch", {**report, "state": "stayed", "why": why_not})
            return
        point = self.plan.point or ("auto" if wish.get("id") == BY_AUTO else f"step{self.c.step}")
        modes = self.c.record.modes = switched(self.c.record.modes, cfg.mode.name, point, self._fresh)
        here = {"day": self.c.record.label, "first_sample": first, "samples": self.c.record.ledger.read, "modes": modes}
        self._report = {**report, **here, "state": "done", **({"fresh_optimizer": True} if self._fresh else {})}
        self.c.now = cfg
        self.c.log.info(event_log.SWITCH, {"mode": mode_values(cfg), "step": self.c.step, **kept})

    def _begun(self, cfg: RunConfig, servers: dict[str, Inspected], inside: bool) -> str:
        """Sum up and move; why that could not be done, empty if it was."""
        everybody = "workers" in (cfg.home, self.c.now.home)
        workers = self.c.inspect("worker", what=self.what, seconds=self._patience) if everybody else {}
        if everybody and not workers:
            return "a worker did not answer"
        if reason := self._reason(cfg):
            return reason
        self._last_gradient = self.c.record.last_gradient if inside else None
        self._drained = self._sum("drained", {**servers, **workers})
        home = self._afresh(cfg) if self.plan.fresh else self.c.now.home
        if cfg.home != home and not self.mover.move(cfg.home, home):
            note = "; the optimizer's state begins anew all the same" if self._fresh else ""
            return f"a worker died while the dense parameters were moved{note}"
        return ""

    def _afresh(self, cfg: RunConfig) -> str:
        """Begin the optimizer's state anew, on the servers; returns where the dense parameters are then.

        Raises ClusterError where a worker died meanwhile that `cfg` needs: there is no way back."""
        if self.c.now.home != "servers":
            self.mover.move("servers", self.c.now.home)
            if reason := self._reason(cfg):
                raise ClusterError(f"{reason}.")
        self.c.returns.fresh_at = self.c.step
        self.c.members.tell("server", Afresh())
        self.c._barrier()
        self.c.log.info(event_log.SWITCH, {"mode": mode_values(self.c.now), "step": self.c.step, "fresh": True})
        self.c.record.afresh()
        self._fresh, self._drained = True, None  # what is summed up before and after is not the same
        return "servers"

    def _reason(self, cfg: RunConfig) -> str:
        """Why a switch that is due cannot be; empty if it can."""
        if not cfg.collective_now:
            return ""
        gone = ", ".join(f"W{worker}" for worker in self.c.losses.gone)
        return f"{gone} died, and {cfg.mode.name} needs every worker" if gone and cfg.home != "replicas" else ""

    @property
    def _patience(self) -> float:
        return max(1.0, self.c.cfg.switch.drain_seconds)

    @property
    def what(self) -> str:
        """What nodes sum up between two phases: checksum, or dense where the tables are too large to be read while
        everybody waits."""
        cfg, optimizer = self.c.cfg, {"sgd": 1, "adam": 3}.get(self.c.cfg.optim.name, 2)
        size = 4 * self.c.dataset.schema.rows * row_width(cfg.model) * optimizer
        return "checksum" if cfg.switch.checksum == "all" or size <= SMALL_TABLES else "dense"

    def _sum(self, when: str, found: dict[str, Inspected]) -> str:
        """The model sum of everything inspected, noted in the log."""
        total = checksums(found)["model"] or ""
        self.c.log.info(
            event_log.CHECKSUM, {"step": self.c.step - 1, "model": total, "when": when, "of": self.what}
        )
        return total

    def resumed(self) -> None:
        """The servers know of the next phase, the workers do not yet: nothing may have changed in a switch."""
        if self._drained is None:
            return
        drained, self._drained = self._drained, None
        roles = ["server", *(["worker"] if self.c.now.home == "workers" else [])]
        now = self._sum("resumed", self.c.inspect(*roles, what=self.what))
        if now != drained and self._losses == self.c.returns.losses:
            raise ClusterError(f"The switch to {self.c.now.mode.name} changed the model; please report this.")

    def disturbed(self) -> None:
        """A server is lost: a part of a move may have gone with it."""
        if self.mover.moving:
            self.c.recovery.unequal()

    # -- within a phase -----------------------------------------------------------------------------

    def begin(self, policy: Policy) -> int | None:
        """A phase begins with the rest of its day, or ends early where the next entry is known to come.

        Returns the global step that ends it if no batch can be told."""
        self._rest = policy.phase.samples
        if self.auto is not None:
            self.auto.begin(self.c.now.mode.name, policy)
        batch = self.plan.last_batch(policy, self._position())
        if batch is None:
            return self.plan.last_step()
        policy.stop(batch)
        return None

    def look(self) -> None:
        """Between two messages: end the phase if that is asked; tell of a switch once a gradient has come."""
        training = self.c._training
        if training is None:
            return
        if training.clock.gradients is not None:
            self._tell(training.clock.gradients[0])
        if self.auto is not None:
            self._consult(self.auto, training)
        if not self._stopping and self.plan.called(self.c.record.seconds):
            self._stopping = True
            log.info("a switch to %s is due: at step %d hand-out ends", self.plan.coming, training.policy.step)
            training.stop()

    def _consult(self, auto: Auto, training: Training) -> None:
        """Let switch=auto look, and ask for what it wants as anybody would."""
        look = None if self._busy else auto.look(training)
        if look is None:
            return
        to = auto.candidates[look.wanted]
        obstacle = self._hindrance(to) if look.wanted != look.mode else ""
        position = {"day": self.c.record.label, "step": training.policy.step, "samples": self._handed_out}
        auto.note(look, position, obstacle)
        if look.wanted != look.mode and not obstacle:
            log.info("auto: %s", look.reason)
            self.ask({"mode": mode_values(to)})

    @property
    def _handed_out(self) -> int:
        """Samples so far, the phase that goes on included."""
        training = self.c._training
        return self.c.record.ledger.read + (0 if training is None else training.policy.ledger.read)

    def _tell(self, first: float | None) -> None:
        """A switch that was not told yet is done: its first gradient came at `first`, or never."""
        if self._report is None:
            return
        report, self._report = self._report, None
        last, self._last_gradient = self._last_gradient, None
        pause = None if last is None or first is None else 1000.0 * (first - last)
        self.c.record.pause(pause)
        self.c._event("switch", {**report, "pause_ms": pause})

    def drain(self, training: Training) -> None:
        """Until everything handed out has come; before a switch no longer than its deadline.

        It counts from the moment when the phase was told to stop, or else from its last hand-out."""
        c, policy = self.c, training.policy
        c._pump(lambda: policy.exhausted or training.stopped is not None)
        early = policy.phase.samples < self._rest and policy.forgoes
        begin = c.hub.now() if training.stopped is None else training.stopped
        deadline = begin + c.cfg.switch.drain_seconds if early else None
        if not c._pump(lambda: policy.idle, deadline):
            self.late.add(training.number, training.forgo())
            c.members.tell("worker", Abandon(training.number))
        self.look()

    # -- from outside -------------------------------------------------------------------------------

    def ask(self, fields: dict[str, Any]) -> None:
        """A wish of `gbactl switch`, by way of the launcher: {id, mode: {...}}. It is answered in any case."""
        wish = {"id": fields.get("id", BY_AUTO)}
        try:
            cfg = wished(self.c.cfg, self.c.now, fields.get("mode"))
        except ConfigError as error:
            self.c._event("switch", {**wish, "state": "refused", "why": str(error)})
            return
        told = {**wish, "from": self.c.now.mode.name, "to": cfg.mode.name}
        if mode_values(cfg) == mode_values(self.c.now) and not self._busy:
            self.c._event("switch", {**told, "state": "same"})
            return
        why_not = "another switch is under way" if self._busy else self._hindrance(cfg)
        if why_not:
            self.c._event("switch", {**told, "state": "refused", "why": why_not})
            return
        self.plan.asked, self._wish = cfg, {**wish, "to": cfg.mode.name}
        self.c._event("switch", {**told, "state": "accepted"})

    @property
    def _busy(self) -> bool:
        return self._stopping or self._under_way or bool(self._wish) or self._report is not None

    def _hindrance(self, cfg: RunConfig) -> str:
        training = self.c._training
        last = self._round == len(self.rows) - 1
        more = training is not None and not training.policy.exhausted
        if last and not more and self.c.started:
            return "the run has handed out its last batch"
        return self._reason(cfg) or obstacle(self.c.cfg, cfg)

    def ended(self) -> None:
        """The run is over: a wish that came too late is answered."""
        self._tell(None)
        if self._wish:
            now = {"from": self.c.now.mode.name, "step": self.c.step}
            told = {**self._wish, **now, "state": "stayed", "why": "the run ended before it"}
            self.c._event("switch", told)

    def _position(self) -> Position:
        record = self.c.record
        return Position(self._round, record.ledger.read, self.c.step, record.seconds)

    def _in_time(self, until: Any) -> bool:
        return self.c._pump(until, self.c.hub.now() + self.c.cfg.cluster.start_timeout)
