"""The coordinator: hands out batches, orders steps, evaluates, reports. One thread, no waiting on anybody.

A run is a list of rounds (train a split, evaluate others). What is sent to the launcher are events; the
launcher alone logs and shows them.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from gbactl.checkpoint.ranges import Ranges, after, flat, total
from gbactl.config import RunConfig
from gbactl.coordinator import event_log, norm_log
from gbactl.coordinator.checkpointing import Cuts
from gbactl.coordinator.evaluation import Evaluation
from gbactl.coordinator.event_log import EventLog
from gbactl.coordinator.failover import Revival
from gbactl.coordinator.handout import Training
from gbactl.coordinator.journal import EVALUATE, OVER, TRAIN, Found, Journal
from gbactl.coordinator.membership import Members
from gbactl.coordinator.mode_switch import Switcher
from gbactl.coordinator.norm_log import NormLog
from gbactl.coordinator.phase import TrainingPhase
from gbactl.coordinator.replica_phases import Trainers
from gbactl.coordinator.schedule import Round, rounds
from gbactl.coordinator.server_recovery import GoBack, Returns
from gbactl.coordinator.server_sums import LostParts
from gbactl.coordinator.summary import RunRecord
from gbactl.coordinator.worker_losses import Losses
from gbactl.coordinator.worker_recovery import Recovery
from gbactl.data.dataset import Dataset
from gbactl.errors import ClusterError, DivergedError, NoRoomError, PeerGoneError, WireError
from gbactl.faults.observed import Observed
from gbactl.paths import room_needed
from gbactl.policies import Phase, make
from gbactl.policies.base import policy_class
from gbactl.store.schedule import factor
from gbactl.wire import frames, traffic
from gbactl.wire.auth import Peer
from gbactl.wire.channel import Channel, Hub
from gbactl.wire.frames import Frame
from gbactl.wire.messages import (
    Absent,
    Barrier,
    BeginPhase,
    Checked,
    ClosedReplicas,
    DenseSaved,
    Event,
    Fenced,
    Granted,
    Hello,
    Inspect,
    Inspected,
    Loaded,
    Moved,
    Norms,
    Pong,
    Predictions,
    Reached,
    Ready,
    Saved,
    Staged,
    Stop,
    Take,
    decode,
)

PROGRESS_SECONDS = 0.5
GOODBYE_SECONDS = 5.0
SUM_DIGITS = 24  # of a node's part of a model's sum, which is below 2^64
log = logging.getLogger(__name__)


class Coordinator:
    """Drives one run. `run()` returns when everything is said; the launcher then stops the processes."""

    def __init__(
        self, hub: Hub, cfg: RunConfig, dataset: Dataset, run_dir: Path, header: dict[str, Any],
        found: Found | None = None,
    ) -> None:  # fmt: skip
        """`found`: what another coordinator left, in whose place this one is."""
        self.hub, self.cfg, self.dataset, self.run_dir = hub, cfg, dataset, run_dir
        self.members = Members(cfg.processes, cfg.cluster.servers)
        self.losses = Losses(self.members)
        life = 0 if found is None else found.epoch
        self.trainers = Trainers(
            self.members, self._pump, lambda: self.record.seconds, lambda: self.returns.losses, life
        )
        self.now = cfg
        self.record = RunRecord(hub.now)
        self.record.statistics.observed = Observed.of(
            cfg.fault_plan(), cfg.pinned, lambda: self.record.seconds
        )  # fmt: skip
        self.journal = Journal(self, run_dir, found)
        self.log = EventLog(run_dir / "events.log", header, None if found is None else found.end, self.journal.on)
        self.norms = NormLog(run_dir / norm_log.NAME)
        self.launcher: Channel | None = None
        self.step = 0
        self.stopped, self._gathered, self.started = False, False, False
        self._next_progress = 0.0
        self._phase_number = 0
        self._first_step: int | None = None
        self._waiting: deque[int] = deque()
        self._training: Training | None = None
        self._evaluation: Evaluation | None = None
        self._reached: dict[int, int] = {}
        self._inspected: dict[str, Inspected] = {}
        self._handlers: dict[type[Any], Callable[[Channel, Any, Frame], None]] = {
            Hello: self._on_hello, Ready: self._on_ready, Take: self._on_take, Staged: self._on_staged,
            Checked: self._on_checked, Norms: self._on_norms, Moved: self._on_moved,
            Predictions: self._on_predictions, Reached: self._on_reached, Inspected: self._on_inspected,
            Fenced: self._on_fenced, Event: self._on_event, Pong: self._on_pong, ClosedReplicas: self._on_closed,
            Saved: self._on_saved, DenseSaved: self._on_dense_saved, Loaded: self._on_loaded,
        }  # fmt: skip
        self.recovery, self.lost_parts = Recovery(self), LostParts(self)
        self._handlers |= self.lost_parts.handlers
        self.returns = Returns(self)
        self._switcher: Switcher | None = None
        self.cuts = Cuts(self, run_dir)
        self.revival = None if found is None else Revival(self, found)
        self.resumed: dict[int, tuple[Ranges, bool, bool]] = {}  # a round that a dead coordinator has begun
        self.over = False
        self._handlers |= {} if self.revival is None else self.revival.handlers

    # -- the run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Gather the nodes, work through the rounds, report the result, dismiss everybody.

        Raises GbactlError; one for a model that diverged, or a disk that is full, says what the run can go on from."""
        try:
            with room_needed(self.run_dir):
                self._run()
        except DivergedError as error:
            raise DivergedError(self._ended_by(error)) from error
        except NoRoomError as error:
            raise NoRoomError(f"{error} {self.cuts.way_back()}".rstrip()) from error

    def _ended_by(self, error: DivergedError) -> str:
        """Tell how far the run came and keep its log; the sentence for the user."""
        self._progress()
        self.log.flush()
        return f"{error} {self.cuts.way_back(f'optim.lr={self.cfg.optim.lr / 10:g}')}".rstrip()

    def _run(self) -> None:
        plan = rounds(self.dataset, self.cfg.train)
        self._switcher = Switcher(self, [self.dataset.splits[part.split].rows for part in plan], self.run_dir)
        self.gather()
        self.cuts.begin(sum(self.switcher.rows))
        if self.revival is not None:
            self.revival.restore()
        stopping, results = self.cuts.stopping, self.cuts.results
        while not self._worked_through(plan):
            self.returns.rewind()
            self.over = False
        self.switcher.ended()
        best = results[stopping.best_round] if self.dataset.kind == "splits" else results[-1]
        told = self.result(best)
        self.recovery.times.end()
        self._event("result", told)
        self.log.close(step=self.step)
        self._dismiss("done")

    def _worked_through(self, plan: list[Round]) -> bool:
        """Every round to the last checkpoint; False where everybody has to go back first."""
        results = self.cuts.results
        try:
            trained = self.cuts.trained or self.over
            for number, part in [] if trained else list(enumerate(plan))[len(results) :]:
                self.train(part, number, len(plan))
                self.journal.stands(EVALUATE, number)
                if self.now.home == "replicas":
                    self.recovery.rejoin()
                scores = {split: self.evaluate(split) for split in part.evaluate}
                self.returns.check()
                results.append(self._close_round(part, scores))
                if self.cuts.stopping.update(scores[part.judged_by]["auc"]):
                    break
            self.journal.stands(OVER, len(results) - 1)
            self.cuts.end()
        except GoBack:
            return False
        return True

    def gather(self) -> None:
        """Wait until every node is ready. Raises ClusterError that names those that are not."""
        if self.revival is not None:
            self.revival.gather()
            return
        limit = self.cfg.cluster.start_timeout
        if not self._pump(self.members.complete, self.hub.now() + limit):
            missing = ", ".join(self.members.missing())
            raise ClusterError(
                f"{missing} did not come up within {limit:.0f} s; look into their logs, or type "
                f"cluster.start_timeout={2 * limit:.0f}."
            )
        self._gathered = self.members.settled = True
        self.record.start()

    def train(self, part: Round, number: int, of: int) -> None:
        """A round's training, to its last applied gradient: one phase, and one more for every switch within it."""
        rows = self.dataset.splits[part.split].rows
        self.record.round = (part, number, of, rows)
        unread = self.cuts.unread(number, rows)
        rest, inside, stood = self.resumed.pop(number, (unread, False, False))
        while rest:
            if not stood:
                self.switcher.go_on(number, rest[0][0], inside)
                self.journal.stands(TRAIN, number, rest, inside)
            rest, inside, stood = after(rest, self._phase(part, rest)), True, False
            self.returns.check()
        self.log_checksums(self.inspect("server"))

    @property
    def switcher(self) -> Switcher:
        """Who knows when which mode comes."""
        assert self._switcher is not None
        return self._switcher

    def _phase(self, part: Round, rest: Ranges) -> int:
        """Train in one mode on the `rest` of a day; returns how many samples it was given."""
        cfg = self.now
        if self.revival is None:  # else within a phase, of which all know
            self.recovery.rejoin()
        workers, joiners = range(cfg.cluster.workers), range(cfg.cluster.workers, self.cfg.processes)
        phase = Phase(
            total(rest), cfg.local_batch, cfg.train.global_batch, self.step, tuple(workers), tuple(joiners),
            ahead=cfg.mode.prefetch > 0,
        )  # fmt: skip
        policy = make(cfg.mode.name, phase, cfg.policy_options())
        self.lost_parts.begins(phase)
        stop_at = self.switcher.begin(policy)
        if self.revival is None:
            self._begin(True, part.split, part.epoch, policy.phase.samples, cfg.local_batch, rest)
        began = None if self.revival is None else self.revival.phase_began
        self.trainers.open(cfg, self._phase_number, self._waiting, began)
        self.record.statistics.pulled.clear()
        done = self.record.ledger.finished
        fold = TrainingPhase(policy, lambda finished: self._lr_scale(done + finished), self.record.statistics)
        training = Training(
            self._phase_number, fold, self.members, self.log, self._waiting, self.hub.now, cfg.train.checksum_every
        )
        training.stop_at, training.ranges, self._training = stop_at, rest, training
        training.told_loss = self._on_loss
        self.cuts.watch(training)
        training.one_each = cfg.home == "servers" and cfg.mode.prefetch == 0
        if self.revival is not None:
            self.revival.go_on(training)
        for worker in self.losses.gone:
            if not training.leaving(worker):
                training.left(worker)
        training.serve()
        self.switcher.drain(training)
        self.trainers.close(self._waiting)
        training.finish()
        self.step = policy.step
        self.lost_parts.ends(policy.phase)
        self._barrier()
        self._training = None
        self.record.close_phase(part, cfg.mode.name, training, rest[0][0])
        self.record.phases[-1].update(self.trainers.phase())
        self._event("phase", {"phases": list(self.record.phases)})
        self._progress()
        if cfg.home != "replicas":  # of those who has come is in no phase that another coordinator may go on with
            self.recovery.rejoin()
        return policy.phase.samples

    def log_checksums(self, servers: dict[str, Inspected]) -> None:
        """Every shard's whole state where training paused, for replays; empty where it was not computed."""
        for name, found in servers.items():
            self.log.info(event_log.CHECKSUM, {"shard": int(name[1:]), "step": self.step - 1, "whole": found.checksum})

    def _lr_scale(self, finished: int) -> float:
        return factor(self.cfg.optim.schedule, finished / self.cfg.train.global_batch)

    def _on_loss(self, worker: int, loss: float) -> None:
        """A gradient comes with this loss. Raises DivergedError where that ends the run."""
        limit, training = self.record.statistics.limit, self._training
        if limit.passed(loss) and self.cfg.train.on_divergence == "stop" and training is not None:
            rate = self.cfg.optim.lr * training.phase.lr_scale(training.policy.ledger.finished)
            raise DivergedError(limit.sentence(worker, training.policy.step, loss, rate))

    def evaluate(self, split: int) -> dict[str, float]:
        """Metrics of the present parameters on a split."""
        samples = self.dataset.splits[split].rows
        if self.cfg.train.max_eval_samples is not None:
            samples = min(samples, self.cfg.train.max_eval_samples)
        batch = self.cfg.train.eval_batch
        self._begin(False, split, 0, samples, batch)
        self._evaluation = evaluation = Evaluation(samples, batch, self.step)
        for _ in range(len(self._waiting)):
            self._grant_evaluation(self._waiting.popleft())
        self._pump(lambda: evaluation.missing == 0)
        self._evaluation = None
        return evaluation.metrics(self.dataset.splits[split].slice(0, samples).labels)

    def _begin(
        self, training: bool, split: int, epoch: int, samples: int, batch: int, rest: Ranges = ((0, 0),)
    ) -> None:
        self._phase_number += 1
        self.started = True
        self.hub.traffic.training = training
        self._first_step = self.step if self._first_step is None else self._first_step
        mode, home = policy_class(self.now.mode.name), self.now.home
        message = BeginPhase(
            self._phase_number, training, self.now.mode.name, split, epoch, samples, batch, self.step,
            home == "servers" or (home == "replicas" and not training),
            mode.prefetch_rows and self.now.mode.prefetch > 0,
            rest[0][0], flat(rest),
        )
        self.log.info(event_log.PHASE, message._asdict())
        self.returns.begun = message._replace(served_dense=home != "workers")
        self.members.tell("server", self.returns.begun)
        self._barrier()
        if training:
            self.switcher.resumed()
        self.recovery.begin()
        self.members.tell("worker", message)
        self.recovery.begun = message

    def _barrier(self, step: int | None = None) -> None:
        """Wait until every shard has applied everything ordered so far, or below a step."""
        self._reached.clear()
        self.returns.ask(Barrier(self.step if step is None else step), lambda shard: shard in self._reached)

    def inspect(self, *roles: str, what: str = "checksum", seconds: float | None = None) -> dict[str, Inspected]:
        """Checksums and memory of every node of some roles; nothing if one does not answer within `seconds`."""
        self._inspected.clear()
        deadline = None if seconds is None else self.hub.now() + seconds
        if "worker" in roles:
            self.members.tell("worker", Inspect(what))
        ask_servers = self.returns.asking(Inspect(what), lambda shard: f"S{shard}" in self._inspected)
        with ask_servers if "server" in roles else nullcontext():
            if not self._pump(lambda: self._names(roles) <= set(self._inspected), deadline):
                return {}
        return {node: each for node, each in self._inspected.items() if node in self._names(roles)}

    def _names(self, roles: Sequence[str]) -> set[str]:
        servers = {f"S{shard}" for shard in range(self.cfg.cluster.servers)} if "server" in roles else set()
        workers = self.members.of("worker").values() if "worker" in roles else ()
        return servers | {str(channel.peer) for channel in workers}

    def _close_round(self, part: Round, scores: dict[int, dict[str, float]]) -> dict[str, Any]:
        names = {split: self.dataset.splits[split].name for split in part.evaluate}
        whole = self.record.close_round({names[split]: scores[split] for split in names}, names[part.judged_by])
        told = {"phases": list(self.record.phases), "samples_finished": self.record.ledger.finished}
        self._event("round", {**whole, **told})
        return whole

    def result(self, best: dict[str, Any]) -> dict[str, Any]:
        """What result.json says, but for what only the launcher knows."""
        inspected = self.inspect("server", "worker")
        refused = sum((Counter(node.refused) for node in inspected.values()), Counter(self.hub.refused))
        found = self.record.result(best, inspected)
        rolled_back = sum(failed.samples_rolled_back for failed in self.recovery.times.all)
        return {
            **found,
            "samples": {**found["samples"], "rolled_back": rolled_back},
            "mode": self.record.modes,
            **self.trainers.result(),
            **({} if self.switcher.auto is None else {"auto": self.switcher.auto.summary()}),
            "best_possible_auc": self.dataset.best_auc.get(best["evaluated_on"]),
            "global_step": self.step,
            "refused_frames": sum(refused.values()),
            "refused": dict(refused.most_common()),
            "wire": self._wire(inspected),
            "event_log_bytes": self.log.bytes,
            **self.cuts.summary(),
            **self.recovery.told(inspected),
        }

    def _wire(self, inspected: dict[str, Inspected]) -> dict[str, Any]:
        nodes = [self.hub.traffic.counters(), *(node.counters for node in inspected.values())]
        return traffic.summary(nodes, self.step - (self._first_step or 0))

    def _progress(self) -> None:
        told = {"mode": self.now.mode.name, "live": len(self.members.of("worker")), "lost": self.losses.gone}
        if self.switcher.auto is not None:
            told["auto"] = self.switcher.auto.last
        self._event("progress", {**self.record.progress(self._training, self.step), **told})

    def _event(self, name: str, fields: dict[str, Any]) -> None:
        if self.launcher is not None:
            self.launcher.send(Event(name, fields))

    # -- messages -----------------------------------------------------------------------------------

    def _pump(self, until: Callable[[], bool], deadline: float | None = None) -> bool:
        """Handle messages until a condition holds; False when the deadline passes first."""
        while not until():
            left = PROGRESS_SECONDS if deadline is None else min(PROGRESS_SECONDS, deadline - self.hub.now())
            for channel, frame in self.hub.poll(self.recovery.left(max(0.0, left))):
                self._handle(channel, frame)
            self.cuts.look()
            self.recovery.look()
            self.returns.look()
            if self._training is not None:
                self.switcher.look()
                self.trainers.look(self._training.policy)
                if self._progress_due(self._training):
                    self._progress()
            if deadline is not None and self.hub.now() >= deadline:
                return until()
        return True

    def _progress_due(self, training: Training) -> bool:
        """Whether it is time to tell how far a phase is: every so many seconds."""
        now = self.hub.now()
        if now < self._next_progress:
            return False
        self._next_progress = now + PROGRESS_SECONDS
        return True

    def _handle(self, channel: Channel, frame: Frame) -> None:
        if frame.kind == frames.CLOSED:
            self._lost(channel)
            return
        self.recovery.times.alive(str(channel.peer))
        try:
            message = decode(frame)
            handler = self._handlers.get(type(message))
            if handler is None:
                raise WireError(f"{channel.peer} may not send {type(message).__name__} to the coordinator.")
            if self.revival is not None and self.revival.keeps(channel, message):
                return
            handler(channel, message, frame)
        except WireError as error:
            self._refuse(channel, error)
        finally:
            frame.release()

    def _refuse(self, channel: Channel, error: WireError) -> None:
        """A node that sends what cannot be would keep its batch for ever: the run ends instead."""
        self.hub.refused[type(error).__name__] += 1
        log.warning("refused a frame from %s: %s", channel.peer, error)
        channel.close()
        if self.members.forget(channel) and not self.stopped:
            raise ClusterError(f"{channel.peer} was turned away: {error}") from error

    def _lost(self, channel: Channel) -> None:
        if channel is self.launcher:
            raise PeerGoneError("The launcher is gone.")
        if self.revival is not None and self.revival.lost(channel):
            return
        joined_not = self.recovery.joiner_lost(channel) or self.returns.joiner_lost(channel)
        if joined_not or not self.members.forget(channel) or self.stopped:
            return
        if channel.peer.role == "server":
            if not self.returns.lost(channel):
                raise PeerGoneError(f"{channel.peer} is gone.")
            return
        self.recovery.lost(channel.peer)
        if not self._can_do_without(channel.peer):
            raise PeerGoneError(f"{channel.peer} is gone.")
        self._give_up(channel.peer)

    def _can_do_without(self, peer: Peer) -> bool:
        """Whether the run goes on without a node: a worker, where the others or the servers hold everything."""
        allowed = self.cfg.cluster.lost_worker != "end" and peer.role == "worker"
        settled = self._gathered and (self.recovery.survivable or self.switcher.mover.moving)
        others = bool(self.members.of("worker"))
        return allowed and settled and (others or (self.recovery.replaces and self.now.home == "servers"))

    def _give_up(self, peer: Peer) -> None:
        worker = peer.index
        while worker in self._waiting:  # once for each batch that it asked for
            self._waiting.remove(worker)
        self.trainers.left(worker)
        batches = [] if self._training is None else self._training.leaving(worker)
        if self._switcher is not None and self._switcher.auto is not None:
            self._switcher.auto.controller.gone(worker)
        self.losses.fence(worker, self._phase_number, batches, peer.epoch)
        self.journal.came(worker, peer.epoch)
        self.members.tell("worker", Absent(worker))
        self.cuts.worker_lost(worker)
        if self._evaluation is not None:
            self._evaluation.left(worker)
            for _ in range(len(self._waiting)):
                self._grant_evaluation(self._waiting.popleft())
        self._tell_lost(peer, len(batches))

    def _tell_lost(self, peer: Peer, batches: int) -> None:
        told = {"step": self._now_step, "batches": batches, "shared": self.now.collective_now, "epoch": peer.epoch}
        self._event("lost", {"process": str(peer), "replaced": self.recovery.replaces, **told})

    @property
    def _now_step(self) -> int:
        return self.step if self._training is None else self._training.policy.step

    def _on_fenced(self, channel: Channel, message: Fenced, _: Frame) -> None:
        self.members.authentic(channel, "server", message.shard)
        if self.losses.fenced(message) and self._training is not None:
            self._training.left(message.worker)

    def _on_hello(self, channel: Channel, hello: Hello, _: Frame) -> None:
        if hello.role == "launcher":
            self.launcher = channel
        elif self.revival is not None:
            self.revival.hello(channel, hello)
        else:
            self.members.hello(channel, hello)

    def _on_pong(self, channel: Channel, pong: Pong, _: Frame) -> None:
        alive = self.returns if channel.peer.role == "server" else self.recovery
        alive.answered(channel, pong)

    def _on_loaded(self, channel: Channel, message: Loaded, _: Frame) -> None:
        self.returns.loaded(channel, message)

    def _on_ready(self, channel: Channel, ready: Ready, _: Frame) -> None:
        if ready.role == "worker" and self.recovery.came(channel, ready.number):
            return
        self.members.authentic(channel, ready.role, ready.number)
        self.members.ready.add((ready.role, ready.number))

    def _on_take(self, channel: Channel, take: Take, _: Frame) -> None:
        if self.recovery.early(channel, take.worker):
            return
        self.members.authentic(channel, "worker", take.worker)
        self._take(take.worker)

    def _take(self, worker: int) -> None:
        """Hand a worker its next batch, or remember that it waits."""
        if self.trainers.one_too_many(worker):
            return
        if self._evaluation is not None:
            self._grant_evaluation(worker)
        elif self._training is None or not self._training.take(worker):
            self._waiting.append(worker)

    def _grant_evaluation(self, worker: int) -> None:
        evaluation = self._evaluation
        got = evaluation.take(worker) if evaluation is not None else None
        if evaluation is None or got is None:
            self._waiting.append(worker)
            return
        batch, start, samples = got
        channel = self.members.of("worker")[worker]
        channel.send(Granted(self._phase_number, batch, self.step, start, samples, evaluation.version, 0.0, 0.0))

    def _on_staged(self, channel: Channel, message: Staged, _: Frame) -> None:
        self.members.authentic(channel, "server", message.shard)
        self.returns.staged(message)
        announced = self._training is not None and self._training.staged(message)
        if announced:
            self.recovery.times.useful(f"W{message.worker}")
            announced = self._training is None or self._training.asked(message.batch)
        if announced or (self.switcher.late.staged(message) and message.worker not in self.losses.gone):
            self._take(message.worker)

    def _on_checked(self, channel: Channel, message: Checked, _: Frame) -> None:
        self.members.authentic(channel, "server", message.shard)
        self.log.info(event_log.CHECKSUM, message._asdict())

    def _on_predictions(self, channel: Channel, message: Predictions, frame: Frame) -> None:
        self.members.authentic(channel, "worker", message.worker)
        if self._evaluation is not None and message.phase == self._phase_number:
            self._evaluation.put(message, frame.payload)
            self.recovery.times.useful(str(channel.peer))

    def _on_reached(self, channel: Channel, message: Reached, _: Frame) -> None:
        self.members.authentic(channel, "server", message.shard)
        self._reached[message.shard] = message.version

    def _on_inspected(self, channel: Channel, message: Inspected, _: Frame) -> None:
        self.members.member(channel)
        total = message.model_sum
        if message.node != str(channel.peer) or (total and not (total.isdecimal() and len(total) <= SUM_DIGITS)):
            raise WireError(f"{channel.peer} answers for {message.node} with the sum {total[:SUM_DIGITS]}.")
        self._inspected[message.node] = message

    def _on_saved(self, channel: Channel, message: Saved, _: Frame) -> None:
        self.members.authentic(channel, "server", message.shard)
        self.cuts.saved(message)

    def _on_dense_saved(self, channel: Channel, message: DenseSaved, frame: Frame) -> None:
        self.members.authentic(channel, "worker", channel.peer.index)
        self.cuts.dense(message, frame.floats(), channel.peer.index)

    def _on_norms(self, channel: Channel, message: Norms, _: Frame) -> None:
        self.members.member(channel)
        if message.square < 0:
            raise WireError(f"{channel.peer} tells {message.square} as the square of a norm.")
        replicated = self.now.home == "workers"
        self.norms.add(self.now.mode.name, message, self.cfg.cluster.servers + replicated)

    def _on_moved(self, channel: Channel, message: Moved, _: Frame) -> None:
        self.members.authentic(channel, "worker", message.worker)
        self.switcher.mover.moved(message)

    def _on_closed(self, channel: Channel, message: ClosedReplicas, _: Frame) -> None:
        self.members.authentic(channel, "worker", message.worker)
        self.trainers.closed(message)

    def _on_event(self, channel: Channel, event: Event, _: Frame) -> None:
        if channel is not self.launcher or event.name not in ("switch", "stop"):
            raise WireError(f"{channel.peer} may not send an event {event.name} to the coordinator.")
        self.asked(event)

    def asked(self, event: Event) -> None:
        """Do what the launcher asks for: another mode, or to save where the run stands before it stops."""
        if event.name == "stop":
            self.cuts.stop(float(event.fields["seconds"]))
        else:
            self.switcher.ask(event.fields)

    def _dismiss(self, reason: str) -> None:
        """Workers first, servers once those are gone: nobody is left talking to nobody."""
        self.stopped = True
        self.members.tell("worker", Stop(reason))
        self.recovery.dismiss()
        self._pump(lambda: not self.members.of("worker"), self.hub.now() + GOODBYE_SECONDS)
        self.members.tell("server", Stop(reason))
