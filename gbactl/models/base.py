"""Base class of gbactl's click models: a first-order part, an MLP and a bias, over embedding rows already looked up.

The MLP is Linear (+ batch norm) + ReLU + dropout, seeded without the global RNG. Cost: the matrix products; everything
else in it is under 2 % of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_INT63 = (1 << 63) - 1


class ClickModel(nn.Module):
    """Click model with logit = bias + first order + MLP over numeric fields and vectors (+ a subclass's interaction).

    A row is [v (dim floats) | first-order weight]. Numeric field j has a dense first-order weight.
    """

    def __init__(
        self, numeric: int, fields: int, dim: int, hidden: list[int], dropout: float, batch_norm: bool,
        init_scale: float, seed: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.dim, self.numeric, self.fields, self.init_scale = dim, numeric, fields, init_scale
        self.masks = torch.Generator()
        init = torch.Generator().manual_seed(seed & _INT63)
        self.bias = nn.Parameter(torch.zeros(1))
        self.numeric_weight = nn.Parameter(torch.zeros(numeric)) if numeric else None
        self.mlp = mlp(
            numeric + fields * dim,
            hidden,
            dropout=dropout,
            batch_norm=batch_norm,
            init=init,
            masks=self.masks,
        )
        self.add_parameters(init)

    def add_parameters(self, init: torch.Generator) -> None:
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
            norm = nn.BatchNorm1d(width)
            norm.num_batches_tracked = None  # a momentum needs no count, and the state must not hold one
            layers.append(norm)
        layers.append(nn.ReLU())
        if dropout > 0:
            layers.append(Dropout(dropout, masks))
        inputs = width
    layers.append(linear(inputs, 1, init))
    return nn.Sequential(*layers)
