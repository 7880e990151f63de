"""Flow of a run from its first message to its last: rounds, phases, evaluations, rollbacks, the result.

A generator, since a run is a sequence with loops and early ends: it reads in the order in which it happens, where
a state machine would have twenty states and their transitions. It yields what it waits for (see run_context.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from gbactl.checkpoint.remaining_samples import Ranges, encode_ranges, total_samples, without_first
from gbactl.config import Round, samples_of
from gbactl.coordinator import event_log
from gbactl.coordinator.coordinator_failover import Failover
from gbactl.coordinator.event_routing import CoordinatorCore
from gbactl.coordinator.live_phase import LivePhase
from gbactl.coordinator.run_context import Evaluation, Flow, WaitCondition
from gbactl.coordinator.state import EVALUATE, OVER, TRAIN
from gbactl.coordinator.training_phase import TrainingPhase
from gbactl.errors import ClusterError, DivergedError
from gbactl.wire.messages import BeginPhase, ShardRelocated, Stop
from gbactl.wire.node_measurements import traffic_summary

GOODBYE_SECONDS = 5.0


class RunFlow:
    """Flow of one run, as generators that yield the conditions that they wait for.

    `failover` brings the run to where a failed coordinator left it; `amend_result` adds to the result."""

    def __init__(self, core: CoordinatorCore, failover: Failover | None) -> None:
        self.core, self.run, self.failover = core, core.run, failover
        self.amend_result: Callable[[dict[str, Any]], None] = lambda result: None

    # -- the whole run ------------------------------------------------------------------------------

    def run_all(self) -> Flow[None]:
        """Wait for the nodes, run all rounds, report the result, and stop all nodes. Raises GbactlError."""
        run, core = self.run, self.core
        yield from self._gather()
        core.checkpoints.begin(samples_of(run.dataset, run.cfg.train))
        over = False
        if self.failover is not None:
            over = yield from self.failover.restore()
        elif core.checkpoints.resumed is not None:
            run.restore_times(replaced=True)
            core.workers.skip_past_faults()
        while not (yield from self._run_rounds(over)):
            yield from self._roll_back()
            over = False
        yield from core.checkpoints.end_stop()
        core.switch.ended()
        record = run.record
        best = record.results[record.stopping.best_round if run.dataset.kind == "splits" else -1]
        result = yield from self._result(best)
        run.failures.end()
        run.send_event("result", result)
        run.log.close(step=run.step)
        yield from self._stop_nodes()

    def _gather(self) -> Flow[None]:
        """Wait until all nodes are ready and the launcher is connected, which must not miss the result of a short run.

        Raises ClusterError that names the missing nodes."""
        run = self.run
        if self.failover is not None:
            yield from self.failover.gather()
            return
        limit = run.cfg.cluster.start_timeout

        def all_ready() -> bool:
            return run.members.complete() and run.launcher is not None

        if not (yield WaitCondition(all_ready, run.hub.now() + limit)):
            missing = ", ".join(run.members.missing()) or "The launcher"
            raise ClusterError(
                f"{missing} did not come up within {limit:.0f} s; look into their logs, or type "
                f"cluster.start_timeout={2 * limit:.0f}."
            )
        run.members.settled = True
        run.record.start()

    def _run_rounds(self, over: bool) -> Flow[bool]:
        """Run the remaining rounds, then save the final checkpoint. Returns False if all nodes must roll back first."""
        run, core = self.run, self.core
        rounds = [] if over or core.checkpoints.trained else list(enumerate(run.rounds))
        run.record.round = max(0, len(run.record.results) - 1)
        for number, round_ in rounds[len(run.record.results) :]:
            if not (yield from self._train(round_, number)):
                return False
            scores = yield from self._score(round_, ())
            if self._rollback_due:
                return False
            run.record.results.append(self._report_scores(round_, scores, round_.label))
            if run.record.stopping.update(scores[round_.judged_by]["auc"]):
                break
        run.save_standstill(OVER)
        return (yield from self._save_last())

    def _save_last(self) -> Flow[bool]:
        """Save the final model, again if a node fails in the save. Returns False if all nodes must roll back first."""
        run, checkpoints = self.run, self.core.checkpoints
        while checkpoints.enabled:
            failures = len(run.failures.failures)
            yield WaitCondition(lambda: not run.failed_servers)
            if self._rollback_due:
                return False
            yield from checkpoints.save_last()
            if failures == len(run.failures.failures):
                break
        return True

    @property
    def _rollback_due(self) -> bool:
        """Whether all nodes must roll back to a checkpoint now, while no batch is in flight."""
        return self.run.rollback_pending or (bool(self.run.failed_servers) and self.core.servers.full)

    # -- training -----------------------------------------------------------------------------------

    def _train(self, round_: Round, number: int) -> Flow[bool]:
        """Train a round until its last gradient is applied: in one phase, plus one for every switch within the round.

        An evaluation within the round ends a phase too. False where a rollback must come first."""
        run, core = self.run, self.core
        rows = run.dataset.splits[round_.split].rows
        run.record.round, core.switch.reached = number, False
        rest, begun, entered = core.checkpoints.remaining_ranges(number, rows), False, False
        if self.failover is not None:
            rest, begun, entered = self.failover.resumed_round() or (rest, begun, entered)
        run.untrained = rest
        while rest:
            if self._evaluation_due(round_, rows - total_samples(rest)):
                core.switch.log_checksums((yield from core.requests.inspect("server")))
                scores = yield from self._score(round_, rest)
                if self._rollback_due:
                    return False
                self._report_scores(
                    round_, scores, f"{round_.label}, {rows - total_samples(rest):,} of {rows:,} samples"
                )
            if not entered:
                yield from core.switch.go_on(rest[0][0], begun)
                run.save_standstill(TRAIN, rest, begun)
            trained = yield from self._phase(round_, rest)
            rest, begun, entered = without_first(rest, trained), True, False
            run.untrained = rest
            if self._rollback_due:
                return False
        core.switch.log_checksums((yield from core.requests.inspect("server")))
        return True

    def _evaluation_due(self, round_: Round, done: int) -> bool:
        """Whether an evaluation within a round is due after `done` of its samples, and was not made yet."""
        every, phases = self.run.cfg.train.eval_every, self.run.record.phases
        if every is None or not phases or phases[-1]["day"] != round_.label or "auc" in phases[-1]:
            return False
        before = done - sum(phases[-1][outcome] for outcome in ("samples", "decayed", "lost"))
        return bool(done // every > before // every)

    def _phase(self, round_: Round, rest: Ranges) -> Flow[int]:
        """Train one phase on the sample ranges `rest` of a round. Returns the phase's number of samples."""
        run, core = self.run, self.core
        if not run.taking_over:  # else the phase has begun, and all nodes know it
            yield from self._admit_successors()
        training = yield from self._open(round_, rest)
        policy = training.policy
        training.serve()
        yield from core.switch.drain(training)
        replicas = yield from core.replicas.close()
        training.finish()
        run.state.standstill.empty_grants = [
            (worker, grant) for worker, grants in training.empty_grants.items() for grant in grants
        ]
        run.step = policy.step
        core.sums.on_phase_end(policy.phase)
        yield from core.requests.barrier(run.step)
        run.training = None
        run.record.close_phase(training)
        run.record.phases[-1].update(replicas)
        run.send_event("phase", {"phases": list(run.record.phases)})
        run.send_progress()
        if run.home != "replicas":  # the log must not show successors in a phase that a failover may continue
            yield from self._admit_successors()
        return policy.phase.samples

    def _open(self, round_: Round, rest: Ranges) -> Flow[LivePhase]:
        """Announce a phase on the sample ranges `rest`, or restore a failed coordinator's phase from its log."""
        run, core, cfg = self.run, self.core, self.run.current
        phase = TrainingPhase.of(
            cfg, run.cfg.processes, total_samples(rest), run.step, run.record.ledger.finished, run.record.statistics
        )
        policy = phase.policy
        core.sums.on_phase_begin(policy.phase)
        stop_at = core.switch.begin(policy)
        if (every := cfg.train.eval_every) is not None:
            before = run.dataset.splits[round_.split].rows - total_samples(rest)
            policy.stop(-(-(every - before % every) // cfg.local_batch))
        failover = self.failover if run.taking_over else None
        if failover is None:
            yield from self._begin(True, round_.split, round_.epoch, policy.phase.samples, cfg.local_batch, rest)
        core.replicas.open(None if failover is None else run.state.standstill.at - run.state.standstill.began)
        run.record.statistics.pulled.clear()
        training = LivePhase(
            run.phase_number, phase, run.members, run.log, run.waiting, run.hub.now, cfg.train.checksum_every
        )
        training.stop_at, training.ranges, training.mode, run.training = stop_at, rest, cfg.mode.name, training
        training.on_loss = self._on_loss
        core.checkpoints.watch(training)
        training.single_batch = cfg.home == "servers" and not cfg.mode.prefetched_batches
        if failover is not None:
            yield from failover.go_on(training)
        for worker in run.fencing.failed_workers:
            if not training.ignore_worker(worker):
                training.release_batches(worker)
        return training

    def _begin(
        self, training: bool, split: int, epoch: int, samples: int, batch: int, rest: Ranges = ((0, 0),)
    ) -> Flow[None]:
        """Announce a phase to the servers, and then to the workers."""
        run, core = self.run, self.core
        run.phase_number += 1
        run.hub.traffic.training = training
        mode, home = run.current.mode.policy, run.home
        message = BeginPhase(
            run.phase_number,
            training,
            run.current.mode.name,
            split,
            epoch,
            samples,
            batch,
            run.step,
            home == "servers" or (home == "replicas" and not training),
            mode.prefetch_rows and run.current.mode.prefetch == "rows",
            rest[0][0],
            encode_ranges(rest),
        )
        run.log.info(event_log.PHASE, message._asdict())
        run.begin_phase = message
        run.members.send_to_all("server", run.begin_phase_for_servers)
        yield from core.requests.barrier(run.step)
        if training:
            yield from core.switch.resumed()
        if run.home == "servers":
            core.workers.admit(None)
        run.members.send_to_all("worker", message)

    def _on_loss(self, worker: int, loss: float) -> None:
        """Check the loss of an announced gradient. Raises DivergedError if it ends the run."""
        run = self.run
        limit, training = run.record.statistics.limit, run.training
        if limit.exceeded_by(loss) and run.cfg.train.on_divergence == "stop" and training is not None:
            rate = run.cfg.optim.lr * training.phase.lr_scale(training.policy.ledger.finished)
            raise DivergedError(limit.sentence(worker, training.policy.step, loss, rate))

    # -- between two phases -------------------------------------------------------------------------

    def _admit_successors(self) -> Flow[None]:
        """Admit successors of failed workers, and make the dense parameters equal on all workers that hold them.

        One worker sends the parameters to the servers, and all workers with the successors fetch them there. So all
        hold the same values again after a ring broke in the middle of a sum. Trainers also begin with these values."""
        run, core, home = self.run, self.core, self.run.home
        ongoing = run.state.ongoing
        ongoing.unequal &= home != "servers"  # the servers hold the only copy that counts
        if home == "servers" or not (core.workers.admissible or ongoing.unequal):
            return
        ongoing.unequal = False
        if home == "workers":  # for a replay; replica modes have none
            if run.phase_number:
                core.switch.log_checksums((yield from core.requests.inspect("server", what=core.switch.checksum_scope)))
            run.log.info(event_log.MOVED, {"step": run.step})
        yield from core.migration.migrate("servers", home)
        core.workers.admit(None, "servers")
        while not (yield from core.migration.migrate(home, "servers")):  # a worker failed: repeat without it
            pass
        run.fencing.tell_workers()

    def _roll_back(self) -> Flow[None]:
        """Roll all nodes and the job's position back to the last complete checkpoint."""
        run, core = self.run, self.core
        yield WaitCondition(lambda: not run.failed_servers)
        core.checkpoints.finish_or_abandon("everybody goes back")
        path, position = core.checkpoints.newest()
        before, finished = run.step, run.record.ledger.finished
        yield from core.requests.reload(path)
        run.rollback_pending = False
        run.members.send_to_all("worker", ShardRelocated(-1, "", 0, []))
        core.checkpoints.go_back(position)
        if run.home != "servers":
            yield from core.migration.fetch_again(run.home)
            run.fencing.tell_workers()
        run.norms.roll_back()
        not_yet_counted = rolled_back = finished - run.record.ledger.finished
        for failed in run.failures.failures:
            if failed.process.startswith("S") and failed.loaded is None:
                failed.samples_rolled_back, not_yet_counted = not_yet_counted, 0
                run.failures.record_ready(failed.process)
        run.log.info(event_log.SERVER, {"shard": -1, "state": "rewound", "step": before, "loaded": run.step})
        run.send_event("rewound", {"step": before, "to": run.step, "samples": rolled_back})

    # -- evaluation ---------------------------------------------------------------------------------

    def _score(self, round_: Round, rest: Ranges) -> Flow[dict[int, dict[str, float]]]:
        """Evaluate the model on a round's splits; `rest`: sample ranges of the round still to be trained."""
        run = self.run
        run.save_standstill(EVALUATE, rest)
        run.untrained = rest
        if run.home == "replicas":
            yield from self._admit_successors()
        scores: dict[int, dict[str, float]] = {}
        for split in round_.evaluate:
            scores[split] = yield from self._evaluate(split)
        return scores

    def _evaluate(self, split: int) -> Flow[dict[str, float]]:
        """Compute the metrics of the current parameters on a split."""
        run = self.run
        samples, most = run.dataset.splits[split].rows, run.cfg.train.max_eval_samples
        samples = samples if most is None else min(samples, most)
        batch = run.cfg.train.eval_batch
        yield from self._begin(False, split, 0, samples, batch)
        run.evaluation = evaluation = Evaluation(samples, batch)
        run.serve_evaluation()
        yield WaitCondition(lambda: evaluation.missing == 0)
        run.evaluation = None
        rows, user = run.dataset.splits[split].slice(0, samples), run.dataset.user_field
        return evaluation.metrics(rows.labels, None if user is None else rows.ids[:, user])

    def _report_scores(self, round_: Round, scores: dict[int, dict[str, float]], label: str) -> dict[str, Any]:
        """Record and report an evaluation, under a label. Returns the summary of the round so far."""
        run = self.run
        names = {split: run.dataset.splits[split].name for split in round_.evaluate}
        summary = run.record.evaluated({names[split]: scores[split] for split in names}, names[round_.judged_by])
        fields = {"phases": list(run.record.phases), "samples_finished": run.record.ledger.finished}
        fields["time_shares"] = run.record.statistics.times.take_shares()
        run.send_event("round", {**summary, **fields, "day": label})
        return summary

    # -- the end ------------------------------------------------------------------------------------

    def _result(self, best: dict[str, Any]) -> Flow[dict[str, Any]]:
        """Fields of result.json, except for those that only the launcher knows."""
        run, core, resumed = self.run, self.core, self.core.checkpoints.resumed
        inspected = yield from core.requests.inspect("server", "worker")
        refused = sum((Counter(node.refused) for node in inspected.values()), Counter(run.hub.refused))
        nodes = [run.hub.traffic.counters(), *(node.counters for node in inspected.values())]
        summary = run.record.result(best, inspected)
        rolled_back = sum(failed.samples_rolled_back for failed in run.failures.failures)
        result = {
            **summary,
            "samples": {**summary["samples"], "rolled_back": rolled_back},
            "mode": run.record.modes,
            **core.replicas.result(),
            **({} if run.auto is None else {"auto": run.auto.summary()}),
            "best_possible_auc": run.dataset.best_auc.get(best["evaluated_on"]),
            "global_step": run.step,
            "refused_frames": sum(refused.values()),
            "refused": dict(refused.most_common()),
            "wire": traffic_summary(nodes, run.step - (0 if resumed is None else resumed.step)),
            "event_log_bytes": run.log.bytes,
            **core.checkpoints.summary(),
            **core.workers.summary(inspected),
        }
        self.amend_result(result)
        return result

    def _stop_nodes(self) -> Flow[None]:
        """Stop the workers, and once they are gone the servers."""
        run = self.run
        run.stopped = True
        run.members.send_to_all("worker", Stop())
        self.core.workers.dismiss()
        channels, limit = run.members.channels, run.hub.now() + GOODBYE_SECONDS
        yield WaitCondition(lambda: all(role != "worker" for role, _ in channels), limit)
        run.members.send_to_all("server", Stop())
