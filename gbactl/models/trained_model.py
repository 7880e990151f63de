"""Trained model with its embedding rows, for predictions outside of a run."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gbactl.kernels.base import Floats
from gbactl.models.base import ClickModel
from gbactl.models.flat_parameters import FlatModel


class TrainedModel(nn.Module):
    """Click model that looks its rows up itself: click probabilities from numeric fields and ids.

    dense: its dense parameters and running statistics as one vector; rows: float32[rows of all fields, dim + 1];
    offsets: int64[fields], the first row of each field."""

    def __init__(self, model: ClickModel, dense: Floats, rows: Tensor, offsets: Tensor) -> None:
        super().__init__()
        flat = FlatModel(model)
        flat.load(dense)
        flat.restore_running()
        self.model = model
        self.register_buffer("rows", rows)
        self.register_buffer("offsets", offsets)
        self.eval()

    @torch.inference_mode()
    def forward(self, numeric: Tensor, ids: Tensor) -> Tensor:
        """Compute click probabilities float32[samples].

        numeric: float32[samples, numeric fields]; ids: int[samples, fields], each counted within its field."""
        emb = self.get_buffer("rows")[ids.long() + self.get_buffer("offsets")]
        return torch.sigmoid(self.model(numeric, emb))
