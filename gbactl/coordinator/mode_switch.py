"""Mode switches between two phases of a run: schedule and requests, consistency checks, reports.

A phase that a switch ends early hands out no more batches; what is in flight arrives or, after a deadline, is given up.
Then the dense parameters move if they must, and the rest of the day is the next phase. Checksums of the state after the
drain and before the next phase's first batch must be equal. An impossible switch is not begun.

The dense parameters move between servers and workers while nothing is in flight. Until the first gradient arrives, the
servers keep the parameters that they sent, and all workers hold the same values. So after a worker failure another
worker completes the migration, or the migration is reverted, and no bit is lost. A migration sends the dense parameters
with their moments over the wire, and nothing that grows with the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from gbactl.checkpoint.remaining_samples import total_samples
from gbactl.config import RunConfig, mode_values
from gbactl.config.shard_specs import row_bytes
from gbactl.config.validation import switch_obstacle, switched_config
from gbactl.coordinator import event_log
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.run_context import Flow, NodeRequests, RunContext, WaitCondition
from gbactl.coordinator.run_record import checksums
from gbactl.coordinator.state import kind_of_dense
from gbactl.errors import ClusterError, GbactlError
from gbactl.policies.policy import Policy
from gbactl.switching.auto_controller import AutoSwitch
from gbactl.switching.switch_schedule import RunProgress
from gbactl.switching.switch_texts import switched
from gbactl.wire.messages import Abandon, DenseMoved, Inspected, MoveDense, ResetOptimizer, Staged

log = logging.getLogger(__name__)
BY_AUTO = 0  # id of a request by switch=auto; requests of users count from 1
SMALL_TABLES = 4 << 20  # bytes on all servers below which checksums include the tables at every switch: 40 ms


class AbandonedGradients:
    """Gradients in flight that were given up at a switch, and that may still arrive. `servers`: number of shards.

    A worker asks for its next batch by announcing one, but a gradient given up is never announced. So when every shard
    has seen such a gradient, its worker is free."""

    def __init__(self, servers: int) -> None:
        self.servers = servers
        self._pending: dict[tuple[int, int], tuple[int, set[int]]] = {}

    def add(self, phase: int, given_up: Iterable[tuple[int, int, set[int]]]) -> None:
        """Add a phase's abandoned gradients, each as (worker, batch, shards that have staged its slice)."""
        for worker, batch, staged in given_up:
            self._pending[phase, batch] = (worker, set(staged))

    def by_worker(self) -> dict[int, list[tuple[int, int]]]:
        """Abandoned gradients that are still to arrive, as (phase, batch) for each worker."""
        gradients: dict[int, list[tuple[int, int]]] = {}
        for key, (owner, _) in self._pending.items():
            gradients.setdefault(owner, []).append(key)
        return gradients

    def staged(self, message: Staged) -> bool:
        """Record a shard's slice of an abandoned gradient. Returns whether all shards have received this gradient."""
        worker, shards = self._pending.get((message.phase, message.batch), (-1, None))
        if shards is None or worker != message.worker:
            return False
        shards.add(message.shard)
        if len(shards) < self.servers:
            return False
        del self._pending[message.phase, message.batch]
        return True


