"""A rank of a test: sums seeded vectors for some rounds and prints a digest of every result, and the bytes it sent."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from contextlib import closing

import numpy as np
import torch

from gbactl.collective import connect
from gbactl.collective.base import Collective, OverlappedGradient, bucket_edges
from gbactl.errors import GbactlError
from gbactl.kernels import codec_of


def main() -> None:
    """Run a rank with the arguments rounds, length, buckets, die_at and item (bytes)."""
    torch.set_num_threads(1)
    rounds, length, buckets, die_at, item = map(int, sys.argv[1:])
    try:
        with closing(connect(item=item)) as collective:
            work(collective, rounds, length, buckets, die_at, item)
    except GbactlError as error:
        print(f"error {error}", flush=True)
        sys.exit(error.exit_code)


def work(collective: Collective, rounds: int, length: int, buckets: int, die_at: int, item: int) -> None:
    sizes = [length // buckets] * (buckets - 1)
    edges = bucket_edges([*sizes, length - sum(sizes)], buckets)
    flat = np.empty(length, np.float32)
    gradient = OverlappedGradient(collective, "dense", edges, flat, [], codec_of("fp16" if item == 2 else "fp32"))
    digest, sent = hashlib.sha256(), []
    collective.on_bytes_sent = lambda nbytes, shared: sent.append(nbytes)
    for step in range(rounds):
        if step == die_at and collective.rank == collective.size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        rng = np.random.default_rng([step, collective.rank])
        flat[:] = rng.standard_normal(length) * 10.0 ** rng.integers(-3, 4, length)
        gradient.wait()
        digest.update(flat.tobytes())
    print(f"digest {digest.hexdigest()} sent={sum(sent)} grpc={'grpc' in sys.modules}", flush=True)
