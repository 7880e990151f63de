"""Random trainings of a soak test: mode, checkpoint, all-reduce and fault plan, drawn from the seed and a number.

Pure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gbactl.policies.policy import names, policy_class

SERVED, REPLICAS = names(lambda mode: mode.home != "replicas"), names(lambda mode: mode.home == "replicas")
VARIANTS = ("full", "cpr", "cpr_scar", "cpr_mfu", "cpr_ssu")
RINGS = ("shm", "gloo", "horovod")
ROWS, BATCH = 300_000, 128  # samples that a training reads, samples of a local batch
PATIENCE = 3.0  # seconds of silence after which a process counts as dead; short, so that it happens in a run
STOPS = (1.5, 6.0)  # seconds of a SIGSTOP: shorter and longer than PATIENCE
RELAUNCHED = 0.2  # share of the trainings whose launcher is killed
PLACES = (0.1, 0.3, 0.5, 0.7)  # as shares of the steps, where faults hit servers and the coordinator; up to 0.1 later
CORE = (("server", "servers: random"), ("coordinator", "coordinator: true"))


@dataclass(frozen=True)
class Strike:
    """Fault of a plan, with its description in words.

    `must`: (kind, first letter of the process), if the fault is bound to a `step` and must therefore be injected.
    """

    told: str
    plan: str
    must: tuple[str, str] | None = None
    step: int = 0


@dataclass(frozen=True)
class Training:
    """One training with its fault plan.

    `again`: faults after a resume, where its launcher is killed; the kill comes `after` seconds from the first
    checkpoint.
    """

    number: int
    mode: str
    replayed: bool  # whether replay must succeed, unless a server or the launcher is lost
    overrides: tuple[str, ...]
    plan: tuple[Strike, ...]
    again: tuple[Strike, ...]
    after: float

    @property
    def strikes(self) -> tuple[str, ...]:
        """Descriptions of the faults."""
        return (*(strike.told for strike in self.plan), *(["launcher killed"] if self.again else []))


def draw(seed: int, number: int, rings: Sequence[str] = RINGS) -> Training:
    """Draw the `number`-th training of a soak test.

    Modes alternate; two of three are modes without replicas. `rings`: the all-reduces installed; nothing else depends
    on them.
    """
    rng = random.Random(f"{seed}:{number}")
    served = number % 3 != 2
    mode = SERVED[(number - number // 3) % len(SERVED)] if served else REPLICAS[number // 3 % len(REPLICAS)]
    workers, servers = rng.choice((3, 4)), rng.choice((1, 2, 3))
    transport, variant = rng.choice(("shm", "tcp")), rng.choice(VARIANTS)
    steps = ROWS // (workers * BATCH if policy_class(mode).global_step else BATCH)
    plan = _plan(rng, workers, steps)
    relaunched, after = rng.random() < RELAUNCHED, 2.5 * rng.random()
    ring = rng.choice(rings)
    overrides = (
        "experiment=smoke", f"mode={mode}", f"seed={seed + number}", "data.days=2", f"data.rows_per_day={ROWS}",
        f"cluster.workers={workers}", f"cluster.servers={servers}", f"cluster.transport={transport}",
        f"train.global_batch={BATCH * workers}", f"mode.local_batch={BATCH}",
        "model.batch_norm=true", "model.dropout=0.1",
        "train.max_eval_samples=8192", f"cluster.hang_seconds={PATIENCE}", f"collective={ring}",
        f"checkpoint={variant}", "checkpoint.interval_seconds=2", planned(plan),
    )  # fmt: skip
    replayed = policy_class(mode).replayable and (not policy_class(mode).collective or ring == "shm")
    again = _again(steps) if relaunched else ()
    return Training(number, mode, replayed, overrides, plan, again, after)


def planned(strikes: Sequence[Strike]) -> str:
    """Override that configures these faults."""
    return f"faults.plans=[{', '.join(strike.plan for strike in strikes)}]"


def _plan(rng: random.Random, workers: int, steps: int) -> tuple[Strike, ...]:
    """Draw a fault plan with at least one fault."""
    found = [*_at_workers(rng, workers, steps), *_at_core(rng, steps)]
    return tuple(found or [_killing(workers)])


def _at_workers(rng: random.Random, workers: int, steps: int) -> list[Strike]:
    step = int(steps * (0.1 + 0.7 * rng.random()))
    stopped = f"{{kind: hang, workers: random, step: {step}, seconds: {rng.choice(STOPS)}}}"
    messages = "{kind: messages, workers: all, drop: 0.01, duplicate: 0.01, reorder: 0.01}"
    kinds = [
        _killing(workers), Strike("worker stopped", stopped, ("hang", "W")),
        Strike("messages lost, late, doubled", messages),
    ]  # fmt: skip
    return rng.sample(kinds, rng.choice((0, 1, 1, 2)))


def _killing(workers: int) -> Strike:
    """Repeated kill of a worker, chosen so that a worker is left beside a stopped one: `sync` and replicas need one."""
    plan = f"{{kind: kill, workers: {workers - 2}, mtbf: 1.5, times: 3}}"
    return Strike("worker killed again and again", plan)


def _at_core(rng: random.Random, steps: int) -> list[Strike]:
    """Draw faults of servers and of the coordinator, at least a tenth of the steps apart.

    A coordinator that dies before a server has recovered ends the run with a sentence, and until the recovery hardly
    any step is made.
    """
    found = []
    for place in sorted(rng.sample(PLACES, rng.choice((0, 1, 1, 2, 3)))):
        (who, named), kind = rng.choice(CORE), rng.choice(("kill", "hang"))
        step = int(steps * (place + 0.1 * rng.random()))
        seconds = f", seconds: {rng.choice(STOPS)}" if kind == "hang" else ""
        told = f"{who} {'killed' if kind == 'kill' else 'stopped'}"
        found.append(Strike(told, f"{{kind: {kind}, {named}, step: {step}{seconds}}}", (kind, who[0].upper())))
    return found


def _again(steps: int) -> tuple[Strike, ...]:
    """Faults of a resumed part: one near the end, as those due before the step where it begins are left out."""
    step = int(0.9 * steps)
    return (Strike("worker killed", f"{{kind: kill, workers: random, step: {step}}}", ("kill", "W"), step),)
