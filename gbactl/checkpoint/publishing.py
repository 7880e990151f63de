"""Publication of a checkpoint in a thread, once all servers' files are written: dense file, manifest, pruning.

In replica modes the dense file has the mean of the replicas that trainers send: the parameters that a switch to another
mode at this step would produce. Values and moments are averaged; the step count is the largest of the replicas'. Where
the servers hold an EASGD centre, the values are the centre's. Each replica is as it is when its trainer is asked for
it. The mean takes the memory of the vector and its moments in float64, and one addition for each trainer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.atomic_files import sync_to_disk
from gbactl.checkpoint.folder import CheckpointFolder, FileEntry, Manifest, write_manifest
from gbactl.checkpoint.tensor_file_writer import write_tensors
from gbactl.errors import NotFiniteError, WireError
from gbactl.kernels.base import Floats
from gbactl.store.optimizer_settings import dense_moments

DENSE = "dense.safetensors"
VALUE = "dense.value"
log = logging.getLogger(__name__)


class Publication:
    """Publication of one checkpoint in a thread that the constructor starts.

    `dense`: the tensors that workers sent, if any. `keep`: checkpoints to keep. `spare`: bytes that the dense file
    leaves free on the disk."""

    def __init__(
        self, folder: CheckpointFolder, manifest: Manifest, dense: dict[str, NDArray[Any]] | None, keep: int,
        spare: int = 0,
    ) -> None:  # fmt: skip
        self.folder, self.manifest, self.dense, self.keep, self.spare = folder, manifest, dense, keep, spare
        self.error, self.finite = "", True
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the publication has ended; afterwards `error` is the reason of its failure, or ""."""
        return not self._thread.is_alive()

    def wait(self, seconds: float | None = None) -> None:
        """Wait, at most `seconds`, until the publication has ended."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._close()
        except Exception as error:  # reported to the launcher; training continues
            self.finite = not isinstance(error, NotFiniteError)
            why = f"{self.manifest.name} could not be written ({getattr(error, 'strerror', None) or error})"
            self.error = why if self.finite else str(error)

    def _close(self) -> None:
        path = self.folder.path / self.manifest.name
        if self.dense is not None:
            written = write_tensors(path / DENSE, self.dense, {"gbactl": "1"}, needs_finite=True, spare=self.spare)
            self.manifest.files.append(FileEntry(DENSE, -1, written.bytes, 0, written.sums))
        write_manifest(path, self.manifest)
        sync_to_disk(self.folder.path)
        try:
            self.folder.keep(self.keep)
        except OSError as error:  # the checkpoint itself is valid
            log.warning("what may go stays: %s", error)


def fits(params: int, floats: int, optimizer: str) -> bool:
    """Return whether a buffer of `floats` values has room for `params` dense parameters with their optimizer state."""
    return floats >= params * (1 + len(dense_moments(optimizer)))


def unpacked(step: int, params: int, values: Floats, optimizer: str) -> dict[str, NDArray[Any]]:
    """Convert a packed dense vector (DenseBlock.packed) to named tensors, as in DenseBlock.state."""
    names = dense_moments(optimizer)
    size = len(values) - params * len(names)
    found: dict[str, NDArray[Any]] = {VALUE: values[:size]}
    for number, name in enumerate(names):
        low = size + number * params
        found[f"dense.moment.{name}"] = values[low : low + params]
    return {**found, "dense.step": np.array([step], np.int64)}


class ReplicaMean:
    """Mean of the dense parameters that workers send for a checkpoint: all trainers, or one worker if all are equal.

    `asked`: the workers that send them. `centred`: the EASGD centre on the servers has the values. `required`: there is
    no checkpoint without one of them."""

    def __init__(self, asked: Iterable[int], centred: bool, required: bool = False) -> None:
        self.due, self.centred, self.required = set(asked), centred, required
        self._sum: NDArray[np.float64] | None = None
        self._count = self._step = self._params = 0

    def add(self, worker: int, step: int, params: int, values: Floats) -> None:
        """Add a trainer's packed replica after `step` steps to the mean.

        `params` below 0: it has none. Raises WireError for a replica of another length than the others."""
        if worker not in self.due:
            return
        self.due.discard(worker)
        if params < 0:
            return
        if self._sum is not None and self._sum.shape != values.shape:
            raise WireError(f"W{worker} sent a replica of {len(values)} values, others sent {len(self._sum)}.")
        self._sum = values.astype(np.float64) if self._sum is None else self._sum + values
        self._count, self._step, self._params = self._count + 1, max(self._step, step), params

    def forget(self, worker: int) -> None:
        """Remove a failed trainer from the trainers whose replicas the mean still needs."""
        self.due.discard(worker)

    def tensors(self, optimizer: str) -> dict[str, NDArray[Any]] | None:
        """Return the mean as the dense file's tensors; None if no trainer had a replica."""
        if self._sum is None:
            return None
        mean = (self._sum / self._count).astype(np.float32)
        found = unpacked(self._step, self._params, mean, optimizer)
        if self.centred:
            del found[VALUE]
        return found
