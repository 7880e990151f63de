"""Drives a policy as a cluster would, in an order that the caller or a seed chooses, and keeps what happened.

Workers take, announce (also twice, or too late), die and join. What must hold after every single decision is
asserted here, so that any test that drives a policy checks it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from gbactl.policies.policy import Decision, Drop, Grant, Phase, Policy, PolicyOptions, Step, make

STRANGER = 10_000


def phase(
    samples: int, local: int = 4, gradients: int = 4, first: int = 0, workers: int = 3, ahead: bool = False
) -> Phase:
    return Phase(samples, local, local * gradients, first, tuple(range(workers)), prefetch="data" if ahead else "none")


@dataclass
class Driver:
    """Workers around one policy, and everything that was handed out, decided and refused."""

    policy: Policy
    rng: random.Random = field(default_factory=random.Random)
    grants: list[tuple[int, Grant]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    drops: list[Drop] = field(default_factory=list)
    flying: list[tuple[int, int]] = field(default_factory=list)
    past: list[tuple[int, int]] = field(default_factory=list)
    reissued: int = 0
    deaths: int = 0

    def __post_init__(self) -> None:
        self.alive = list(self.policy.phase.workers)
        self.dead: list[int] = []
        self.settled: set[int] = set()
        self.refused_at: dict[int, int] = {}
        self._first_step = self.policy.step

    def take(self, worker: int) -> Grant | None:
        """One worker asks; None where it has to wait."""
        grant = self.policy.take(worker)
        if grant is None:
            self.refused_at[worker] = self.policy.openings
        else:
            assert self.refused_at.get(worker, -1) < self.policy.openings, "granted without an opening"
            self.grants.append((worker, grant))
            if grant.samples:
                assert grant.batch not in self.settled, "a settled batch is handed out again"
                self.flying.append((worker, grant.batch))
        return grant

    def announce(self, worker: int, batch: int) -> list[Decision]:
        """A gradient that is on its way arrives."""
        self.flying.remove((worker, batch))
        self.past.append((worker, batch))
        return self._note(self.policy.announce(worker, batch))

    def kill(self, worker: int) -> list[Decision]:
        """A worker dies; what it had sent off may still arrive, and counts for nothing."""
        self.alive.remove(worker)
        self.dead.append(worker)
        self.deaths += 1
        held = sorted(batch for owner, batch in self.flying if owner == worker)
        assert self.policy.lost_worker(worker) == held
        self.reissued += len(held)
        self.past += [pair for pair in self.flying if pair[0] == worker]
        self.flying = [pair for pair in self.flying if pair[0] != worker]
        assert self.policy.take(worker) is None
        return self._note(self.policy.poll())

    def join(self, worker: int) -> list[Decision]:
        """A worker comes, or comes back."""
        if worker in self.dead:
            self.dead.remove(worker)
        self.alive.append(worker)
        self.policy.joined_worker(worker)
        return self._note(self.policy.poll())

    def _note(self, decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            if isinstance(decision, Drop):
                self.drops.append(decision)
                self._settle([decision.batch])
            else:
                assert decision.step == self._first_step + len(self.steps), "steps are numbered without a gap"
                self.steps.append(decision)
                self._settle([member.batch for member in decision.members])
        assert self.policy.step == self._first_step + len(self.steps)
        return decisions

    def _settle(self, batches: list[int]) -> None:
        assert len(set(batches)) == len(batches) and not self.settled.intersection(batches), "applied twice"
        self.settled.update(batches)

    # -- by chance ----------------------------------------------------------------------------------

    def some_take(self) -> None:
        if self.alive:
            self.take(self.rng.choice(self.alive))

    def some_announce(self) -> None:
        if self.flying:
            self.announce(*self.rng.choice(self.flying))

    def some_repeat(self) -> None:
        """A gradient that was announced before, of a dead worker, or by one that does not hold the batch."""
        pairs = [(STRANGER, self.rng.randrange(max(1, self.policy.phase.batches)))]
        if self.past:
            pairs.append(self.rng.choice(self.past))
        for pair in pairs:
            if pair not in self.flying:
                assert self.policy.announce(*pair) == []

    def some_kill(self) -> None:
        if len(self.alive) > 1:
            self.kill(self.rng.choice(self.alive))

    def some_join(self) -> None:
        newest = max([*self.policy.phase.workers, *self.alive, *self.dead]) + 1
        self.join(self.rng.choice([*self.dead, newest]))

    def finish(self) -> None:
        """Go on to the end. Fails if nobody can take and nothing is on its way before the policy is idle."""
        while not self.policy.idle:
            took = [worker for worker in self.rng.sample(self.alive, len(self.alive)) if self.take(worker)]
            assert took or self.flying, "deadlock"
            for _ in range(self.rng.randint(1, len(self.flying))) if self.flying else ():
                self.some_announce()
        assert self.flying == []
        self._note(list(self.policy.finish()))


def run(name: str, part: Phase, options: PolicyOptions | None = None, seed: int = 0, *, deaths: bool = True) -> Driver:
    """A phase in a random order with duplicates, uneven workers and, if wanted, deaths and joiners."""
    rng = random.Random(seed)
    driver = Driver(make(name, part, options), rng)
    actions = [driver.some_take] * rng.randint(1, 6) + [driver.some_announce] * rng.randint(1, 6)
    actions.append(driver.some_repeat)
    for _ in range(rng.randint(0, 6 * part.batches)):
        rng.choice(actions)()
        if deaths and rng.random() < 0.05:
            rng.choice([driver.some_kill, driver.some_kill, driver.some_join])()
    driver.finish()
    return driver


def in_lock_step(name: str, part: Phase, options: PolicyOptions | None = None) -> list[Step]:
    """Every worker takes one batch, all announce in batch order, and so on."""
    driver = Driver(make(name, part, options))
    while not driver.policy.exhausted:
        taken = [(grant.batch, w) for w in part.workers if (grant := driver.take(w)) is not None and grant.samples]
        for batch, worker in sorted(taken):
            driver.announce(worker, batch)
    driver.finish()
    return driver.steps
