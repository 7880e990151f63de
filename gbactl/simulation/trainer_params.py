"""Compute backend with a replica per trainer, and all dense placements of a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gbactl.kernels.base import Floats
from gbactl.simulation.compute import SharedCompute
from gbactl.simulation.dense_params import Payloads, ReplicatedDense, ServedDense, computed, push
from gbactl.simulation.replica_rounds import RingRounds
from gbactl.simulation.trainer import VirtualTrainer
from gbactl.simulation.worker import DensePlacement, VirtualWorker
from gbactl.store.dense import DenseBlock
from gbactl.worker.core import BatchInProgress, weigh
from gbactl.worker.dense_placement import NOT_HERE


class TrainerDense:
    """Placement with a replica per worker: gradients are computed at a batch's start and applied at its end."""

    def __init__(self, compute: SharedCompute, make_block: Callable[[], DenseBlock], rounds: RingRounds) -> None:
        self.compute, self.flat = compute, compute.flat
        self._make_block, self._rounds = make_block, rounds
        self._none = [0] * compute.servers
        self._trainers: dict[int, VirtualTrainer] = {}
        self._computed: dict[tuple[int, int], tuple[Payloads, Floats]] = {}

    def trainer(self, worker: VirtualWorker) -> VirtualTrainer:
        """See Placements.trainer."""
        known = self._trainers.get(worker.index)
        if known is None or known.worker is not worker:  # a successor has a replica of its own
            made = VirtualTrainer(worker, self._make_block(), self.compute.held, self._rounds)
            self._trainers[worker.index] = made
        return self._trainers[worker.index]

    def left(self, index: int) -> None:
        """Exclude a failed worker from further means."""
        self._rounds.left(index)

    def begin(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """See DensePlacementState.begin."""
        value = self.trainer(worker).replica.value
        if self.flat.buffers:
            self.flat.load(value)
        else:
            self.flat.use(value)
        payloads, gradient = computed(self.compute, item, self._none), np.empty(self.flat.size, np.float32)
        self.flat.gradient_into(gradient)
        weigh(gradient, item.weight)
        self._computed[worker.index, item.grant.batch] = (payloads, gradient)

    def finish(self, worker: VirtualWorker, item: BatchInProgress) -> None:
        """Push the rows; then take the local step, which takes its time."""
        grant = item.grant
        payloads, gradient = self._computed.pop((worker.index, grant.batch))
        push(worker, item, payloads)
        seconds = worker.shared.cost.replica_step(self.flat.size)
        worker.host.cores.run(seconds, self.trainer(worker).step, gradient, grant.divisor, grant.lr_scale)

    def resume(self, worker: VirtualWorker) -> None:
        """See DensePlacementState.resume: no worker waits for others."""

    def checksum(self) -> tuple[str, str]:
        """Return empty checksums: replicas differ, and the servers' parameters are evaluated."""
        return "", ""

    def packed(self, after: int) -> tuple[int, int, Floats] | None:
        """See ComputeThread.packed in trainer/replica_placement.py."""
        return NOT_HERE

    def leave(self) -> None:
        """See DensePlacementState.leave."""
        self.compute.come_home()


class Placements:
    """Dense placements that a run uses, by home, and the current one."""

    def __init__(
        self, served: ServedDense, replicated: ReplicatedDense | None, trainers: TrainerDense, first: str
    ) -> None:
        self._replicated, self._trainers, self._home = replicated, trainers, first
        self._placements: dict[str, DensePlacement | None]
        self._placements = {"servers": served, "workers": replicated, "replicas": trainers}
        self._due = False

    @property
    def now(self) -> DensePlacement:
        """Current placement."""
        placement = self._placements[self._home]
        assert placement is not None
        return placement

    def trainer(self, worker: VirtualWorker) -> VirtualTrainer:
        """See Placements.trainer."""
        return self._trainers.trainer(worker)

    def left(self, index: int) -> None:
        """Remove a failed worker from all placements."""
        self._trainers.left(index)
        if self._replicated is not None:
            self._replicated.left(index)

    def move(self, home: str, index: int) -> list[tuple[int, Floats]]:
        """See Placements.move."""
        replicas = self._replicated
        if home == self._home:
            if replicas is not None and home == "workers":
                replicas.members.add(index)
            return []
        self.now.leave()
        before, self._home, self._due = self._home, home, home == "workers"
        if replicas is not None:
            replicas.members = {index}
        if (before, home) != ("workers", "servers"):
            return []
        assert replicas is not None
        return [(replicas.block.step, replicas.block.packed(*cut)) for cut in replicas.compute.held.values()]

    def take_over(self, states: list[tuple[int, Floats]]) -> None:
        """See Placements.take_over; all workers get the same state, of which there is one copy."""
        replicas = self._replicated
        assert replicas is not None
        if not self._due:
            return
        self._due = False
        for (step, values), cut in zip(states, replicas.compute.held.values(), strict=True):
            replicas.block.unpack(*cut, values, step)
        replicas.flat.load(replicas.block.value.copy())
