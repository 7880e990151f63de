"""xDeepFM: a compressed interaction network (CIN) beside an MLP and the first-order part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gbactl.checked_dataclasses import Count
from gbactl.errors import require
from gbactl.models.base import WideDeep


class XDeepFM(WideDeep):
    """xDeepFM (Lian et al., 2018): wide and deep + a linear function of the sums over dim of all feature maps.

    Map i of layer k is the sum over h, m of W[k, i, h, m] (map h of layer k - 1) * (vector m) + b[k, i], elementwise,
    and layer 0 holds the vectors of all fields. `maps`: number of feature maps by layer.
    """

    def __init__(self, maps: list[Count] | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.numeric_vectors = self.new_numeric_vectors()
        widths = [self.numeric + self.fields, *([128, 128] if maps is None else maps)]
        require(len(widths) > 1, "model.maps=[] has no layer; type for instance model.maps=[128,128].")
        self.layers = nn.ModuleList(self.new_linear(widths[0] * before, after) for before, after in pairwise(widths))
        self.last = self.new_linear(sum(widths[1:]), 1, bias=False)

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the logits of the MLP and of the interaction network."""
        start = self.field_vectors(numeric, vectors).transpose(1, 2)  # [samples, dim, fields]
        maps, sums = start, []
        for layer in self.layers:
            maps = layer((maps.unsqueeze(3) * start.unsqueeze(2)).flatten(2))
            sums.append(maps.sum(1))
        return (*super().terms(numeric, vectors), self.last(torch.cat(sums, 1)))
