"""Model `fuxictr_dcnv2`: DCNv2 of FuxiCTR's layers, trained by gbactl: pip install './templates[fuxictr]'."""

from __future__ import annotations

import torch
from fuxictr.pytorch.layers import CrossNetV2, MLP_Block
from torch import Tensor, nn


class FuxiDCNv2(nn.Module):
    """Parallel DCNv2: FuxiCTR's cross network beside its MLP. `layers`: crosses, each of one degree more."""

    def __init__(
        self, numeric: int, fields: int, dim: int, hidden: list[int], dropout: float = 0.0, layers: int = 3
    ) -> None:
        super().__init__()
        width = numeric + fields * dim
        self.crosses = CrossNetV2(width, layers)
        self.mlp = MLP_Block(width, hidden_units=hidden, dropout_rates=dropout)
        self.last = nn.Linear(width + hidden[-1], 1)

    def forward(self, numeric: Tensor, fields: Tensor) -> Tensor:
        """Compute logits float32[samples] from numeric features and the looked-up vectors [samples, fields, dim]."""
        x = torch.cat([numeric, fields.flatten(1)], 1)
        logits: Tensor = self.last(torch.cat([self.crosses(x), self.mlp(x)], 1))
        return logits.squeeze(1)
