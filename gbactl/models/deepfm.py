"""DeepFM: a factorisation machine and an MLP over the same embedding vectors.

The pairwise term costs O(F dim), not O(F^2 dim), by the sum-square identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gbactl.models.base import WideDeep


class DeepFM(WideDeep):
    """DeepFM (Guo et al., 2017): wide and deep + the sum over pairs i < j of <v_i x_i, v_j x_j>."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.numeric_vectors = self.new_numeric_vectors()

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the logits of the MLP and of the factorisation machine."""
        return (*super().terms(numeric, vectors), self.pairs(numeric, vectors))

    def pairs(self, numeric: Tensor, vectors: Tensor) -> Tensor:
        """Compute the sum over pairs as 0.5 (|sum of terms|^2 - sum of |term|^2), float32[samples], always in fp32."""
        if torch.is_autocast_enabled("cpu"):  # entering it anyway costs 3 % of a small batch
            with torch.autocast("cpu", enabled=False):
                return self.pairs(numeric, vectors)
        total = vectors.sum(1)
        squares = vectors.square().sum((1, 2))
        if self.numeric_vectors is not None:
            total = total + numeric @ self.numeric_vectors
            squares = squares + numeric.square().mv(self.numeric_vectors.square().sum(1))
        return 0.5 * (total.square().sum(1) - squares)
