"""Drives a policy as a cluster would, in an order that the caller chooses, and keeps what happened."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gbactl.policies import GbaOptions, Grant, Phase, Policy, Step, make


def phase(samples: int, local: int = 4, gradients: int = 4, first: int = 0, workers: int = 3) -> Phase:
    return Phase(samples, local, local * gradients, first, tuple(range(workers)))


@dataclass
class Cluster:
    """Workers around one policy. A dead worker stays dead."""

    policy: Policy
    rng: random.Random
    alive: list[int]
    flying: list[tuple[int, int]] = field(default_factory=list)
    said: list[tuple[int, int]] = field(default_factory=list)
    grants: list[Grant] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reissued: int = 0

    def take(self) -> bool:
        worker = self.rng.choice(self.alive)
        grant = self.policy.take(worker)
        if grant is None:
            return False
        self.grants.append(grant)
        if grant.samples:
            self.flying.append((worker, grant.batch))
        return True

    def announce(self) -> None:
        if self.flying:
            said = self.flying.pop(self.rng.randrange(len(self.flying)))
            self.said.append(said)
            self.steps += self.policy.announce(*said)

    def repeat(self) -> None:
        """A gradient that was announced before, or by a worker that does not hold the batch."""
        if self.said:
            worker, batch = self.rng.choice(self.said)
            assert self.policy.announce(worker, batch) == []
        assert self.policy.announce(99, 0) == []

    def kill(self) -> None:
        if len(self.alive) > 1:
            dead = self.alive.pop(self.rng.randrange(len(self.alive)))
            held = sorted(batch for worker, batch in self.flying if worker == dead)
            assert self.policy.lost_worker(dead) == held
            self.reissued += len(held)
            late = [pair for pair in self.flying if pair[0] == dead]
            self.flying = [pair for pair in self.flying if pair[0] != dead]
            for pair in late:
                assert self.policy.announce(*pair) == []

    def finish(self) -> None:
        while not self.policy.idle:
            while self.take():
                pass
            self.announce()
        self.steps += self.policy.finish()


def run(
    name: str, part: Phase, options: GbaOptions | None = None, seed: int = 0, deaths: bool = True
) -> Cluster:
    """A phase in a random order with duplicates, uneven workers and (not in sync) deaths."""
    rng = random.Random(seed)
    cluster = Cluster(make(name, part, options), rng, list(part.workers))
    actions = [cluster.take] * rng.randint(1, 6) + [cluster.announce] * rng.randint(1, 6) + [cluster.repeat]
    for _ in range(rng.randint(0, 6 * part.batches)):
        rng.choice(actions)()
        if deaths and rng.random() < 0.02:
            cluster.kill()
    cluster.finish()
    return cluster


def in_lock_step(name: str, part: Phase, options: GbaOptions | None = None) -> list[Step]:
    """Every worker takes one batch, all announce in batch order, and so on."""
    policy = make(name, part, options)
    steps: list[Step] = []
    while not policy.exhausted:
        round_of = [(w, g) for w in part.workers if (g := policy.take(w)) is not None]
        for worker, grant in sorted(round_of, key=lambda pair: pair[1].batch):
            if grant.samples:
                steps += policy.announce(worker, grant.batch)
    return steps + policy.finish()
