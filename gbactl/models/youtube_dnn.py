"""YouTube's ranking network: an MLP over vectors, averaged histories, and numeric features with their powers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gbactl.models.base import ClickModel


class YouTubeDNN(ClickModel):
    """Ranking network of Covington et al. (2016, https://doi.org/10.1145/2959100.2959190): MLP([x, x^2, x^(1/2), v]).

    v are the vectors of all fields, a history being the mean of its items' (`pooling` of the data). The powers keep the
    sign of x, since x is here what the data give and not, as in the paper, a quantile in [0, 1). Without `powers` it is
    MLP([x, v]). The paper weights clicks by watch time; here all samples count the same.
    """

    def __init__(self, powers: bool = True, **common: Any) -> None:
        super().__init__(**common)
        self.powers = powers
        self.mlp = self.new_mlp(self.numeric * (3 if powers else 1) + self.fields * self.dim, self.hidden)

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the MLP's logit."""
        sizes = numeric.abs()
        powers = [numeric * sizes, numeric.sign() * sizes.sqrt()] if self.powers else []
        return (self.mlp(torch.cat((numeric, *powers, vectors.flatten(1)), 1)),)
