"""FinalMLP: two MLPs over differently gated vectors, joined by a bilinear form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gbactl.checked_dataclasses import Count, Natural
from gbactl.errors import require
from gbactl.models.base import ClickModel


class Gate(nn.Module):
    """Gate of all values of a sample: v * 2 sigmoid(MLP(vectors of the context fields, or one learned vector))."""

    def __init__(self, model: ClickModel, wide: int, hidden: list[int], context: list[int]) -> None:
        super().__init__()
        self.context = context
        self.start = None if context else nn.Parameter(torch.zeros(1, model.dim))
        self.mlp = model.new_mlp(max(1, len(context)) * model.dim, hidden, wide, plain=True)

    def forward(self, v: Tensor, vectors: Tensor) -> Tensor:
        """Multiply v float[samples, wide] by its gate; `vectors`: looked-up ones, float[samples, fields, dim]."""
        context = vectors[:, self.context].flatten(1) if self.start is None else self.start
        return v * (2 * torch.sigmoid(self.mlp(context)))


class FinalMLP(ClickModel):
    """FinalMLP (Mao et al., 2023): logit = w1 y1 + w2 y2 + sum over heads h of y1_h^T W_h y2_h.

    y1 and y2 are the last hidden layers of MLPs of the widths `hidden` and `hidden2`, each over all vectors times its
    own gate. `gate_hidden`: hidden widths of the gates' MLPs. `context1`, `context2`: numbers, from 0, of the fields
    that a gate is computed from; none: it is the same for all samples.
    """

    def __init__(
        self, hidden2: list[Count] | None = None, heads: Count = 1,
        gates: bool = True, gate_hidden: list[Count] | None = None,
        context1: list[Natural] | None = None, context2: list[Natural] | None = None, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(**common)
        widths = {"hidden": self.hidden, "hidden2": self.hidden if hidden2 is None else hidden2}
        for key, each in widths.items():
            problem = (
                f"model.{key}={each} cannot end in model.heads={heads} parts; type a last width that {heads} divides."
            )
            require(bool(each) and each[-1] % heads == 0, problem)
        contexts = [context1 or [], context2 or []]
        for number, fields in enumerate(contexts, 1):
            problem = (
                f"model.context{number}={fields} names fields that are not; type numbers from 0 to {self.fields - 1}."
            )
            require(all(field < self.fields for field in fields), problem)
        self.numeric_vectors = self.new_numeric_vectors()
        wide, self.heads = (self.numeric + self.fields) * self.dim, heads
        inside = [64] if gate_hidden is None else gate_hidden
        self.gates = nn.ModuleList(Gate(self, wide, inside, context) for context in (contexts if gates else ()))
        self.mlps = nn.ModuleList(self.new_mlp(wide, each, None) for each in widths.values())
        first, second = (each[-1] for each in widths.values())
        self.last = nn.ModuleList(self.new_linear(width, 1, bias=False) for width in (first, second))
        self.bilinear = nn.Parameter(torch.empty(heads, first // heads, second // heads))
        bound = (6 / (self.bilinear.numel() + 1)) ** 0.5  # Glorot's of a linear function of all products
        nn.init.uniform_(self.bilinear, -bound, bound, generator=self.init)

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the linear and the bilinear parts of the logit."""
        v = self.field_vectors(numeric, vectors).flatten(1)
        gated = [gate(v, vectors) for gate in self.gates] or [v, v]
        first, second = (layers(x) for layers, x in zip(self.mlps, gated, strict=True))
        left, right = (y.unflatten(1, (self.heads, -1)) for y in (first, second))
        products = torch.einsum("bhi,hij->bhj", left, self.bilinear) * right
        return self.last[0](first), self.last[1](second), products.float().sum((1, 2))
