"""From a configured name to the launcher's rendezvous and the worker's collective.

launcher:  with open_rendezvous("horovod", size=4, run_dir=path) as meeting:
               spawn(env={**os.environ, **meeting.environment(rank)})
worker:    collective = connect()
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gbactl.collective.base import Collective, Single
from gbactl.collective.falling import FallingCollective, FallingMeeting, Ring
from gbactl.collective.gloo import GlooRendezvous
from gbactl.collective.meeting import Meeting, Seat
from gbactl.collective.rendezvous import HorovodRendezvous
from gbactl.collective.shm import SharedMemoryCollective, SharedMemoryMeeting, available
from gbactl.errors import ConfigError

NAMES = ("horovod", "gloo", "shm")


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
    alone); None: all on this one. `survives`: where a rank dies the sums go on, in shared memory if there is any.

    Raises MissingDependencyError when Horovod is asked for and is not there, ConfigError for an unknown
    name, ClusterError when `bind` cannot be bound.
    """
    if name not in NAMES:
        raise ConfigError(f"collective={name} is not known; type collective= one of: {', '.join(NAMES)}.")
    if name == "shm":
        return SharedMemoryMeeting(size)
    made: Meeting
    if name == "horovod" and seats is not None:
        return HorovodRendezvous(size, bind, cycle_time_ms, timeout, seats)
    if name == "horovod":
        made = HorovodRendezvous(size, bind, cycle_time_ms, timeout)
    else:
        made = GlooRendezvous(size, bind, run_dir, timeout)
    return FallingMeeting(made, SharedMemoryMeeting(size)) if survives and available() else made


def connect(late: bool = False) -> Collective:
    """Join the group described by this process's environment. A process outside any group is alone.

    `late`: in the place of another one, whose ring is broken. Raises ClusterError when the ring does not form.
    """
    name, folder = os.environ.get("GBACTL_COLLECTIVE", ""), os.environ.get("GBACTL_SUM_FOLDER")
    if folder is None:
        return Single() if late else _ring(name)
    slots = SharedMemoryCollective(Path(folder), int(os.environ["GBACTL_RANK"]), int(os.environ["GBACTL_SIZE"]))
    return slots if name == "shm" else FallingCollective(None if late else _ring(name), slots)


def _ring(name: str) -> Ring:
    if name == "horovod":
        from gbactl.collective.horovod import HorovodCollective

        return HorovodCollective()
    if name == "gloo":
        from gbactl.collective.gloo import GlooCollective

        return GlooCollective(os.environ)
    return Single()
