"""DIN: attention of the target item over the history that shares its embedding table, then an MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gbactl.checked_dataclasses import Count
from gbactl.errors import require
from gbactl.models.base import ClickModel

Activation = Literal["dice", "prelu", "relu"]


class HistoryModel(ClickModel):
    """Click model that sums up each history by a subclass's `interests`, float[samples, dim], in place of pooling it.

    A history is a multi-valued field that shares the table of a field with one id, the target item. Numeric features,
    vectors and interests go through one MLP. Other multi-valued fields stay pooled. `joint`: the histories tell of the
    same events, so that the vectors of an event are one item, and there is one interest.
    """

    interests: nn.ModuleList  # of each history, or of all: float[samples, width] from target, rows and mask

    def __init__(self, activation: Activation = "dice", joint: bool = False, **common: Any) -> None:
        super().__init__(**common)
        first = self.fields - len(self.list_targets)
        self.targets = [target for target in self.list_targets if target is not None]
        self.raw_fields = [first + i for i, target in enumerate(self.list_targets) if target is not None]
        problem = (
            "needs a history: a multi-valued field that shares the embedding table of a field with one id a sample"
        )
        hint = "with data=synthetic type for instance data.history_length=20"
        require(bool(self.targets), f"model={type(self).__name__.lower()} {problem}; {hint}.")
        every = range(len(self.targets))
        self.groups = [list(every)] if joint else [[history] for history in every]
        self.mlp = self.new_mlp(self.numeric + self.fields * self.dim, self.hidden, activation=activation)

    def forward(self, numeric: Tensor, emb: Tensor, raw: Sequence[tuple[Tensor, Tensor]] = ()) -> Tensor:
        """Compute logits float32[samples]; raw: rows float32[samples, longest, width] and mask of each history."""
        fields = list(emb.unbind(1))
        for group, interest in zip(self.groups, self.interests, strict=True):
            mask = raw[group[0]][1]
            problem = "model.joint=true needs histories of the same lengths in each sample; type model.joint=false."
            require(all(torch.equal(raw[history][1], mask) for history in group[1:]), problem)
            target = torch.cat([emb[:, self.targets[history], : self.dim] for history in group], 1)
            rows = torch.cat([raw[history][0][:, :, : self.dim] for history in group], 2)
            found = interest(target, rows, mask).split(self.dim, 1)
            for history, vector in zip(group, found, strict=True):
                field = self.raw_fields[history]
                fields[field] = torch.cat((vector, emb[:, field, self.dim :]), 1)
        return super().forward(numeric, torch.stack(fields, 1))

    def terms(self, numeric: Tensor, vectors: Tensor) -> Sequence[Tensor]:
        """Compute the MLP's logit."""
        return (self.mlp(torch.cat((numeric, vectors.flatten(1)), 1)),)


class ActivationUnit(nn.Module):
    """Interest sum_j a_j e_j in a target v, with a_j = MLP([v, e_j, v - e_j, v * e_j]) for each item e_j of a history.

    `width`: of v and e_j; `softmax`: of the a_j over the history, divided by sqrt(width) before.
    """

    def __init__(self, model: ClickModel, width: int, hidden: list[int], activation: Activation, softmax: bool) -> None:
        super().__init__()
        self.mlp = model.new_mlp(4 * width, hidden, activation=activation, plain=True)
        self.softmax = softmax

    def forward(self, target: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        """Compute the interest in `target`, both float[samples, width], from a padded history and its mask."""
        # the padding is left out of the MLP, and of Dice's statistics; these need two rows
        at = mask if int(mask.sum()) > 1 else torch.ones_like(mask)
        items, targets = rows[at], target.unsqueeze(1).expand_as(rows)[at]
        scores = self.mlp(torch.cat((targets, items, targets - items, targets * items), 1)).squeeze(1)
        weights = torch.zeros(mask.shape, dtype=scores.dtype).masked_scatter(at, scores)
        if self.softmax:
            weights = masked_softmax(weights * rows.shape[2] ** -0.5, mask)
        return ((weights * mask).unsqueeze(2) * rows).sum(1)


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute the softmax over the items of each history, float[samples, longest]; zeros for an empty history."""
    least = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, least), 1) * mask


class DIN(HistoryModel):
    """Deep Interest Network (Zhou et al., 2018, https://arxiv.org/abs/1706.06978): an activation unit per history.

    `attention`: widths of the unit's hidden layers. As in the paper, the weights are not normalised by default.
    """

    def __init__(
        self, attention: list[Count] | None = None, activation: Activation = "dice", softmax: bool = False,
        joint: bool = False, **common: Any,
    ) -> None:  # fmt: skip
        super().__init__(activation, joint, **common)
        widths = [80, 40] if attention is None else attention
        self.interests = nn.ModuleList(
            ActivationUnit(self, len(group) * self.dim, widths, activation, softmax) for group in self.groups
        )
