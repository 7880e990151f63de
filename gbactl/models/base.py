"""Base class of the click models: a first-order part, an MLP and a bias, over embedding rows already looked up.

The MLP is Linear (+ batch norm) + ReLU + dropout, seeded without the global RNG. Cost: the matrix products; everything
else in it is under 2 % of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbactl.models.options import ModelConfig

_INT63 = (1 << 63) - 1


class ClickModel(nn.Module):
    """Click model with logit = bias + first order + MLP over numeric fields and vectors (+ a subclass's interaction).

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
        """Add the parameters of a subclass, drawn from the generator `init`."""

    def interaction(self, numeric: Tensor, vectors: Tensor) -> Tensor | None:
        """Compute a subclass's addition to the logit, float32[samples], from vectors float32[samples, fields, dim]."""
        return None

    def seed_dropout(self, key: int) -> None:
        """Seed the dropout masks of the next forward pass, so that they depend on `key` alone."""
        self.masks.manual_seed(key & _INT63)

    def forward(self, numeric: Tensor, emb: Tensor) -> Tensor:
        """Compute logits float32[samples] from numeric fields and embedding rows.

        numeric: float32[samples, numeric fields]; emb: float32[samples, fields, dim + 1].
        """
        vectors, first_order = emb.split_with_sizes((self.dim, 1), 2)  # their gradients are joined by one copy
        deep_in = torch.cat((numeric, vectors.reshape(emb.shape[0], -1)), dim=1)
        logit: Tensor = self.mlp(deep_in).squeeze(1).float()
        logit = logit + (self.bias + first_order.squeeze(2).sum(1))
        if self.numeric_weight is not None:
            logit = logit + numeric.mv(self.numeric_weight)
        extra = self.interaction(numeric, vectors)
        return logit if extra is None else logit + extra


class Dropout(nn.Module):
    """Inverted dropout that draws from a given generator, so that its masks depend on the seed alone."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.keep = 1.0 - rate
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Apply dropout to x; return x itself in eval mode."""
        if not self.training:
            return x
        mask = torch.empty_like(x, dtype=torch.float32)
        mask.bernoulli_(self.keep, generator=self.generator).mul_(1.0 / self.keep)
        return x * mask.to(x.dtype)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm whose buffers hold, after a training forward pass, the statistics of that batch alone.

    Momentum 1 makes them so: mean and unbiased variance, without computing them a second time. The
    running values are kept in the dense vector. One sample has no variance: it is normalised with the
    running values, as in eval mode, and leaves them unchanged.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, momentum=1.0)
        self.num_batches_tracked = None  # momentum 1 needs no count, and the state must not hold one

    def forward(self, input: Tensor) -> Tensor:
        """Normalise float32[samples, width] to the same shape."""
        if self.training and input.shape[0] > 1:
            return super().forward(input)
        return nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


class Linear(nn.Linear):
    """Linear layer without torch's own initialisation. (`skip_init` would import sympy for it: 0.5 s a process.)"""

    def reset_parameters(self) -> None:
        """Do nothing, so that torch's global generator is not advanced."""


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Make a linear layer with Glorot-uniform weights drawn from the generator, and zero bias."""
    layer = Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def mlp(
    inputs: int,
    hidden: list[int],
    *,
    dropout: float,
    batch_norm: bool,
    init: torch.Generator,
    masks: torch.Generator,
) -> nn.Sequential:
    """Make an MLP that maps [samples, inputs] to [samples, 1]."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers.append(linear(inputs, width, init))
        if batch_norm:
            layers.append(BatchNorm(width))
        layers.append(nn.ReLU())
        if dropout > 0:
            layers.append(Dropout(dropout, masks))
        inputs = width
    layers.append(linear(inputs, 1, init))
    return nn.Sequential(*layers)
