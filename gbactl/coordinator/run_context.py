"""Context that all parts of the coordinator share, the generators by which they wait, and requests to all nodes.

The parts (dispatch, checkpoints, recoveries, mode switch, replicas) do not know each other: each has this context and
its own branch of the state. Code that waits for nodes is a generator that yields a WaitCondition; one loop
(message_loop.py) handles messages until the condition holds and then resumes it. So a run reads from top to bottom in
run_flow.py, and no message is handled within a wait of another.

Requests to all nodes, whose answers the run waits for, are barrier, checksums and reload. A server's successor is asked
what its predecessor has not answered. A request costs a message to and from each node.
"""

from __future__ import annotations

import functools
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gbactl.checkpoint.remaining_samples import Ranges
from gbactl.config import RunConfig, mode_values, rounds
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import EventLog
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.membership import Fencing, Membership
from gbactl.coordinator.run_record import RecoveryTimes, RunRecord
from gbactl.coordinator.state import (
    JOURNAL_FILE,
    FailureRecord,
    JobPosition,
    JournalState,
    RunState,
    encoded,
    read_times,
    write_state,
    write_times,
    writes_journal,
)
from gbactl.coordinator.statistics import NORMS_FILE, ActivityTimes, NormLog
from gbactl.data.dataset import Dataset
from gbactl.errors import DivergedError, WireError
from gbactl.faults.observed_effects import ObservedBatches
from gbactl.quality_metrics import evaluate
from gbactl.switching.auto_controller import SYNC, AutoController, AutoSwitch
from gbactl.switching.switch_schedule import SwitchPlan
from gbactl.wire.channel_interface import Channel, Hub
from gbactl.wire.messages import Barrier, BeginPhase, Event, Granted, Inspect, Inspected, Predictions, ReloadCheckpoint

TIMES_SECONDS = 1.0  # time between two saves of the processes' times: what a coordinator's failure loses of them
SUM_DIGITS = 24  # maximum of digits of a node's share of a model's checksum, which is below 2^64


class WaitCondition(NamedTuple):
    """Condition that a generator waits for, until `deadline` by the hub's clock at the latest.

    The generator is sent whether the condition holds."""

    condition: Callable[[], bool]
    deadline: float | None = None


T = TypeVar("T")
Flow = Generator[WaitCondition, bool, T]


class Evaluation:
    """Evaluation of a split: hands out batches and collects float32[samples] predictions."""

    def __init__(self, samples: int, batch: int) -> None:
        self.samples, self.batch = samples, batch
        self.predictions = np.full(samples, np.nan, np.float32)
        self.missing = samples
        self._arrived: set[int] = set()
        self._leases: dict[int, int] = {}
        self._requeued: list[int] = []
        self._next = 0

    def next_batch(self, worker: int) -> tuple[int, int, int] | None:
        """Next evaluation batch for a worker, as (batch, start, samples); None when all are handed out."""
        number = self._requeued.pop() if self._requeued else self._next
        start = number * self.batch
        if start >= self.samples:
            return None
        self._next = max(self._next, number + 1)
        self._leases[number] = worker
        return number, start, min(self.batch, self.samples - start)

    def requeue(self, worker: int) -> None:
        """Hand out a failed worker's evaluation batches again."""
        self._requeued += [batch for batch, owner in self._leases.items() if owner == worker]
        self._leases = {batch: owner for batch, owner in self._leases.items() if owner != worker}

    def store(self, message: Predictions, payload: Any) -> None:
        """Store a batch's predictions. Raises WireError when their number does not match the batch."""
        expected = min(self.batch, self.samples - message.batch * self.batch)
        if message.batch < 0 or message.samples != expected or payload.size != 4 * expected:
            got = f"{payload.size} bytes for {message.samples} samples"
            raise WireError(f"predictions of batch {message.batch} of {expected} samples have {got}")
        if message.batch in self._arrived:
            raise WireError(f"predictions of batch {message.batch} came twice")
        self._arrived.add(message.batch)
        self._leases.pop(message.batch, None)
        start = message.batch * self.batch
        self.predictions[start : start + expected] = payload.view(np.float32)
        self.missing -= expected

    def metrics(self, labels: Any, users: Any = None) -> dict[str, float]:
        """Compute auc (exact), logloss, ne and calibration; with `users` also gauc. Raises DivergedError."""
        if not np.isfinite(self.predictions).all():
            raise DivergedError("The model diverged: its predictions are infinite or NaN; type a smaller optim.lr.")
        return evaluate(labels, self.predictions, users)


