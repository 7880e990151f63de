"""What a soak does to its trainings: each gets a mode and a fault plan, drawn from the seed and its number. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

SERVED = ("async", "gba", "bsp", "hop_bs", "hop_bw", "sync")
IN_STEP = ("sync", "gba", "bsp", "hop_bw")  # modes with a global step of one batch a worker
REPLICAS = ("shadow_easgd", "shadow_ma", "shadow_bmuf", "fr_easgd", "fr_ma", "fr_bmuf", "local_sgd")
ROWS, BATCH = 300_000, 128  # samples that a training reads, and of a local batch
PATIENCE = 3.0  # seconds after which who says nothing counts as dead; short, so that a run sees it


@dataclass(frozen=True)
class Training:
    """One: `strikes` says in words what its plan does; so many of them come at a step, and `must` be done."""

    number: int
    mode: str
    overrides: tuple[str, ...]
    strikes: tuple[str, ...]
    must: int


def draw(seed: int, number: int) -> Training:
    """The `number`-th of a soak. Modes take turns; two of three are those that have no replicas."""
    rng = random.Random(f"{seed}:{number}")
    served = number % 3 != 2
    mode = SERVED[(number - number // 3) % len(SERVED)] if served else REPLICAS[number // 3 % len(REPLICAS)]
    workers, servers = rng.choice((3, 4)), rng.choice((1, 2, 3))
    plans = _plans(rng, ROWS // (workers * BATCH if mode in IN_STEP else BATCH))
    transport = rng.choice(("shm", "tcp"))
    overrides = (
        "experiment=smoke", f"mode={mode}", f"seed={seed + number}", "data.days=2", f"data.rows_per_day={ROWS}",
        f"cluster.workers={workers}", f"cluster.servers={servers}", f"cluster.transport={transport}",
        f"train.global_batch={BATCH * workers}", f"mode.local_batch={BATCH}",
        "model.batch_norm=true", "model.dropout=0.1",
        "train.max_eval_samples=8192", f"cluster.hang_seconds={PATIENCE}", "collective=shm",
        "checkpoint=cpr", "checkpoint.interval_seconds=2",
        f"faults.plans=[{', '.join(plans.values())}]",
    )  # fmt: skip
    must = sum("step:" in plan for plan in plans.values())
    return Training(number, mode, overrides, tuple(plans), must)


def _plans(rng: random.Random, steps: int) -> dict[str, str]:
    """Fault plans by what they do. Between a strike at a server and one at the coordinator are steps, and no step is
    made before what was struck is back."""
    early, late = (int(steps * (low + 0.2 * rng.random())) for low in (0.1, 0.6))
    first, second = rng.sample((early, late), 2)
    all_kinds = {
        "worker killed again and again": "{kind: kill, workers: random, mtbf: 1.5, times: 3}",
        "worker stopped": f"{{kind: hang, workers: random, step: {early}, seconds: 6}}",
        "messages lost, late, doubled": "{kind: messages, workers: all, drop: 0.01, duplicate: 0.01, reorder: 0.01}",
        "server killed": f"{{kind: kill, servers: random, step: {first}}}",
        "coordinator killed": f"{{kind: kill, coordinator: true, step: {second}}}",
    }
    chosen = sorted(rng.sample(list(all_kinds), rng.choice((1, 2, 2, 3))))
    return {name: all_kinds[name] for name in chosen}
