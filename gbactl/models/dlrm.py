"""DLRM: an MLP over the dot products of all pairs of vectors, of which one comes from an MLP over numeric features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from gbactl.checked_dataclasses import Count
from gbactl.errors import require
from gbactl.models.base import ClickModel


class DLRM(ClickModel):
    """DLRM (Naumov et al., 2019): logit = top MLP(z, <v_i, v_j> for i < j), with z = bottom MLP(numeric) among the v.

    `hidden` are the widths of the top MLP. With interaction=cat its input has the vectors instead of their products.
    """

    def __init__(
        self, bottom: list[Count] | None = None, interaction: Literal["dot", "cat"] = "dot", **common: Any
    ) -> None:
        super().__init__(**common)
        self.bottom = self.new_mlp(self.numeric, [*(bottom or ()), self.dim], None) if self.numeric else None
        count = self.fields + int(self.numeric > 0)
        first, second = torch.triu_indices(count, count, offset=1).unbind()
        self.pairs: Tensor | None  # positions in the flat matrix of all products
        self.register_buffer("pairs", first * count + second if interaction == "dot" else None, persistent=False)
        products = self.dim * int(self.numeric > 0) + len(first) if interaction == "dot" else self.dim * count
        require(products > 0, "model=dlrm has no pair in a single field; type model.interaction=cat.")
        self.mlp = self.new_mlp(products, self.hidden)

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the top MLP's logit."""
        values = None if self.bottom is None else self.bottom(numeric)
        if values is not None:
            vectors = torch.cat((values.unsqueeze(1).to(vectors.dtype), vectors), 1)
        if self.pairs is None:
            return (self.mlp(vectors.flatten(1)),)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return (self.mlp(products if values is None else torch.cat((values, products), 1)),)
