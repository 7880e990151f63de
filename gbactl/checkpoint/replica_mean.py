"""The dense part of a checkpoint in modes whose workers are trainers: the mean of the replicas that they tell. Pure.

What leaving the mode at that moment would come to: values and moments are averaged, the largest count of steps stays;
where a centre on the servers counts, of the values theirs. Each replica is as it is when its trainer is asked. Memory:
the vector and its moments in float64; costs one addition a trainer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.checkpoint.publishing import VALUE, unpacked
from gbactl.errors import WireError
from gbactl.kernels.base import Floats


class Gathering:
    """Of one checkpoint, from the trainers `asked`; `centred`: the servers have the values."""

    def __init__(self, asked: Iterable[int], centred: bool) -> None:
        self.due, self.centred = set(asked), centred
        self._sum: NDArray[np.float64] | None = None
        self._count = self._step = self._params = 0

    def came(self, worker: int, step: int, params: int, values: Floats) -> None:
        """A trainer's replica, packed (see DenseBlock), after `step` steps; `params` below 0: it has none.

        Raises WireError for one that is not as long as those before."""
        if worker not in self.due:
            return
        self.due.discard(worker)
        if params < 0:
            return
        if self._sum is not None and self._sum.shape != values.shape:
            raise WireError(f"W{worker} tells a replica of {len(values)} values, others {len(self._sum)}.")
        self._sum = values.astype(np.float64) if self._sum is None else self._sum + values
        self._count, self._step, self._params = self._count + 1, max(self._step, step), params

    def left(self, worker: int) -> None:
        """A trainer is gone: nobody waits for it."""
        self.due.discard(worker)

    def tensors(self, optimizer: str) -> dict[str, NDArray[Any]] | None:
        """What goes to the file; None where nobody had anything."""
        if self._sum is None:
            return None
        mean = (self._sum / self._count).astype(np.float32)
        found = unpacked(self._step, self._params, mean, optimizer)
        if self.centred:
            del found[VALUE]
        return found
