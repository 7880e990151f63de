"""All-reduce behind one interface (Horovod, Gloo, shared memory): launcher's rendezvous and workers' ranks.

launcher:  with open_rendezvous("horovod", size=4, run_dir=path) as meeting:
               spawn(env={**os.environ, **meeting.environment(rank)})
worker:    collective = connect()

A ring has a fallback that continues where a rank fails: shared memory, or, where ranks have none in common, a fallback
that the worker provides (see worker/allreduce_fallback.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gbactl.collective.base import Collective, RankSlot, Rendezvous, Ring
from gbactl.collective.fault_tolerant import FaultTolerantCollective
from gbactl.collective.gloo import GlooCollective, GlooRendezvous
from gbactl.collective.horovod import HorovodCollective, HorovodRendezvous, require_own_name
from gbactl.collective.shared_memory import SharedMemoryCollective, SharedMemoryRendezvous, available, require_available


def check_here(name: str) -> None:
    """Raise ConfigError, with what to type, if this collective cannot run with all ranks on this machine."""
    if name == "horovod":
        require_own_name()
    if name == "shm":
        require_available()


def open_rendezvous(
    name: str,
    size: int,
    run_dir: Path,
    bind: str = "127.0.0.1",
    cycle_time_ms: float = 3.0,
    survives: bool = False,
    rank_slots: Sequence[RankSlot] | None = None,
) -> Rendezvous:
    """Start the launcher's rendezvous for `size` ranks.

    `rank_slots`: the hosts of the ranks (Horovod alone); None: all on this one. `survives`: sums continue where a rank
    fails.

    Raises MissingDependencyError when Horovod is asked for and is not installed, ClusterError when `bind` cannot be
    bound."""
    if name == "shm":
        return SharedMemoryRendezvous(size)
    made: Rendezvous
    if name == "horovod":
        made = HorovodRendezvous(size, bind, cycle_time_ms, rank_slots)
    else:
        made = GlooRendezvous(size, bind, run_dir)
    if survives and rank_slots is None and available():
        made.fallback = SharedMemoryRendezvous(size)
    return made


def connect(
    late: bool = False, elsewhere: Callable[[int, int], FaultTolerantCollective] | None = None, item: int = 4
) -> Collective:
    """Join the collective described by this process's environment.

    `late`: as the replacement of a worker, whose ring is broken. `elsewhere(rank, size)`: creates the fallback of ranks
    without common memory; None: a rank that fails ends the run. `item`: bytes of a value in a ring (see
    base.ring_item).

    Raises ClusterError when the ring does not form."""
    name, folder = os.environ["GBACTL_COLLECTIVE"], os.environ.get("GBACTL_SUM_FOLDER")
    rank, size = int(os.environ["GBACTL_RANK"]), int(os.environ["GBACTL_SIZE"])
    found: FaultTolerantCollective | None = None
    if folder is not None:
        found = SharedMemoryCollective(Path(folder), rank, size)
    elif elsewhere is not None:
        found = elsewhere(rank, size)
    if found is None:
        return _ring(name, item)
    if name != "shm":
        found.use_ring(None if late else _ring(name, item))
    return found


def _ring(name: str, item: int) -> Ring:
    return HorovodCollective(item) if name == "horovod" else GlooCollective(os.environ, item)