class RunContext:
    """State and services of one run that all parts of its coordinator share."""

    def __init__(
        self,
        hub: Hub,
        cfg: RunConfig,
        dataset: Dataset,
        run_dir: Path,
        header: dict[str, Any],
        journal: JournalState | None,
    ) -> None:
        """Set up a run. `journal`: state of the failed coordinator that this one replaces, if any."""
        self.hub, self.cfg, self.dataset, self.run_dir = hub, cfg, dataset, run_dir
        self.state = RunState() if journal is None else journal.state
        self.members = Membership(cfg.processes, cfg.cluster.servers)
        self.fencing = Fencing(self.members, self.state.ongoing.lives)
        self.current = cfg  # configuration in the current mode
        self.rounds = rounds(dataset, cfg.train)
        rows = [dataset.splits[part.split].rows for part in self.rounds]
        self.record = RunRecord(hub.now, cfg.train.patience, list(zip(self.rounds, rows, strict=True)))
        self.record.modes = cfg.mode.name
        self.record.statistics.observed = ObservedBatches.of(cfg.fault_plan(), cfg.pinned, lambda: self.record.seconds)
        self.journaled = writes_journal(cfg)
        if journal is None:
            (run_dir / JOURNAL_FILE).unlink(missing_ok=True)  # left by an earlier part of a resumed run
        self.norms = NormLog(run_dir / NORMS_FILE)
        self.log = EventLog(run_dir / "events.log", header, None if journal is None else journal.end, self.journaled)
        self.failures = RecoveryTimes(hub.now, self._log_failure, self.state.ongoing.failures)
        self.launcher: Channel | None = None
        self.step = self.phase_number = 0
        self.begin_phase: BeginPhase | None = None  # the last announcement of a phase, as workers get it
        self.training: LivePhase | None = None
        self.evaluation: Evaluation | None = None
        self.untrained: Ranges = ()  # samples of the round after the phase that has ended last
        self.waiting: deque[int] = deque()  # workers that asked for a batch and got none yet
        # per worker: requests for batches by threads of a phase that is over
        self.surplus_requests: Counter[int] = Counter()
        self.stopped = False
        self.taking_over = journal is not None
        self.server_losses = 0  # server failures so far
        self.failed_servers: dict[int, float] = {}  # shard -> time at which its failure was detected
        self.rollback_pending = False  # every node must go back to the last checkpoint, as soon as nothing is in flight
        self._times_due = 0.0
        self.switch_plan = SwitchPlan(cfg.entries, cfg.phases, rows)
        self.auto: AutoSwitch | None = None
        if cfg.candidates:
            batch = cfg.candidates[SYNC].local_batch
            controller = AutoController(cfg.train.global_batch, batch, cfg.switch)
            log_decision = functools.partial(self.send_event, "auto")
            self.auto = AutoSwitch(controller, cfg.switch.every, run_dir, lambda: self.record.seconds, log_decision)
            self.record.statistics.on_gradient = self.auto.add_gradient

    # -- facts --------------------------------------------------------------------------------------

    @property
    def home(self) -> str:
        """Holder of the dense parameters in the current mode: "servers", "workers" or "replicas"."""
        return self.current.home

    @property
    def begin_phase_for_servers(self) -> BeginPhase | None:
        """Announcement of the last phase, in the servers' form."""
        return self.begin_phase and self.begin_phase._replace(served_dense=self.home != "workers")

    @property
    def step_now(self) -> int:
        """Number of steps ordered so far, including the current phase."""
        return self.step if self.training is None else self.training.policy.step

    @property
    def finished(self) -> int:
        """Number of samples of the run that were trained, decayed or lost so far, in the current phase, too."""
        return self.record.ledger.finished + (0 if self.training is None else self.training.policy.ledger.finished)

    @property
    def can_save(self) -> bool:
        """Whether the servers' state can be saved now: every shard is served, and no rollback is pending."""
        return not (self.failed_servers or self.rollback_pending)

    def position(self, step: int, training: LivePhase | None = None, ended: bool = False) -> JobPosition:
        """Position of the job in its data and schedule at global step `step`."""
        return self.record.position(training, step, mode_values(self.current), self.switch_plan.taken, ended)

    # -- batches ------------------------------------------------------------------------------------

    def hand_out(self, worker: int) -> None:
        """Answer a worker's request: drop it if surplus, hand out an evaluation or training batch, or queue it."""
        if self.surplus_requests[worker]:
            self.surplus_requests[worker] -= 1
        elif self.evaluation is not None:
            self._take_evaluation(worker)
        elif self.training is None or not self.training.take(worker):
            self.waiting.append(worker)

    def serve_evaluation(self) -> None:
        """Hand evaluation batches to all waiting workers."""
        for _ in range(len(self.waiting)):
            self._take_evaluation(self.waiting.popleft())

    def _take_evaluation(self, worker: int) -> None:
        granted = None if self.evaluation is None else self.evaluation.next_batch(worker)
        if granted is None:
            self.waiting.append(worker)
            return
        batch, start, samples = granted
        channel = self.members.channels["worker", worker]
        channel.send(Granted(self.phase_number, batch, self.step, start, samples, self.step, 0.0, 0.0))

    # -- reports ------------------------------------------------------------------------------------

    def send_event(self, name: str, fields: dict[str, Any]) -> None:
        """Send the launcher an event."""
        if self.launcher is not None:
            self.launcher.send(Event(name, fields))

    def send_progress(self) -> None:
        """Report the progress of the run to the launcher."""
        live = len(self.members.channels_of("worker"))
        fields = {"mode": self.current.mode.name, "live": live, "lost": self.fencing.failed_workers}
        if self.auto is not None:
            fields["auto"] = self.auto.last
        self.send_event("progress", {**self.record.progress(self.training, self.step), **fields})
        if self.journaled and time.monotonic() >= self._times_due:
            self.save_times()

    def log_note(self) -> None:
        """Log the state that changed within a phase, for a coordinator failover."""
        if self.journaled:
            self.state.ongoing.acted = self.record.statistics.observed_faults
            self.log.info(event_log.NOTE, encoded(self.state.ongoing))

    def save_times(self) -> None:
        """Save the processes' times by activity: once a second, at a standstill, with a checkpoint, after a failure."""
        self._times_due = time.monotonic() + TIMES_SECONDS
        write_times(self.run_dir, self.record.statistics.times.shifted(-self.record.began))

    def restore_times(self, replaced: bool) -> None:
        """Continue from the saved times by activity; if there are none, times are known from now on.

        `replaced`: the servers are other processes than those of which times were saved."""
        saved = read_times(self.run_dir)
        times = ActivityTimes(since=self.record.seconds) if saved is None else saved.shifted(self.record.began)
        self.record.statistics.times = times
        if replaced:
            times.on_servers_replaced(list(times.beats))

    def save_standstill(self, stage: str, rest: Any = (), round_begun: bool = False) -> None:
        """Save the run's state while no batch is in flight; `rest`: untrained sample ranges of the round."""
        if not self.journaled:
            return
        self.log.flush()
        self.state.ongoing.acted = self.record.statistics.observed_faults
        standstill = self.state.standstill
        standstill.stage, standstill.rest, standstill.round_begun = stage, list(rest), round_begun
        standstill.offset, standstill.phase = self.log.bytes, self.phase_number
        standstill.at, standstill.began = self.hub.now(), self.record.began
        standstill.position = self.position(self.step)
        self.save_times()
        write_state(self.run_dir, self.state)

    def _log_failure(self, number: int, failed: FailureRecord) -> None:
        since = failed.at - self.record.began
        self.log.info(event_log.FAILURE, {"number": number, "at_s": since, **failed.to_log()})