class DenseMigration:
    """Migration of the dense parameters between servers, workers and trainers."""

    def __init__(self, run: RunContext) -> None:
        self.run, self.state = run, run.state.ongoing.placement
        self.members, self.fencing = run.members, run.fencing
        self.state.home = self.state.home or run.cfg.home
        self.moving = False
        self._moved: set[int] = set()

    def on_moved(self, message: DenseMoved) -> None:
        """Record that a worker has done its part of the migration."""
        if message.request == self.state.request:
            self._moved.add(message.worker)

    def migrate(self, to: str, source: str) -> Flow[bool]:
        """Migrate the dense parameters. Returns False if a worker failed, which leaves them where they were.

        In that case the servers hold them, which after a phase also hold the mean or centre of the replicas.

        Raises ClusterError if a worker does not answer, or fails in a move between the workers and the replicas."""
        state = self.state
        state.to, state.source = to, source
        self.run.log_note()
        moved = yield from self._migrate(to, source)
        state.to = state.source = ""
        state.home = to if moved else source
        self.run.log_note()
        return moved

    def complete_migration(self, home: str) -> Flow[None]:
        """Migrate the dense parameters to `home`, whatever state a failed coordinator left a migration in."""
        state = self.state
        migration, state.to, state.source = (state.to, state.source), "", ""
        if migration == ("", "") and state.home == home:
            return
        if migration == ("servers", "workers"):
            yield from self.migrate("servers", "workers")
        else:
            yield from self._ask("servers")  # the servers have kept what they gave
            state.home = "servers"
        if home != "servers":
            yield from self.migrate(home, "servers")

    def _migrate(self, to: str, source: str) -> Flow[bool]:
        if source == "workers":
            yield from self._send_to_servers()
        if to == "servers":
            if source == "replicas":
                yield from self._ask("servers")
            return True
        failed_before = len(self.fencing.failed_workers)
        yield from self._ask(to, enough=lambda: len(self.fencing.failed_workers) > failed_before)
        if len(self.fencing.failed_workers) == failed_before:
            return True
        if source == "workers":
            raise ClusterError("A worker failed while the dense parameters moved from the workers to the trainers.")
        yield from self._ask(source)
        return False

    def fetch_again(self, home: str) -> Flow[None]:
        """Have every holder at `home` fetch the dense parameters from the servers after a rollback."""
        yield from self._ask("servers")
        yield from self._ask(home)

    def _send_to_servers(self) -> Flow[None]:
        """Have one worker send the dense parameters to the servers; if that worker fails, have another do so."""
        while True:
            giver = min(self.members.channels_of("worker"))
            yield from self._ask("servers", giver, lambda giver=giver: giver in self.fencing.failed_workers)  # type: ignore[misc]
            if giver in self._moved:
                return

    def _ask(self, home: str, giver: int = -1, enough: Callable[[], bool] = lambda: False) -> Flow[None]:
        self.moving = True
        self.state.request += 1
        self._moved.clear()
        self.members.send_to_all("worker", MoveDense(home, giver, self.state.request))

        def answered() -> bool:
            return set(self.members.channels_of("worker")) <= self._moved or enough()

        in_time = yield WaitCondition(answered, self.run.hub.now() + self.run.cfg.cluster.start_timeout)
        self.moving = False
        if not in_time:
            silent = ", ".join(f"W{worker}" for worker in sorted(set(self.members.channels_of("worker")) - self._moved))
            raise ClusterError(f"{silent} did not answer when the dense parameters were moved to the {home}.")


