"""Cost of a policy decision of each mode: microseconds for a take and an announcement, at 8 and at 400 workers.

    python experiments/performance/policy_cost.py

Workers arrive in a seeded random order, one in eight four times slower. A refused worker asks again after
every announcement, as in the coordinator. Refusals are not part of a decision's cost but shown beside it: refusals
a decision, and the cost of one. A policy waits for nothing, so its seconds are those of the CPU. The median of some
rounds; the target is 20 us a decision.
"""

from __future__ import annotations

import heapq
import random
import time
from dataclasses import dataclass
from statistics import median

from gbactl.policies.gba import GbaOptions
from gbactl.policies.hop_bs import HopBsOptions
from gbactl.policies.policy import Phase, Policy, PolicyOptions, make, names

TARGET_US = 20.0
ROUNDS, DECISIONS, BATCH = 5, 20_000, 128
OTHERS = {
    "gba row_staleness=row": ("gba", GbaOptions(row_staleness="row")),
    "hop_bs bound=inf": ("hop_bs", HopBsOptions(bound=float("inf"))),
}
MODES: dict[str, tuple[str, PolicyOptions | None]] = {
    **{name: (name, None) for name in names(lambda mode: mode.home != "replicas")}, **OTHERS,
}  # fmt: skip


@dataclass
class Spent:
    """Seconds inside the policy, including the clock's own cost."""

    granted: float = 0.0
    announced: float = 0.0
    refused: float = 0.0
    refusals: int = 0


def new_policy(mode: str, workers: int) -> Policy:
    """Make a policy for a phase of DECISIONS batches, M = workers."""
    name, options = MODES[mode]
    return make(name, Phase(DECISIONS * BATCH, BATCH, workers * BATCH, 0, tuple(range(workers))), options)


def drive(policy: Policy, workers: int, seed: int) -> Spent:
    """Run the whole phase through the policy."""
    rng, spent, clock = random.Random(seed), Spent(), time.thread_time
    speed = [4.0 if worker % 8 == 7 else 1.0 for worker in range(workers)]
    arrivals: list[tuple[float, int, int]] = []
    waiting, now = list(range(workers)), 0.0
    while True:
        refused = []
        for worker in waiting:
            begin = clock()
            grant = policy.take(worker)
            seconds = clock() - begin
            if grant is None:
                spent.refused += seconds
                spent.refusals += 1
                refused.append(worker)
                continue
            spent.granted += seconds
            if grant.samples:
                heapq.heappush(arrivals, (now + speed[worker] * rng.uniform(0.9, 1.1), worker, grant.batch))
        if not arrivals:
            return spent
        now, worker, batch = heapq.heappop(arrivals)
        begin = clock()
        policy.announce(worker, batch)
        spent.announced += clock() - begin
        waiting = [*refused, worker]


def clock_seconds() -> float:
    """Seconds that reading the clock twice adds to a measurement."""
    begin = time.thread_time()
    for _ in range(DECISIONS):
        time.thread_time()
    return (time.thread_time() - begin) / DECISIONS


def measure(mode: str, workers: int) -> tuple[float, float, float]:
    """Measure microseconds a decision, refusals a decision, microseconds a refusal."""
    clock = clock_seconds()
    rounds = [drive(new_policy(mode, workers), workers, seed) for seed in range(ROUNDS)]
    decision = median((spent.granted + spent.announced) / DECISIONS - 2 * clock for spent in rounds)
    refusal = median(spent.refused / max(1, spent.refusals) - clock for spent in rounds)
    refusals = median(spent.refusals / DECISIONS for spent in rounds)
    return 1e6 * decision, refusals, 1e6 * max(0.0, refusal) if refusals else 0.0


def main() -> None:
    """Print a line for each mode and number of workers."""
    print(f"{'':24}{'workers':>8}{'us a decision':>15}{'refusals':>10}{'us each':>9}   target {TARGET_US:.0f} us")
    for mode in MODES:
        for workers in (8, 400):
            decision, refusals, each = measure(mode, workers)
            verdict = "ok" if decision < TARGET_US else "MISSED"
            print(f"{mode:24}{workers:8}{decision:15.2f}{refusals:10.1f}{each:9.2f}   {verdict}", flush=True)


if __name__ == "__main__":
    main()
