"""Makes a checkpoint exist once every server's part is there: dense part, manifest, pruning; in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.checkpoint import manifest as manifests
from gbactl.checkpoint.folder import Folder
from gbactl.checkpoint.manifest import Entry, Manifest
from gbactl.checkpoint.tensor_file import sync_folder, write_tensors
from gbactl.errors import NotFiniteError
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
