"""How stale each row of a gradient is by itself: the steps that touched it since it was pulled.

Following the idea of GBA, a rarely seen row is not punished for steps that never touched it. Costs 4 bytes a
pulled row while its batch is outstanding, and a copy of the gradient where its rows weigh differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gbactl.kernels.base import COUNT, Ints, RowPart
from gbactl.store.gradient_slice import Part


class PullNotes:
    """Touch counts at the time of the last pull, by batch. `counts` uint32[rows] is held, not copied."""

    def __init__(self, counts: Any) -> None:
        self._counts = counts
        self._at_pull: dict[int, tuple[Ints, Any]] = {}

    def note(self, batch: int, index: Ints) -> None:
        """Rows `index` int32[n] are pulled for a batch. Raises ValueError on an index outside."""
        index = index.copy()
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(self._counts):
            raise ValueError("Refused: an index lies outside the table.")
        self._at_pull[batch] = index, self._counts[index]

    def attach(self, batch: int, part: Part) -> None:
        """Hand the note of a batch over to its part; without one of the same rows, it has none."""
        index, counts = self._at_pull.pop(batch, (None, None))
        if index is not None and np.array_equal(index, part.index):
            part.touches = counts

    def forget(self, batch: int | None = None) -> None:
        """Forget one batch's note, or all."""
        if batch is None:
            self._at_pull.clear()
        else:
            self._at_pull.pop(batch, None)

    @property
    def nbytes(self) -> int:
        """Bytes of the notes."""
        return sum(index.nbytes + counts.nbytes for index, counts in self._at_pull.values())

    def weigh(self, part: Part, weights: Sequence[float]) -> list[RowPart]:
        """The part's rows, weighted by `weights`[own staleness]: one part for each weight > 0 that occurs.

        The last of `weights` is that of the token's staleness, which no row exceeds; a part whose pull was not
        noted gets it for all its rows.
        """
        if part.touches is None:
            return [(part.index, part.grad, weights[-1])] if weights[-1] > 0 and len(part.index) else []
        since = self._counts[part.index] - part.touches
        own = np.array(weights)[np.minimum(since, COUNT.type(len(weights) - 1))]
        found = own[:1] if (own == own[:1]).all() else np.unique(own)
        if len(found) == 1 and found[0] > 0:
            return [(part.index, part.grad, float(found[0]))]
        chosen = [(float(weight), np.flatnonzero(own == weight)) for weight in found if weight > 0]
        return [(part.index[at], part.grad[at], weight) for weight, at in chosen]
