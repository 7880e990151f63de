"""AutoInt: multi-head self-attention between the vectors of all fields; AutoInt+ with an MLP beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from gbactl.checked_dataclasses import Count
from gbactl.errors import require
from gbactl.models.base import ClickModel


class Attention(nn.Module):
    """Self-attention of fields: relu(concatenation over heads of softmax(Q K^T) V + residual), as wide as all heads.

    The residual is the input, by a matrix where the widths differ. `scale`: divide Q K^T by sqrt(width of a head).
    """

    def __init__(self, model: ClickModel, inputs: int, width: int, heads: int, scale: bool, layer_norm: bool) -> None:
        super().__init__()
        self.heads, self.factor = heads, (width // heads) ** -0.5 if scale else 1.0
        self.query, self.key, self.value = (model.new_linear(inputs, width, bias=False) for _ in range(3))
        self.residual = None if inputs == width else model.new_linear(inputs, width, bias=False)
        self.norm = nn.LayerNorm(width) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """Compute the attention's output, float[samples, fields, width], from x float[samples, fields, inputs]."""
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        found = scaled_dot_product_attention(query, key, value, scale=self.factor).transpose(1, 2).flatten(2)
        found = found + (x if self.residual is None else self.residual(x))
        return torch.relu(found if self.norm is None else self.norm(found))


class AutoInt(ClickModel):
    """AutoInt (Song et al., 2019): a linear function of the last attention layer, + an MLP if `hidden` has layers.

    `layers` of attention, each with `heads` of together `attention_dim` values a field.
    """

    def __init__(
        self, layers: Count = 3, heads: Count = 2, attention_dim: Count = 32, scale: bool = False,
        layer_norm: bool = False, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(**common)
        problem = (
            f"model.attention_dim={attention_dim} cannot be shared by model.heads={heads}; type a multiple of {heads}."
        )
        require(attention_dim % heads == 0, problem)
        self.numeric_vectors = self.new_numeric_vectors()
        widths = [self.dim] + [attention_dim] * layers
        self.layers = nn.Sequential(
            *(Attention(self, before, attention_dim, heads, scale, layer_norm) for before in widths[:-1])
        )
        self.last = self.new_linear((self.numeric + self.fields) * attention_dim, 1, bias=False)
        self.mlp = self.new_mlp(self.numeric + self.fields * self.dim, self.hidden) if self.hidden else None

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the logits of the attention and of the MLP."""
        found = self.last(self.layers(self.field_vectors(numeric, vectors)).flatten(1))
        return (found,) if self.mlp is None else (found, self.mlp(torch.cat((numeric, vectors.flatten(1)), 1)))
