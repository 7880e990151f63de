"""DeepFM: a factorisation machine and an MLP over the same embedding vectors.

The pairwise term costs O(F dim), not O(F^2 dim), by the sum-square identity.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbactl.models.base import ClickModel


class DeepFM(ClickModel):
    """DeepFM model: adds the sum over pairs i < j of <v_i x_i, v_j x_j> to the base model's logit."""

    def add_parameters(self, init: torch.Generator) -> None:
        """Add one vector per numeric field, initialised in the same range as embedding rows."""
        self.numeric_vectors: nn.Parameter | None = None
        if self.numeric:
            start = torch.empty(self.numeric, self.dim)
            start.uniform_(-self.init_scale, self.init_scale, generator=init)
            self.numeric_vectors = nn.Parameter(start)

    def interaction(self, numeric: Tensor, vectors: Tensor) -> Tensor:
        """Compute the sum over pairs as 0.5 (|sum of terms|^2 - sum of |term|^2), float32[samples], always in fp32."""
        if torch.is_autocast_enabled("cpu"):  # entering it anyway costs 3 % of a small batch
            with torch.autocast("cpu", enabled=False):
                return self.interaction(numeric, vectors)
        total = vectors.sum(1)
        squares = vectors.square().sum((1, 2))
        if self.numeric_vectors is not None:
            total = total + numeric @ self.numeric_vectors
            squares = squares + numeric.square().mv(self.numeric_vectors.square().sum(1))
        return 0.5 * (total.square().sum(1) - squares)
