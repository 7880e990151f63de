"""Model `torchrec_dcnv2`: low-rank crosses and MLP of TorchRec's layers, trained by gbactl.

pip install './templates[torchrec]' && pip install --no-deps 'torchrec==1.8.*'"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchrec.modules.crossnet import LowRankCrossNet
from torchrec.modules.mlp import MLP


class TorchRecDCNv2(nn.Module):
    """Stacked DCNv2, whose MLP follows the crosses, as in MLPerf's DLRM-DCNv2.

    `layers`: number of cross layers, each of which raises the degree by one; `rank`: the rank of their matrices."""

    def __init__(self, numeric: int, fields: int, dim: int, hidden: list[int], layers: int = 3, rank: int = 32) -> None:
        super().__init__()
        width = numeric + fields * dim
        self.crosses = LowRankCrossNet(width, layers, low_rank=rank)
        self.mlp = MLP(width, hidden)
        self.last = nn.Linear(hidden[-1], 1)

    def forward(self, numeric: Tensor, fields: Tensor) -> Tensor:
        """Compute logits float32[samples] from numeric features and the looked-up vectors [samples, fields, dim]."""
        x = torch.cat([numeric, fields.flatten(1)], 1)
        logits: Tensor = self.last(self.mlp(self.crosses(x)))
        return logits.squeeze(1)
