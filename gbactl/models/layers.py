"""Layers that several click models share; initial values are drawn from a given generator, none from the global one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


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


class Dice(nn.Module):
    """Activation of DIN: p x + (1 - p) a x, with p the sigmoid of x normalised over the batch, and a learned per unit.

    Input: float[samples, width]. As in batch norm, evaluation normalises with running statistics."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-8, affine=False)
        self.norm.num_batches_tracked = None
        self.slope = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Compute the activation of each unit."""
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.slope * x


def relu(width: int) -> nn.Module:
    """Make a ReLU for a layer of any width."""
    return nn.ReLU()


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {"dice": Dice, "prelu": nn.PReLU, "relu": relu}


class Linear(nn.Linear):
    """Linear layer without torch's own initialisation. (`skip_init` would import sympy for it: 0.5 s a process.)"""

    def reset_parameters(self) -> None:
        """Do nothing, so that torch's global generator is not advanced."""


def linear(inputs: int, outputs: int, generator: torch.Generator, bias: bool = True) -> nn.Linear:
    """Make a linear layer with Glorot-uniform weights drawn from the generator, and zero bias."""
    layer = Linear(inputs, outputs, bias)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(
    inputs: int,
    hidden: list[int],
    outputs: int | None = 1,
    *,
    dropout: float = 0.0,
    batch_norm: bool = False,
    init: torch.Generator,
    masks: torch.Generator | None = None,
    activation: str = "relu",
) -> nn.Sequential:
    """Make an MLP from [samples, inputs] to [samples, outputs]; without an output layer if `outputs` is None."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers.append(linear(inputs, width, init))
        if batch_norm:
            norm = nn.BatchNorm1d(width)
            norm.num_batches_tracked = None  # a momentum needs no count, and the state must not hold one
            layers.append(norm)
        layers.append(ACTIVATIONS[activation](width))
        if dropout > 0 and masks is not None:
            layers.append(Dropout(dropout, masks))
        inputs = width
    if outputs is not None:
        layers.append(linear(inputs, outputs, init))
    return nn.Sequential(*layers)
