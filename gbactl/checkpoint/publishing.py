"""Makes a checkpoint exist once every server's part is there: dense part, manifest, pruning; in a thread.

In modes whose workers are trainers the dense part is the mean of the replicas that they tell: the parameters that a
switch away from the mode would produce then. Values and moments are averaged, the largest count of steps stays; where a
centre on the servers counts, the values are the centre's. Each replica is as it is when its trainer is asked. Memory:
the vector and its moments in float64; costs one addition a trainer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.checkpoint import manifest as manifests
from gbactl.checkpoint.folder import Folder
from gbactl.checkpoint.manifest import Entry, Manifest
from gbactl.checkpoint.tensor_file import sync_folder, write_tensors
from gbactl.errors import NotFiniteError, WireError
from gbactl.kernels.base import Floats
from gbactl.store.optim import MOMENTS, OptimizerSpec

DENSE = "dense.safetensors"
VALUE = "dense.value"
log = logging.getLogger(__name__)


class Closing:
    """Begins at once. `dense`: the tensors that workers told, if they did; `keep` checkpoints stay; `spare`: bytes that
    the dense part leaves free on the disk.

    `inline`: done when the constructor returns, in no other thread."""

    def __init__(
        self, folder: Folder, manifest: Manifest, dense: dict[str, NDArray[Any]] | None, keep: int,
        inline: bool = False, spare: int = 0,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.dense, self.keep, self.spare = folder, manifest, dense, keep, spare
        self.error, self.finite = "", True
        self._thread: threading.Thread | None = None
        if inline:
            self._run()
        else:
            self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
            self._thread.start()

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for; `error` says why it failed, if it did."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self, seconds: float) -> None:
        """Until it is over, but no longer."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._close()
        except Exception as error:  # told to the launcher; training goes on
            self.finite = not isinstance(error, NotFiniteError)
            why = f"{self.manifest.name} could not be written ({getattr(error, 'strerror', None) or error})"
            self.error = why if self.finite else str(error)

    def _close(self) -> None:
        path = self.folder.path / self.manifest.name
        if self.dense is not None:
            written = write_tensors(path / DENSE, self.dense, {"gbactl": "1"}, needs_finite=True, spare=self.spare)
            self.manifest.files.append(Entry(DENSE, -1, written.bytes, 0, written.sums))
        manifests.write(path, self.manifest)
        sync_folder(self.folder.path)
        try:
            self.folder.keep(self.keep)
        except OSError as error:  # the checkpoint is good all the same
            log.warning("what may go stays: %s", error)


def _moments(optimizer: str) -> Sequence[str]:
    return MOMENTS[OptimizerSpec(optimizer).for_dense().name]


def fits(params: int, floats: int, optimizer: str) -> bool:
    """Whether DenseBlock.packed may have made so many values of a whole vector with `params` parameters."""
    return floats >= params * (1 + len(_moments(optimizer)))


def unpacked(step: int, params: int, values: Floats, optimizer: str) -> dict[str, NDArray[Any]]:
    """What DenseBlock.packed made of a whole vector with `params` P parameters, as DenseBlock.state has it."""
    names = _moments(optimizer)
    size = len(values) - params * len(names)
    found: dict[str, NDArray[Any]] = {VALUE: values[:size]}
    for number, name in enumerate(names):
        low = size + number * params
        found[f"dense.moment.{name}"] = values[low : low + params]
    return {**found, "dense.step": np.array([step], np.int64)}


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
