"""The dense stack: Linear (+ batch norm) + ReLU + dropout, seeded without the global RNG.

Cost: the matrix products; everything else here is under 2 % of a step.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """Inverted dropout that draws from a given generator, so that a mask is a function of its seed."""

    def __init__(self, rate: float, generator: torch.Generator) -> None:
        super().__init__()
        self.keep = 1.0 - rate
        self.generator = generator

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as x; the identity in eval mode."""
        if not self.training:
            return x
        mask = torch.empty_like(x, dtype=torch.float32)
        mask.bernoulli_(self.keep, generator=self.generator).mul_(1.0 / self.keep)
        return x * mask.to(x.dtype)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm whose buffers hold, after a training forward, the statistics of that batch alone.

    Momentum 1 makes them so: mean and unbiased variance, without computing them a second time. The
    running values live with the parameters. One sample has no variance: it is normalised with the
    running values, as in eval mode, and leaves them as they are.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, momentum=1.0)
        self.num_batches_tracked = None  # momentum 1 needs no count, and state must not hold one

    def forward(self, input: Tensor) -> Tensor:
        """[B, width] -> [B, width]."""
        if self.training and input.shape[0] > 1:
            return super().forward(input)
        return nn.functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


class Linear(nn.Linear):
    """A layer whose first values are not torch's. (`skip_init` would import sympy for it: half a second a process.)"""

    def reset_parameters(self) -> None:
        """Nothing: the global generator stays as it is."""


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """A layer with Glorot-uniform weights from the generator and zero bias."""
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
    """[B, inputs] -> [B, 1]."""
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