class ModeSwitch:
    """Decision about mode switches of a run, and their execution between two phases."""

    def __init__(self, run: RunContext, requests: NodeRequests, migration: DenseMigration) -> None:
        self.run, self.requests, self.migration = run, requests, migration
        self.state = run.state.switch
        self.plan, self.auto = run.switch_plan, run.auto
        self.abandoned = AbandonedGradients(run.cfg.cluster.servers)
        self._ends_at: int | None = None  # samples of the phase that a scheduled switch has shortened
        self.reached = False  # the phase that it has shortened has ended
        self._under_way = False  # from the end of hand-out that a switch causes until it is done
        self._drained_checksum: str | None = None
        self._losses_at_drain = 0  # server failures before the checksum: a successor's state is older
        self._switch_request: dict[str, Any] = {}

    # -- between two phases -------------------------------------------------------------------------

    def go_on(self, first: int, begun: bool) -> Flow[None]:
        """Switch the mode, if a switch is due, before the phase of the current round that begins at sample `first`.

        `begun`: the day has begun before."""
        self._report(None)
        cfg = self.plan.take(self._position(), self.reached)
        self.reached = False
        if cfg is not None:
            self._under_way = True
            yield from self._switch(cfg, first, begun)
        self._under_way = False

    def _switch(self, cfg: RunConfig, first: int, begun: bool) -> Flow[None]:
        run, request, self._switch_request = self.run, self._switch_request, {}
        self._losses_at_drain = run.server_losses
        servers = yield from self.requests.inspect("server", what=self.checksum_scope)
        if begun:
            self.log_checksums(servers)
        why_not = self._worker_obstacle(cfg) or (yield from self._migrate_and_check(cfg, servers, begun))
        dense = {"dense": kind_of_dense(run.current.mode.policy)} if run.home == "replicas" and run.phase_number else {}
        report = {**request, "from": run.current.mode.name, "to": cfg.mode.name, "step": run.step, **dense}
        if why_not:
            self._drained_checksum = None
            run.send_event("switch", {**report, "state": "stayed", "why": why_not})
            return
        point = self.plan.point or ("auto" if request.get("id") == BY_AUTO else f"step{run.step}")
        modes = run.record.modes = switched(run.record.modes, cfg.mode.name, point, run.record.optimizer_reset)
        place = {"day": run.record.label, "first_sample": first, "samples": run.record.ledger.read, "modes": modes}
        reset = {"fresh_optimizer": True} if run.record.optimizer_reset else {}
        self.state.report = {**report, **place, "state": "done", **reset}
        run.current = cfg
        run.log.info(event_log.SWITCH, {"mode": mode_values(cfg), "step": run.step, **dense})

    def _migrate_and_check(self, cfg: RunConfig, servers: dict[str, Inspected], begun: bool) -> Flow[str]:
        """Compute checksums and migrate the dense parameters for a switch. Returns an error sentence, empty if none."""
        workers: dict[str, Inspected] = {}
        if "workers" in (cfg.home, self.run.home):
            patience = max(1.0, self.run.cfg.switch.drain_seconds)
            workers = yield from self.requests.inspect("worker", what=self.checksum_scope, seconds=patience)
            if not workers:
                return "a worker did not answer"
        if reason := self._worker_obstacle(cfg):
            return reason
        self.state.gradient = self.run.record.last_gradient if begun else None
        self._drained_checksum = self._combine_checksums("drained", {**servers, **workers})
        home = (yield from self._reset_optimizer(cfg)) if self.plan.fresh else self.run.home
        if cfg.home != home and not (yield from self.migration.migrate(cfg.home, home)):
            note = "; the optimizer's state begins anew all the same" if self.run.record.optimizer_reset else ""
            return f"a worker died while the dense parameters were moved{note}"
        return ""

    def _reset_optimizer(self, cfg: RunConfig) -> Flow[str]:
        """Reset the optimizer's state on the servers. Returns the holder of the dense parameters afterwards.

        Raises ClusterError where a worker that `cfg` needs fails in the migration: the switch cannot be reverted."""
        run = self.run
        if run.home != "servers":
            yield from self.migration.migrate("servers", run.home)
            if reason := self._worker_obstacle(cfg):
                raise ClusterError(f"{reason}.")
        run.state.ongoing.optimizer_reset_at = run.step
        run.members.send_to_all("server", ResetOptimizer())
        yield from self.requests.barrier(run.step)
        run.log.info(event_log.SWITCH, {"mode": mode_values(run.current), "step": run.step, "fresh": True})
        run.record.optimizer_reset = True
        self._drained_checksum = None  # checksums before and after differ
        return "servers"

    def _worker_obstacle(self, cfg: RunConfig) -> str:
        """Reason why a due switch to `cfg` is impossible; empty if it is possible."""
        failed = ", ".join(f"W{worker}" for worker in self.run.fencing.failed_workers)
        needs_all = cfg.collective_now and cfg.home != "replicas"
        return f"{failed} died, and {cfg.mode.name} needs every worker" if failed and needs_all else ""

    @property
    def checksum_scope(self) -> str:
        """Scope of the checksums between two phases: "checksum", or "dense" if the tables are too large."""
        cfg, size = self.run.cfg, self.run.dataset.schema.rows * row_bytes(self.run.cfg)
        return "checksum" if cfg.switch.checksum == "all" or size <= SMALL_TABLES else "dense"

    def _combine_checksums(self, when: str, inspected: dict[str, Inspected]) -> str:
        """Combine the checksums of all inspected nodes into the model's checksum, and log it."""
        total = checksums(inspected)["model"] or ""
        self.run.log.info(
            event_log.CHECKSUM, {"step": self.run.step - 1, "model": total, "when": when, "of": self.checksum_scope}
        )
        return total

    def log_checksums(self, servers: dict[str, Inspected]) -> None:
        """Log the checksum of every shard's state at a pause, which a replay compares."""
        for name, inspected in servers.items():
            whole = {"shard": int(name[1:]), "step": self.run.step - 1, "whole": inspected.checksum}
            self.run.log.info(event_log.CHECKSUM, whole)

    def resumed(self) -> Flow[None]:
        """Check by checksums that a switch left the model unchanged, once servers know the next phase.

        Raises ClusterError if it has."""
        if self._drained_checksum is None:
            return
        before, self._drained_checksum = self._drained_checksum, None
        roles = ["server", *(["worker"] if self.run.home == "workers" else [])]
        after = self._combine_checksums("resumed", (yield from self.requests.inspect(*roles, what=self.checksum_scope)))
        if after != before and self._losses_at_drain == self.run.server_losses:
            raise ClusterError(f"The switch to {self.run.current.mode.name} changed the model; please report this.")

    # -- within a phase -----------------------------------------------------------------------------

    def begin(self, policy: Policy) -> int | None:
        """Limit a new phase: it ends before the batch at which the schedule's next switch of that day is due.

        Returns the global step that ends the phase if that batch is not known in advance."""
        samples, self._ends_at = policy.phase.samples, None
        if self.auto is not None:
            self.auto.begin(self.run.current.mode.name, policy)
        batch = self.plan.last_batch(policy, self._position())
        if batch is None:
            return self.plan.due_step()
        policy.stop(batch)
        if policy.phase.samples < samples:
            self._ends_at = policy.phase.samples
        return None

    def poll(self) -> None:
        """End the phase if a switch is due; report the last switch once the first gradient after it has arrived.

        Called between messages."""
        training = self.run.training
        if training is None:
            return
        if training.clock.gradients is not None:
            self._report(training.clock.gradients[0])
        if self.auto is not None:
            self._ask_controller(self.auto, training)
        if not self._under_way and self.plan.must_end_phase(self.run.record.seconds):
            self._under_way = True
            scheduled = "" if self.plan.next is None else self.plan.next.to
            to = self._switch_request.get("to", scheduled)
            log.info("a switch to %s is due: at step %d hand-out ends", to, training.policy.step)
            training.stop()

    def _ask_controller(self, auto: AutoSwitch, training: LivePhase) -> None:
        """Ask switch=auto for a decision, and request the switch that it recommends."""
        decision = None if self._busy else auto.poll(training.policy)
        if decision is None:
            return
        to = self.run.cfg.candidates[decision.wanted]
        obstacle = self._obstacle(to) if decision.wanted != decision.mode else ""
        record, policy = self.run.record, training.policy
        position = {"day": record.label, "step": policy.step, "samples": record.ledger.read + policy.ledger.read}
        auto.log_decision(decision, position, obstacle)
        if decision.wanted != decision.mode and not obstacle:
            log.info("auto: %s", decision.reason)
            self.ask({"mode": mode_values(to)})

    def _report(self, first: float | None) -> None:
        """Report the last switch, once; `first`: arrival time of the first gradient after it, None if there is none."""
        if self.state.report is None:
            return
        report, self.state.report = self.state.report, None
        last, self.state.gradient = self.state.gradient, None
        pause = None if last is None or first is None else 1000.0 * (first - last)
        self.run.record.pause_ms = pause
        self.run.send_event("switch", {**report, "pause_ms": pause})

    def drain(self, training: LivePhase) -> Flow[None]:
        """Wait until all gradients in flight have arrived; before a switch, at most until the switch's deadline.

        The deadline counts from the order to stop the phase, or else from its last hand-out."""
        run, policy = self.run, training.policy
        yield WaitCondition(lambda: policy.exhausted or training.stopped is not None)
        begin = run.hub.now() if training.stopped is None else training.stopped
        deadline = begin + run.cfg.switch.drain_seconds if policy.forgoes and self._switch_ends(policy) else None
        if not (yield WaitCondition(lambda: policy.idle, deadline)):
            self.abandoned.add(training.number, training.forgo())
            run.members.send_to_all("worker", Abandon(training.number))
        self.reached = policy.phase.samples == self._ends_at
        self.poll()

    def _switch_ends(self, policy: Policy) -> bool:
        """Whether a switch ends the phase, and not the round, an evaluation, a successor or a rollback."""
        step = self.plan.due_step()
        return self._under_way or policy.phase.samples == self._ends_at or (step is not None and policy.step >= step)

    # -- requests of users --------------------------------------------------------------------------

    def ask(self, fields: dict[str, Any]) -> None:
        """Handle a `gbactl switch` request {id, mode: {...}} that the launcher passes on; it is always answered."""
        request = {"id": fields.get("id", BY_AUTO)}
        try:
            cfg = switched_config(self.run.cfg, self.run.current, fields.get("mode"))
        except GbactlError as error:
            self.run.send_event("switch", {**request, "state": "refused", "why": str(error)})
            return
        report = {**request, "from": self.run.current.mode.name, "to": cfg.mode.name}
        if mode_values(cfg) == mode_values(self.run.current) and not self._busy:
            self.run.send_event("switch", {**report, "state": "same"})
            return
        why_not = "another switch is under way" if self._busy else self._obstacle(cfg)
        if why_not:
            self.run.send_event("switch", {**report, "state": "refused", "why": why_not})
            return
        self.plan.requested, self._switch_request = cfg, {**request, "to": cfg.mode.name}
        self.run.send_event("switch", {**report, "state": "accepted"})

    @property
    def _busy(self) -> bool:
        return self._under_way or bool(self._switch_request) or self.state.report is not None

    def _obstacle(self, cfg: RunConfig) -> str:
        training = self.run.training
        last = self.run.record.round == len(self.run.rounds) - 1
        if training is None:
            more = bool(self.run.untrained)
        else:  # a phase that a scheduled switch or evaluation ends leaves samples of the round
            policy = training.policy
            more = not policy.exhausted or total_samples(training.ranges) > policy.phase.samples
        if last and not more and self.run.phase_number:
            return "the run has handed out its last batch"
        return self._worker_obstacle(cfg) or switch_obstacle(self.run.cfg, cfg)

    def ended(self) -> None:
        """Report that a pending `gbactl switch` request, or the next scheduled switch, comes after the run's end."""
        self._report(None)
        scheduled = {} if self.plan.next is None else {"to": self.plan.next.to}
        now = {"from": self.run.current.mode.name, "step": self.run.step}
        for switch in filter(None, (self._switch_request, scheduled)):
            self.run.send_event("switch", {**switch, **now, "state": "stayed", "why": "the run ended before it"})

    def _position(self) -> RunProgress:
        record = self.run.record
        return RunProgress(record.round, record.ledger.read, self.run.step, record.seconds)
