"""All-reduce on Horovod (Gloo operations over TCP between the ranks).

Horovod is told not to fuse (HOROVOD_FUSION_THRESHOLD=0): fusion groups whatever happens to be ready, so it would change
the order of sums from run to run. Cost: a background thread wakes every cycle, so a bucket waits on average half a
cycle to be noticed, and a short cycle steals the cores from the compute. The environment comes from
HorovodRendezvous.environment(); see rendezvous.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from gbactl.collective.base import Moved, WireTensors, rank_gone, ring_share, uncounted
from gbactl.collective.gloo import outlive
from gbactl.errors import ClusterError, MissingDependencyError

POLL_SECONDS = 1e-4
PATIENCE_SECONDS = 1.0  # limit of a wait once a rank has failed
FIRST_SLEEP, ADAPTING, LONGEST_USUAL = 0.75, 0.1, 0.02
HOW_TO_GET_IT = (
    "collective=horovod needs Horovod, which cannot be imported here ({reason}); type `make install` in a "
    "checkout or `python -m gbactl.install.horovod` elsewhere (it builds the extra gbactl[horovod]), or use "
    "collective=gloo."
)


def missing(reason: BaseException | str) -> MissingDependencyError:
    """Build the error for a machine without Horovod."""
    first = (str(reason).splitlines() or [type(reason).__name__])[0]
    return MissingDependencyError(HOW_TO_GET_IT.format(reason=first.rstrip(".")))


def import_horovod() -> Any:
    """Import horovod.torch. Raises MissingDependencyError, also for a build against another torch."""
    try:
        import horovod.torch as hvd
    except Exception as error:  # a wheel built for another torch raises many types of errors
        raise missing(error) from error
    if not hasattr(hvd, "init"):  # it ignores the failure and continues without its library
        raise missing("its compiled part is missing")
    return hvd


@dataclass(frozen=True)
class _Handle:
    name: str
    number: int
    tensor: Any  # keeps the memory alive until wait()
    buffer: Any


class HorovodCollective:
    """Rank of a Horovod group, one instance a process. `item`: bytes of a value on the wire, 4 or 2 (fp16)."""

    def __init__(self, item: int = 4) -> None:
        self._handed, self._hvd = WireTensors(item), import_horovod()
        outlive()
        try:
            self._hvd.init()
        except Exception as error:
            raise ClusterError("Horovod could not form its ring; see the worker's log.") from error
        self.rank: int = self._hvd.rank()
        self.size: int = self._hvd.size()
        self.moved: Moved = uncounted
        self._open = True
        self._abandoned: float | None = None
        self._usual: dict[str, float] = {}

    def abandon(self) -> None:
        """See Ring.abandon."""
        self._abandoned = time.monotonic()

    def start(self, name: str, buffer: Any) -> _Handle:
        """See Collective.start."""
        tensor = self._handed.of(name, buffer)
        try:
            number = self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum)
        except Exception as error:
            raise rank_gone(name, self.rank) from error
        return _Handle(name, number, tensor, buffer)

    def wait(self, handle: _Handle) -> None:
        """See Collective.wait. Sleeps for most of the usual time, then polls.

        Horovod's own wait sleeps a whole millisecond at a time, and continuous polling takes the core from the ranks
        that sum."""
        began = time.perf_counter()
        try:
            if not self._hvd.poll(handle.number):
                time.sleep(FIRST_SLEEP * self._usual.get(handle.name, 0.0))
            while not self._hvd.poll(handle.number):
                time.sleep(POLL_SECONDS)
                if self._abandoned is not None and time.monotonic() > self._abandoned + PATIENCE_SECONDS:
                    raise TimeoutError
            self._hvd.synchronize(handle.number)
        except Exception as error:
            raise rank_gone(handle.name, self.rank) from error
        self._note(handle.name, time.perf_counter() - began)
        self._handed.back(handle.tensor, handle.buffer)
        self.moved(ring_share(handle.tensor.numel(), self.size, self.rank, self._handed.item), False)

    def _note(self, name: str, seconds: float) -> None:
        """Update the average duration of a wait; one that a straggler prolonged counts as LONGEST_USUAL."""
        usual = self._usual.get(name, 0.0)
        self._usual[name] = usual + ADAPTING * (min(seconds, LONGEST_USUAL) - usual)

    def close(self) -> None:
        """See Collective.close."""
        if self._open:
            self._open = False
            self._hvd.shutdown()
