"""DCNv2: crossed features of bounded degree, by layers of crosses, and an MLP above them or beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gbactl.checked_dataclasses import Count
from gbactl.models.base import ClickModel


class Cross(nn.Module):
    """Cross layer x0 * (W x + b) + x, which raises the degree by one; W is U V of rank `rank`, or a full matrix."""

    def __init__(self, model: ClickModel, width: int, rank: int | None) -> None:
        super().__init__()
        self.down = None if rank is None else model.new_linear(width, rank, bias=False)
        self.up = model.new_linear(rank or width, width)

    def forward(self, start: Tensor, x: Tensor) -> Tensor:
        """Apply the layer to x float[samples, width]; `start`: the input of the first layer."""
        crossed: Tensor = start * self.up(x if self.down is None else self.down(x)) + x
        return crossed


class DCNv2(ClickModel):
    """DCNv2 (Wang et al., 2021), and DLRM-DCNv2 of MLPerf with `rank` and `bottom`.

    x0 holds all vectors and the numeric features, or what the MLP `bottom` with `dim` outputs makes of the latter. The
    logit is an MLP of the last cross (stacked), or one of x0 + a linear function of the last cross (parallel).
    """

    def __init__(
        self, layers: Count = 3, rank: Count | None = None, structure: Literal["stacked", "parallel"] = "stacked",
        bottom: list[Count] | None = None, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(**common)
        bottomed = bottom is not None and self.numeric > 0
        self.bottom = self.new_mlp(self.numeric, [*(bottom or ()), self.dim], None) if bottomed else None
        width = (self.dim if bottomed else self.numeric) + self.fields * self.dim
        self.crosses = nn.ModuleList(Cross(self, width, rank) for _ in range(layers))
        self.mlp = self.new_mlp(width, self.hidden)
        self.last = self.new_linear(width, 1, bias=False) if structure == "parallel" else None

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the logit of the MLP and, in the parallel structure, the logit of the cross layers."""
        values = numeric if self.bottom is None else self.bottom(numeric)
        start = torch.cat((values, vectors.flatten(1)), dim=1)
        x = start
        for layer in self.crosses:
            x = layer(start, x)
        return (self.mlp(x),) if self.last is None else (self.mlp(start), self.last(x))
