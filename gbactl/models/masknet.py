"""MaskNet: blocks whose input is multiplied by a mask that an MLP computes from all vectors of the sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from gbactl.checked_dataclasses import Bounds, Count
from gbactl.errors import require
from gbactl.models.base import ClickModel, Dropout

Reduction = Annotated[float, Bounds(above=0, at_most=1000)]


class MaskBlock(nn.Module):
    """Mask block: relu(layer norm(W (mask * x))) with mask = W2 relu(W1 v + b1) + b2, then dropout.

    `wide`: width of v, the vectors of all fields; W1 has `reduction` times as many outputs as x has values.
    """

    def __init__(self, model: ClickModel, wide: int, inputs: int, outputs: int, reduction: float, norm: bool) -> None:
        super().__init__()
        self.mask = model.new_mlp(wide, [max(1, int(reduction * inputs))], inputs, plain=True)
        self.linear = model.new_linear(inputs, outputs, bias=False)
        self.norm = nn.LayerNorm(outputs) if norm else None
        self.drop = Dropout(model.dropout, model.masks) if model.dropout > 0 else None

    def forward(self, v: Tensor, x: Tensor) -> Tensor:
        """Compute the block's output, float[samples, outputs], from the fields' vectors v and the input x."""
        found = self.linear(self.mask(v) * x)
        found = torch.relu(found if self.norm is None else self.norm(found))
        return found if self.drop is None else self.drop(found)


class MaskNet(ClickModel):
    """MaskNet (Wang et al., 2021): an MLP over the outputs of mask blocks of the widths `blocks`.

    In parallel each block masks the vectors, of which each is normalised first; in series a block masks the output of
    the block before, and the MLP sees the last one.
    """

    def __init__(
        self, blocks: list[Count] | None = None, structure: Literal["parallel", "serial"] = "parallel",
        reduction: Reduction = 2.0, vector_norm: bool = True, block_norm: bool = True, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(**common)
        widths = [64, 64, 64] if blocks is None else blocks
        require(bool(widths), "model.blocks=[] has no block; type for instance model.blocks=[64,64,64].")
        self.numeric_vectors = self.new_numeric_vectors()
        count, self.serial = self.numeric + self.fields, structure == "serial"
        self.scale = nn.Parameter(torch.ones(count, self.dim)) if vector_norm else None
        self.shift = nn.Parameter(torch.zeros(count, self.dim)) if vector_norm else None
        wide = count * self.dim
        inputs = [wide, *widths[:-1]] if self.serial else [wide] * len(widths)
        self.blocks = nn.ModuleList(
            MaskBlock(self, wide, before, after, reduction, block_norm)
            for before, after in zip(inputs, widths, strict=True)
        )
        self.mlp = self.new_mlp(widths[-1] if self.serial else sum(widths), self.hidden)

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the MLP's logit."""
        v = self.field_vectors(numeric, vectors)
        x = v
        if self.scale is not None and self.shift is not None:
            x = nn.functional.layer_norm(v, (self.dim,)) * self.scale + self.shift
        v, x = v.flatten(1), x.flatten(1)
        if not self.serial:
            return (self.mlp(torch.cat([block(v, x) for block in self.blocks], 1)),)
        for block in self.blocks:
            x = block(v, x)
        return (self.mlp(x),)
