"""Server failure times of study 1: one failure in each half of a job, at a time drawn from the seed. Costs nothing.

.venv/bin/python experiments/cpr/failure_times.py      # prints the lines that sweep.yaml has
"""

from __future__ import annotations

import random

JOB_SECONDS = 201600


def times(seed: int) -> list[int]:
    """Draw the failure times, in seconds since training began."""
    draw = random.Random(seed)
    return [round(draw.uniform(0, JOB_SECONDS / 2)), round(draw.uniform(JOB_SECONDS / 2, JOB_SECONDS))]


def plan(seed: int) -> str:
    """Fault-plan override of a job."""
    kills = (f"{{kind: kill, servers: random, time: {at}}}" for at in times(seed))
    return f"faults.plans=[{', '.join(kills)}]"


if __name__ == "__main__":
    for number in range(11, 21):
        print(f'- [seed={number}, "{plan(number)}"]')
