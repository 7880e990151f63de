"""Base classes of gbactl's click models, and the layers that models share; also wide and deep, the simplest model.

A model gets embedding rows that are already looked up. Its initial values come from the generator `init`, its dropout
masks from the generator `masks`: a layer draws from a given generator, never from the global one. Cost: the matrix
products; everything else in an MLP is under 2 % of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gbactl.models import INT63


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
        """Apply Dice to x, float[samples, width]: p x + (1 - p) a x for each unit."""
        p = torch.sigmoid(self.norm(x))
        return p * x + (1 - p) * self.slope * x


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {  # from the width of a layer
    "dice": Dice, "prelu": nn.PReLU, "relu": lambda _: nn.ReLU(),
}  # fmt: skip


class Linear(nn.Linear):
    """Linear layer without torch's own initialisation. (`skip_init` would import sympy for it: 0.5 s a process.)"""

    def reset_parameters(self) -> None:
        """Do nothing, so that torch's global generator is not advanced."""


class ClickModel(nn.Module):
    """Click model with logit = bias + first order + the terms of a subclass.

    A row is [v (dim floats) | first-order weight], and numeric feature j has a dense first-order weight. Without
    `first_order` neither has one.
    """

    numeric_vectors: nn.Parameter | None  # a vector per numeric feature, of the models that have made these

    def __init__(
        self, numeric: int, fields: int, dim: int, hidden: list[int], dropout: float, batch_norm: bool,
        init_scale: float, seed: int, first_order: bool, list_targets: tuple[int | None, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.numeric, self.fields, self.dim, self.hidden = numeric, fields, dim, hidden
        self.list_targets = list_targets
        self.dropout, self.batch_norm, self.init_scale, self.first_order = dropout, batch_norm, init_scale, first_order
        self.masks = torch.Generator()
        self.init = torch.Generator().manual_seed(seed & INT63)
        self.bias = nn.Parameter(torch.zeros(1))
        self.numeric_weight = nn.Parameter(torch.zeros(numeric)) if numeric and first_order else None

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the terms that a model adds to the logit, each float[samples] or [samples, 1].

        numeric: float32[samples, N]; vectors: float32[samples, fields, dim]."""
        raise NotImplementedError

    def seed_dropout(self, key: int) -> None:
        """Seed the dropout masks of the next forward pass, so that they depend on `key` alone."""
        self.masks.manual_seed(key & INT63)

    def forward(self, numeric: Tensor, emb: Tensor) -> Tensor:
        """Compute logits float32[samples] from numeric features and embedding rows.

        numeric: float32[samples, N]; emb: float32[samples, fields, row width].
        """
        # the gradients of the two parts of a row are joined by one copy
        vectors, *weights = emb.split_with_sizes((self.dim, 1) if self.first_order else (self.dim,), 2)
        first, *others = (term.reshape(-1).float() for term in self.terms(numeric, vectors))
        logit: Tensor = first + (self.bias + weights[0].squeeze(2).sum(1) if weights else self.bias)
        if self.numeric_weight is not None:
            logit = logit + numeric.mv(self.numeric_weight)
        for term in others:
            logit = logit + term
        return logit

    def new_mlp(
        self, inputs: int, hidden: list[int], outputs: int | None = 1, activation: str = "relu", plain: bool = False
    ) -> nn.Sequential:
        """Make an MLP from [samples, inputs] to [samples, outputs]; without an output layer if `outputs` is None.

        It has the configured dropout and batch norm, unless it is to be `plain`."""
        layers: list[nn.Module] = []
        for width in hidden:
            layers.append(self.new_linear(inputs, width))
            if self.batch_norm and not plain:
                norm = nn.BatchNorm1d(width)
                norm.num_batches_tracked = None  # a momentum needs no count, and the state must not hold one
                layers.append(norm)
            layers.append(ACTIVATIONS[activation](width))
            if self.dropout > 0 and not plain:
                layers.append(Dropout(self.dropout, self.masks))
            inputs = width
        if outputs is not None:
            layers.append(self.new_linear(inputs, outputs))
        return nn.Sequential(*layers)

    def new_linear(self, inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
        """Make a linear layer with Glorot-uniform weights drawn from the generator `init`, and zero bias."""
        layer = Linear(inputs, outputs, bias)
        nn.init.xavier_uniform_(layer.weight, generator=self.init)
        if bias:
            nn.init.zeros_(layer.bias)
        return layer

    def new_numeric_vectors(self) -> nn.Parameter | None:
        """Make one vector per numeric feature, in the same range as embedding rows; None without numeric features."""
        if not self.numeric:
            return None
        start = torch.empty(self.numeric, self.dim)
        return nn.Parameter(start.uniform_(-self.init_scale, self.init_scale, generator=self.init))

    def field_vectors(self, numeric: Tensor, vectors: Tensor) -> Tensor:
        """Join numeric features, each its value times its vector, with the fields: float[samples, N + fields, dim]."""
        if self.numeric_vectors is None:
            return vectors
        return torch.cat((numeric.unsqueeze(2) * self.numeric_vectors, vectors), 1)


class WideDeep(ClickModel):
    """Wide & Deep (Cheng et al., 2016): first-order weights beside an MLP over all fields, without crossed features."""

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self.mlp = self.new_mlp(self.numeric + self.fields * self.dim, self.hidden)

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the MLP's logit; subclasses add their own terms to it."""
        return (self.mlp(torch.cat((numeric, vectors.flatten(1)), dim=1)),)
