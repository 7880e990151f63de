"""Model `cross`: crossed features of bounded degree beside an MLP, after the Deep & Cross Network."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CrossLayer(nn.Module):
    """One layer of crosses: x0 * (W x + b) + x, float32[samples, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, start: Tensor, x: Tensor) -> Tensor:
        """Raise the degree of the crosses in x by one."""
        crossed: Tensor = start * self.linear(x) + x
        return crossed


class Cross(nn.Module):
    """Model whose logit is a linear function of crosses and of an MLP over the same input.

    numeric, fields: numbers of fields; dim: width of a looked-up vector; hidden: widths of the MLP; dropout: share of
    hidden units set to 0. These are offered to every model; `layers` is an option of this one."""

    def __init__(
        self, numeric: int, fields: int, dim: int, hidden: list[int], dropout: float = 0.0, layers: int = 2
    ) -> None:
        super().__init__()
        width = numeric + fields * dim
        self.crosses = nn.ModuleList(CrossLayer(width) for _ in range(layers))
        self.mlp = nn.Sequential(nn.BatchNorm1d(width))
        inputs = width
        for outputs in hidden:
            self.mlp.extend([nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(dropout)])
            inputs = outputs
        self.last = nn.Linear(width + inputs, 1)

    def forward(self, numeric: Tensor, fields: Tensor) -> Tensor:
        """Compute logits float32[samples].

        numeric: float32[samples, numeric features]; fields: float32[samples, fields, dim], the looked-up vectors."""
        start = torch.cat([numeric, fields.flatten(1)], 1)
        x = start
        for layer in self.crosses:
            x = layer(start, x)
        logits: Tensor = self.last(torch.cat([x, self.mlp(start)], 1))
        return logits.squeeze(1)
