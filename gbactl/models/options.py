"""Configuration of a click model, and the sizes that follow from it (does not import torch)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated

from gbactl.checked_dataclasses import Bounds, Count, ShareBelowOne, SomeShare


@dataclass
class ModelConfig:
    """Configuration of a click model over looked-up rows."""

    name: str = "deepfm"
    dim: Annotated[int, Bounds(at_least=1, at_most=65_536)] = 16
    hidden: list[Count] = field(default_factory=lambda: [400, 400, 400])
    dropout: ShareBelowOne = 0.0
    batch_norm: bool = False
    batch_norm_momentum: SomeShare = 0.1
    init_scale: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.01


def row_width(cfg: ModelConfig) -> int:
    """Compute the width of an embedding row in floats: `dim` for the factors and the MLP, one first-order weight."""
    return cfg.dim + 1


def dense_size(cfg: ModelConfig, numeric: int, fields: int) -> int:
    """Compute the length of the dense vector (parameters and batch-norm buffers) of a configured model."""
    own = {"deepfm": numeric * cfg.dim}.get(cfg.name, 0)
    widths = [numeric + fields * cfg.dim, *cfg.hidden]
    layers = sum((inputs + 1) * outputs for inputs, outputs in pairwise([*widths, 1]))
    return 1 + numeric + own + layers + (4 * sum(cfg.hidden) if cfg.batch_norm else 0)