class NodeRequests:
    """Requests to all nodes, with waits for their answers.

    `on_request` is called when servers are asked, with whether they read all their data, and when all have answered."""

    def __init__(self, run: RunContext, on_request: Callable[[bool], None]) -> None:
        self.run, self.on_request = run, on_request
        self.inspected: dict[str, Inspected] = {}
        self._pending: Any = None  # the last request to all servers, until each has answered
        self._answered: set[int] = set()  # shards whose servers have answered it

    # -- asking -------------------------------------------------------------------------------------

    def barrier(self, step: int) -> Flow[None]:
        """Wait until every shard has applied all steps below `step`."""
        yield from self._ask(Barrier(step))

    def reload(self, path: str) -> Flow[None]:
        """Have every server load the checkpoint in folder `path`; "" is the beginning of the run."""
        yield from self._ask(ReloadCheckpoint(path))

    def inspect(
        self, *roles: str, what: str = "checksum", seconds: float | None = None
    ) -> Flow[dict[str, Inspected]]:  # fmt: skip
        """Collect checksums and memory use of all nodes of some roles; empty if a node is silent for `seconds`."""
        self.inspected.clear()
        deadline = None if seconds is None else self.run.hub.now() + seconds
        if "worker" in roles:
            self.run.members.send_to_all("worker", Inspect(what))
        with self._asked_servers(Inspect(what)) if "server" in roles else nullcontext():
            if not (yield WaitCondition(lambda: self._all_inspected(roles), deadline)):
                return {}
        names = self._names(roles)
        return {node: answer for node, answer in self.inspected.items() if node in names}

    def repeat(self, server: Channel) -> None:
        """Repeat an unanswered request to a server's successor, if its predecessor has not answered."""
        if self._pending is not None and server.peer.index not in self._answered:
            server.send(self._pending)

    def _ask(self, message: Any) -> Flow[None]:
        with self._asked_servers(message):
            yield WaitCondition(lambda: len(self._answered) == self.run.cfg.cluster.servers)

    @contextmanager
    def _asked_servers(self, message: Any) -> Iterator[None]:
        """Ask every server, and within the context also the successors of servers that have not answered."""
        self._pending = message
        self._answered.clear()
        self.on_request(isinstance(message, Inspect | ReloadCheckpoint))
        self.run.members.send_to_all("server", message)
        try:
            yield
        finally:
            self._pending = None
            self.on_request(False)

    def _all_inspected(self, roles: Sequence[str]) -> bool:
        """Whether every node of some roles has answered."""
        members = self.run.members
        nodes = len(members.channels) - ("server" not in roles) * members.expected["server"]
        if "worker" in roles and len(self.inspected) < nodes:
            return False  # names are not compared after each of thousands of answers
        return self._names(roles) <= set(self.inspected)

    def _names(self, roles: Sequence[str]) -> set[str]:
        servers = {f"S{shard}" for shard in range(self.run.cfg.cluster.servers)} if "server" in roles else set()
        workers = self.run.members.channels_of("worker").values() if "worker" in roles else ()
        return servers | {str(channel.peer) for channel in workers}

    # -- answers ------------------------------------------------------------------------------------

    def on_answer(self, shard: int) -> None:
        """Record that a shard's server has answered the request."""
        self._answered.add(shard)

    def on_checksums(self, channel: Channel, message: Inspected) -> None:
        """Record a node's checksums. Raises WireError if they are another node's, or malformed."""
        total = message.model_sum
        if message.node != str(channel.peer) or (total and not (total.isdecimal() and len(total) <= SUM_DIGITS)):
            raise WireError(f"{channel.peer} sent an invalid checksum of {message.node}: {total[:SUM_DIGITS]}.")
        self.inspected[message.node] = message
        if channel.peer.role == "server":
            self.on_answer(channel.peer.index)
