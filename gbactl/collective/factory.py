"""From a configured name to the launcher's rendezvous and the worker's collective.

launcher:  with open_rendezvous("horovod", size=4, run_dir=path) as meeting:
               spawn(env={**os.environ, **meeting.environment(rank)})
worker:    collective = connect()

A ring has something under it that goes on where a rank dies: shared memory, or where there is none in common what the
worker brings itself (see worker/sum_fallback.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gbactl.collective.base import Collective, Single
from gbactl.collective.fallback import FallingCollective, FallingMeeting, Ring
from gbactl.collective.fault_tolerant import Beneath
from gbactl.collective.gloo import GlooRendezvous
from gbactl.collective.rendezvous import HorovodRendezvous, require_own_name
from gbactl.collective.rendezvous_base import Meeting, Seat
from gbactl.collective.shared_memory import SharedMemoryCollective, SharedMemoryMeeting, available, require_available
from gbactl.errors import ConfigError

NAMES = ("horovod", "gloo", "shm")


def check_here(name: str) -> None:
    """Raise ConfigError where a group whose ranks are all on this machine could not form, with what to type."""
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
    timeout: float = 30.0,
    survives: bool = False,
    seats: Sequence[Seat] | None = None,
) -> Meeting:
    """Start the launcher's side for `size` ranks; `timeout` is in seconds. `seats`: on which hosts those are (Horovod
    alone); None: all on this one. `survives`: where a rank dies the sums go on.

    Raises MissingDependencyError when Horovod is asked for and is not there, ConfigError for an unknown
    name, ClusterError when `bind` cannot be bound.
    """
    if name not in NAMES:
        raise ConfigError(f"collective={name} is not known; type collective= one of: {', '.join(NAMES)}.")
    if name == "shm":
        return SharedMemoryMeeting(size)
    made: Meeting
    if name == "horovod":
        made = HorovodRendezvous(size, bind, cycle_time_ms, timeout, seats)
    else:
        made = GlooRendezvous(size, bind, run_dir, timeout)
    if not survives:
        return made
    return FallingMeeting(made, SharedMemoryMeeting(size) if seats is None and available() else Elsewhere(size))


class Elsewhere(Meeting):
    """Ranks that have no memory in common, and know themselves what is under their ring."""

    def __init__(self, size: int) -> None:
        self.size = size

    def environment(self, rank: int) -> dict[str, str]:
        """See Meeting.environment."""
        return {"GBACTL_SUM_ELSEWHERE": "1", "GBACTL_RANK": str(rank), "GBACTL_SIZE": str(self.size)}


def connect(
    late: bool = False, elsewhere: Callable[[int, int], Beneath] | None = None, item: int = 4
) -> Collective:
    """Join the group described by this process's environment. A process outside any group is alone.

    `late`: in the place of another one, whose ring is broken. `elsewhere(rank, size)`: what is under the ring of those
    who have no memory in common. `item`: bytes of a value in a ring (see base.ring_item).

    Raises ClusterError when the ring does not form.
    """
    name, folder = os.environ.get("GBACTL_COLLECTIVE", ""), os.environ.get("GBACTL_SUM_FOLDER")
    rank, size = int(os.environ.get("GBACTL_RANK", "0")), int(os.environ.get("GBACTL_SIZE", "1"))
    under: Beneath | None = None
    if folder is not None:
        under = SharedMemoryCollective(Path(folder), rank, size)
    elif elsewhere is not None and "GBACTL_SUM_ELSEWHERE" in os.environ:
        under = elsewhere(rank, size)
    if name == "shm" and under is not None:
        return under
    if under is None:
        return Single() if late else _ring(name, item)
    return FallingCollective(None if late else _ring(name, item), under)


def _ring(name: str, item: int) -> Ring:
    if name == "horovod":
        from gbactl.collective.horovod import HorovodCollective

        return HorovodCollective(item)
    if name == "gloo":
        from gbactl.collective.gloo import GlooCollective

        return GlooCollective(os.environ, item)
    return Single()
