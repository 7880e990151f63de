"""Reference of the benchmark: independent single-process trainings in parallel, without communication.

    python experiments/performance/peers/reference.py --processes 2 --seconds 6 data=synthetic ...

Same model and kernels as gbactl. Prints the samples per second of all processes together. An intended upper bound: rows
are read from and written to the table in place, the dense step takes every gradient where autograd left it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from process_group import peer_command  # noqa: E402  (a script of the parent folder, not a package)


def one(
    path: str, overrides: list[str], rank: int, processes: int, seconds: float, _: str, barrier: Any, out: Any
) -> None:
    """Train independently until the time is up, and put the samples per second into `out`."""
    from plain_loop import PlainLoop, Trainee, samples_per_second

    me = Trainee(path, overrides, rank, processes)
    out.put(samples_per_second(PlainLoop(me).step, me.batch, seconds, barrier.wait))


if __name__ == "__main__":
    peer_command(__doc__, one, 2)
