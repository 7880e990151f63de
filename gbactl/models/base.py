"""What every click model has: a first-order part, an MLP and a bias, over rows given from outside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbactl.models.layers import mlp
from gbactl.models.options import ModelConfig

_INT63 = (1 << 63) - 1


class ClickModel(nn.Module):
    """Logit = bias + first order + MLP([x | v_1 ... v_F]) (+ what a subclass adds).

    A row is [v (dim floats) | first-order weight]. Numeric field j has a dense first-order weight.
    """

    def __init__(self, cfg: ModelConfig, numeric: int, fields: int, seed: int) -> None:
        super().__init__()
        self.dim, self.numeric, self.fields = cfg.dim, numeric, fields
        self.batch_norm_momentum = cfg.batch_norm_momentum
        self.masks = torch.Generator()
        init = torch.Generator().manual_seed(seed & _INT63)
        self.bias = nn.Parameter(torch.zeros(1))
        self.numeric_weight = nn.Parameter(torch.zeros(numeric)) if numeric else None
        self.mlp = mlp(
            numeric + fields * cfg.dim,
            list(cfg.hidden),
            dropout=cfg.dropout,
            batch_norm=cfg.batch_norm,
            init=init,
            masks=self.masks,
        )
        self.add_parameters(cfg, init)

    def add_parameters(self, cfg: ModelConfig, init: torch.Generator) -> None:
        """For a subclass's own parameters, drawn from `init`."""

    def interaction(self, numeric: Tensor, vectors: Tensor) -> Tensor | None:
        """What a subclass adds to the logit, float32[B], from vectors float32[B, F, dim]."""
        return None

    def seed_dropout(self, key: int) -> None:
        """The masks of the next forward depend on `key` alone."""
        self.masks.manual_seed(key & _INT63)

    def forward(self, numeric: Tensor, emb: Tensor) -> Tensor:
        """numeric float32[B, N], emb float32[B, F, dim + 1] -> logits float32[B]."""
        vectors = emb[..., : self.dim]
        deep_in = torch.cat((numeric, vectors.reshape(emb.shape[0], -1)), dim=1)
        logit: Tensor = self.mlp(deep_in).squeeze(1).float()
        logit = logit + (self.bias + emb[..., self.dim].sum(1))
        if self.numeric_weight is not None:
            logit = logit + numeric.mv(self.numeric_weight)
        extra = self.interaction(numeric, vectors)
        return logit if extra is None else logit + extra
