"""DIEN: a GRU over the history, and a second one whose updates are weighted by the attention of the target item.

The paper's auxiliary loss (each state is to tell the next item from a random one) is left out: it needs negative items
of the data, and a model here computes logits alone, of which the run takes one loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gbactl.models.base import ClickModel
from gbactl.models.din import Activation, HistoryModel, masked_softmax


class GatedRecurrence(nn.Module):
    """GRU with weighted updates, as wide as its input; it returns the state after each item of a history.

    u = weight * sigmoid(W_u x + U_u h + b_u), r = sigmoid(W_r x + U_r h + b_r), and the next state is (1 - u) h + u c
    with c = tanh(W_c x + r * (U_c h) + b_c). A weight of 0 leaves the state as it is. With weights of 1 it is a GRU,
    with those of an attention an AUGRU (a GRU with attentional update gate).
    """

    def __init__(self, model: ClickModel, width: int) -> None:
        super().__init__()
        self.inputs = model.new_linear(width, 3 * width)  # the matrices W of u, r and c
        self.states = model.new_linear(width, 3 * width, bias=False)  # U

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        """Compute the states after the items of x, both float[samples, longest, width]; `weights`: of the updates."""
        state, found = torch.zeros_like(x[:, 0]), []
        for step, weight in zip(self.inputs(x).unbind(1), weights.unsqueeze(2).unbind(1), strict=True):
            update, reset, own = step.chunk(3, 1)
            by_update, by_reset, by_own = self.states(state).chunk(3, 1)
            new = torch.tanh(own + torch.sigmoid(reset + by_reset) * by_own)
            state = state + weight * torch.sigmoid(update + by_update) * (new - state)
            found.append(state)
        return torch.stack(found, 1)


class InterestEvolution(nn.Module):
    """Last state of an AUGRU over the states h_t of a GRU, with attention a_t = softmax_t(h_t^T W v) of a target v."""

    def __init__(self, model: ClickModel, width: int) -> None:
        super().__init__()
        self.extraction, self.evolution = GatedRecurrence(model, width), GatedRecurrence(model, width)
        self.attention = model.new_linear(width, width, bias=False)

    def forward(self, target: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """Compute the interest in `target`, both float[samples, width], from a padded history and its mask."""
        states = self.extraction(rows, mask.to(rows.dtype))
        scores = (states * self.attention(target).unsqueeze(1)).sum(2)
        evolved: Tensor = self.evolution(states, masked_softmax(scores, mask))
        return evolved[:, -1]


class DIEN(HistoryModel):
    """Deep Interest Evolution Network (Zhou et al., 2019, https://arxiv.org/abs/1809.03672), without auxiliary loss.

    A history is read from its first item to its last. The states are as wide as its items.
    """

    def __init__(self, activation: Activation = "dice", joint: bool = False, **common: Any) -> None:
        super().__init__(activation, joint, **common)
        self.interests = nn.ModuleList(InterestEvolution(self, len(group) * self.dim) for group in self.groups)
