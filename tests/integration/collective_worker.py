"""A rank of a test: sums seeded vectors for some rounds and prints a digest of every result."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from contextlib import closing

import numpy as np

from gbactl.collective import Buckets, Collective, connect


def main(rounds: int, length: int, buckets: int, die_at: int) -> None:
    with closing(connect()) as collective:
        work(collective, rounds, length, buckets, die_at)


def work(collective: Collective, rounds: int, length: int, buckets: int, die_at: int) -> None:
    plan = Buckets.even("dense", length, buckets)
    digest = hashlib.sha256()
    for step in range(rounds):
        if step == die_at and collective.rank == collective.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rng = np.random.default_rng([step, collective.rank])
        flat = (rng.standard_normal(length) * 10.0 ** rng.integers(-3, 4, length)).astype(np.float32)
        plan.all_reduce_sum(collective, flat)
        digest.update(flat.tobytes())
    print(f"digest {digest.hexdigest()} grpc={'grpc' in sys.modules}", flush=True)


if __name__ == "__main__":
    from gbactl.errors import GbactlError

    try:
        main(*map(int, sys.argv[1:]))
    except GbactlError as error:
        print(f"error {error}", flush=True)
        sys.exit(error.exit_code)
