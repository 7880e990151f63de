"""A run in one thread whose order of events is drawn from a seed: shards that lag, deaths, joins, re-issues.

It writes a log as a coordinator does, from real policies and shards, with more disorder than a cluster shows:
rows and dense slices of a gradient are read apart, each shard at its own version.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gbactl.config import RunConfig
from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import (
    AnnounceRecord,
    DropRecord,
    EventLog,
    FinishRecord,
    GrantRecord,
    JoinedRecord,
    LeftRecord,
    OrderRecord,
)
from gbactl.coordinator.training_phase import ApplyStep, step_order
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.nodes.role_setup import header
from gbactl.policies.policy import Decision, Drop, Grant, Phase, Policy, make
from gbactl.replay.gradient_recomputation import GradientRecomputer, index_of
from gbactl.simulation.gradient_compute import answer_of
from gbactl.store.gradient_slice import StepOrder
from gbactl.store.optimizer_settings import factor
from gbactl.wire.messages import BeginPhase
from gbactl.worker.worker_core import BatchInProgress


@dataclass
class Lease:
    """A batch at a worker: what it has pulled."""

    worker: int
    grant: Grant
    pulled: BatchInProgress
    rows: dict[int, int] = field(default_factory=dict)
    dense: dict[int, int] = field(default_factory=dict)


class HandMade:
    """`write()` makes run_dir/events.log; `reissued` counts batches handed out twice."""

    def __init__(self, cfg: RunConfig, run_dir: Path, seed: int, deaths: int = 2) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.cfg, self.random, self.deaths = cfg, random.Random(seed), deaths
        self.dataset = open_dataset(prepare(cfg.data))
        self.gradients = GradientRecomputer(cfg, self.dataset)
        self.shards = self.gradients.shards()
        self.queues: list[deque[StepOrder]] = [deque() for _ in self.shards]
        self.log = EventLog(run_dir / "events.log", header(cfg, self.dataset))
        self.step, self.reissued, self.done, self.gone = 0, 0, 0, set[int]()
        self.leases: dict[int, Lease] = {}

    def write(self) -> None:
        """The whole run: two epochs."""
        for epoch in range(self.cfg.train.epochs):
            self._phase(epoch)
        self.log.close(step=self.step)

    def checksums(self) -> list[str]:
        """Of each shard."""
        return [shard.checksum() for shard in self.shards]

    def _phase(self, epoch: int) -> None:
        cfg, samples = self.cfg, self.dataset.splits[0].rows
        begin = BeginPhase(
            number=epoch + 1, training=True, mode=cfg.mode.name, split=0, epoch=epoch, samples=samples,
            local_batch=cfg.local_batch, first_step=self.step, served_dense=True,
            prefetch_rows=cfg.mode.prefetch == "rows",
        )  # fmt: skip
        self.log.info(event_log.PHASE, begin._asdict())
        for shard in self.shards:
            shard.begin_phase()
        self.gradients.begin(begin)
        live = tuple(sorted(set(range(cfg.cluster.workers)) - self.gone))
        shape = Phase(samples, cfg.local_batch, cfg.train.global_batch, self.step, live, prefetch=cfg.mode.prefetch)
        policy = make(cfg.mode.name, shape, cfg.policy_options())
        while not policy.idle:
            self._event(policy)
        self.log.write(FinishRecord())
        before = policy.ledger.finished
        self._carry_out(policy, policy.finish(), before, -1)
        policy.ledger.check()
        self.done += policy.ledger.finished
        while any(self.queues):
            self._catch_up(policy)
        self.step = policy.step
        for number, checksum in enumerate(self.checksums()):
            self.log.info(event_log.CHECKSUM, {"shard": number, "step": self.step - 1, "whole": checksum})

    def _event(self, policy: Policy) -> None:
        event = self.random.choices(
            (self._take, self._pull, self._catch_up, self._push, self._die, self._join), (4, 20, 6, 4, 0.3, 0.3)
        )[0]
        event(policy)

    def _take(self, policy: Policy) -> None:
        worker = self.random.choice(sorted(policy.live))
        held = sum(lease.worker == worker for lease in self.leases.values())
        grant = policy.take(worker) if held < 1 + self.cfg.mode.prefetched_batches else None
        if grant is not None:
            self.log.write(GrantRecord(worker, grant.batch, grant.token))
            self.leases[grant.batch] = Lease(worker, grant, self.gradients.prepare(grant.batch))

    def _pull(self, _: Policy) -> None:
        """One shard answers one worker: the rows, or the dense slice."""
        shard = self.random.randrange(len(self.shards))
        state = self.shards[shard]
        waiting = [x for x in self.leases.values() if shard not in x.dense and state.version >= x.grant.after]
        if not waiting:
            return
        lease = self.random.choice(waiting)
        if shard not in lease.rows:
            index = index_of(lease.pulled, shard)
            rows = np.empty((len(index), self.gradients.width), np.float32)
            state.pull_rows(index, rows)
            state.note_pull(lease.grant.batch, index)
            answer_of(lease.pulled, shard).rows, lease.rows[shard] = rows, state.version
        else:
            values = np.empty_like(state.dense_state()["value"])
            state.pull_dense(values)
            answer_of(lease.pulled, shard).dense, lease.dense[shard] = values, state.version

    def _catch_up(self, _: Policy) -> None:
        """One shard applies its next order."""
        number = self.random.randrange(len(self.shards))
        if not self.queues[number]:
            return
        order, shard = self.queues[number].popleft(), self.shards[number]
        touched = shard.touched_rows(order)
        shard.apply(order)
        if (order.step + 1) % self.cfg.train.checksum_every == 0:
            fields = {"shard": number, "step": order.step, "digest": shard.step_digest(touched)}
            self.log.info(event_log.CHECKSUM, fields)

    def _push(self, policy: Policy) -> None:
        whole = [lease for lease in self.leases.values() if len(lease.dense) == len(self.shards)]
        if not whole:
            return
        lease = self.random.choice(whole)
        batch = lease.grant.batch
        del self.leases[batch]
        for shard, part in zip(self.shards, self.gradients.compute(lease.pulled), strict=True):
            assert shard.stage(batch, part)
        shards = range(len(self.shards))
        versions = tuple(lease.rows[s] for s in shards), tuple(lease.dense[s] for s in shards)
        self.log.write(AnnounceRecord(lease.worker, batch, *versions))
        before = policy.ledger.finished
        self._carry_out(policy, policy.announce(lease.worker, batch), before, lease.worker)

    def _die(self, policy: Policy) -> None:
        if not self.deaths or len(policy.live) < 3:
            return
        self.deaths -= 1
        worker = self.random.choice(sorted(policy.live))
        self.gone.add(worker)
        self.log.write(LeftRecord(worker))
        before = policy.ledger.finished
        for batch in policy.lost_worker(worker):
            self.reissued += 1
            del self.leases[batch]
            for shard in self.shards:
                shard.drop(batch)
        self._carry_out(policy, policy.poll(), before, -1)

    def _join(self, policy: Policy) -> None:
        if not self.gone:
            return
        worker = self.gone.pop()
        self.log.write(JoinedRecord(worker))
        before = policy.ledger.finished
        policy.joined_worker(worker)
        self._carry_out(policy, policy.poll(), before, -1)

    def _carry_out(self, policy: Policy, decisions: list[Decision], finished: int, worker: int) -> None:
        for decision in decisions:
            if isinstance(decision, Drop):
                self.log.write(DropRecord(worker, decision.batch))
                for shard in self.shards:
                    shard.drop(decision.batch)
                finished += decision.samples
                continue
            scale = factor(self.cfg.optim.schedule, (self.done + finished) / self.cfg.train.global_batch)
            order = step_order(ApplyStep(decision, scale), self.cfg.local_batch)
            self.log.write(OrderRecord(order.step, order.divisor, order.weight_sum, scale, order.members))
            for queue in self.queues:
                queue.append(order)
            finished += sum(member.samples for member in decision.members)
