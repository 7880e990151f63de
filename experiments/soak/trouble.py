"""What a soak does to its trainings: each gets a mode, a checkpoint, a ring and a fault plan, drawn from the seed and
its number. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from gbactl.policies.base import names, policy_class

SERVED, REPLICAS = names(lambda mode: mode.home != "replicas"), names(lambda mode: mode.home == "replicas")
VARIANTS = ("full", "cpr", "cpr_scar", "cpr_mfu", "cpr_ssu")
RINGS = ("shm", "gloo", "horovod")
ROWS, BATCH = 300_000, 128  # samples that a training reads, and of a local batch
PATIENCE = 3.0  # seconds after which who says nothing counts as dead; short, so that a run sees it
STOPS = (1.5, 6.0)  # seconds of a SIGSTOP: shorter and longer than that
RELAUNCHED = 0.2  # share of the trainings whose launcher is killed
PLACES = (0.1, 0.3, 0.5, 0.7)  # of the steps, where servers and the coordinator are struck; up to 0.1 later
CORE = (("server", "servers: random"), ("coordinator", "coordinator: true"))


@dataclass(frozen=True)
class Strike:
    """What a `plan` of the configuration does, in words; `must`: (kind, first letter of who), if it is bound to a step
    and so has to be done."""

    told: str
    plan: str
    must: tuple[str, str] | None = None


@dataclass(frozen=True)
class Training:
    """One: its `plan`, and, where its launcher is killed, `again`: what befalls the part that goes on, which begins
    `after` seconds from the first checkpoint."""

    number: int
    mode: str
    replayed: bool  # unless a server is lost, or the launcher
    overrides: tuple[str, ...]
    plan: tuple[Strike, ...]
    again: tuple[Strike, ...]
    after: float

    @property
    def strikes(self) -> tuple[str, ...]:
        """In words."""
        return (*(strike.told for strike in self.plan), *(["launcher killed"] if self.again else []))


def draw(seed: int, number: int, rings: Sequence[str] = RINGS) -> Training:
    """The `number`-th of a soak. Modes take turns; two of three are those that have no replicas. `rings`: the
    all-reduces that there are; nothing else depends on them."""
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
    """As an override."""
    return f"faults.plans=[{', '.join(strike.plan for strike in strikes)}]"


def _plan(rng: random.Random, workers: int, steps: int) -> tuple[Strike, ...]:
    """At least one strike."""
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
    """One of so many that with a stopped one beside it a worker is left: `sync` and replicas need one."""
    plan = f"{{kind: kill, workers: {workers - 2}, mtbf: 1.5, times: 3}}"
    return Strike("worker killed again and again", plan)


def _at_core(rng: random.Random, steps: int) -> list[Strike]:
    """Strikes at servers and at the coordinator, a tenth of the steps or more between two of them: a coordinator that
    dies before a server is back ends the run with a sentence, and until then next to no step is made."""
    found = []
    for place in sorted(rng.sample(PLACES, rng.choice((0, 1, 1, 2, 3)))):
        (who, named), kind = rng.choice(CORE), rng.choice(("kill", "hang"))
        step = int(steps * (place + 0.1 * rng.random()))
        seconds = f", seconds: {rng.choice(STOPS)}" if kind == "hang" else ""
        told = f"{who} {'killed' if kind == 'kill' else 'stopped'}"
        found.append(Strike(told, f"{{kind: {kind}, {named}, step: {step}{seconds}}}", (kind, who[0].upper())))
    return found


def _again(steps: int) -> tuple[Strike, ...]:
    """Of a part that goes on: whatever is due before the step where it begins is due there, so there is one."""
    return (Strike("worker killed", f"{{kind: kill, workers: random, step: {int(0.9 * steps)}}}", ("kill", "W")),)
