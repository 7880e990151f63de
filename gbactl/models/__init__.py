"""Click models over looked-up rows: the embedding lookup itself happens outside, in the kernels.

Importing this package does not import torch; building a model does (1-2 s).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gbactl.errors import ConfigError

if TYPE_CHECKING:
    from gbactl.config import ModelConfig
    from gbactl.models.base import ClickModel

NAMES = ("deepfm", "wide_deep")


def row_width(cfg: ModelConfig) -> int:
    """W, the floats of one row: `dim` for the factors and the MLP, one first-order weight."""
    return cfg.dim + 1


def dense_size(cfg: ModelConfig, numeric: int, fields: int) -> int:
    """Values of the dense vector, parameters and batch norm's buffers, of the model that `build` would make."""
    own = {"deepfm": numeric * cfg.dim}.get(cfg.name, 0)
    widths = [numeric + fields * cfg.dim, *cfg.hidden]
    layers = sum((inputs + 1) * outputs for inputs, outputs in pairwise([*widths, 1]))
    return 1 + numeric + own + layers + (4 * sum(cfg.hidden) if cfg.batch_norm else 0)


def build(cfg: ModelConfig, numeric: int, fields: int, seed: int) -> ClickModel:
    """A model for N numeric and F categorical fields; its start depends on `seed` alone.

    Raises ConfigError for a name that is not known.
    """
    from gbactl.models.deepfm import DeepFM
    from gbactl.models.wide_deep import WideDeep

    known: dict[str, type[ClickModel]] = {"deepfm": DeepFM, "wide_deep": WideDeep}
    if cfg.name not in known:
        raise ConfigError(f"model.name={cfg.name} is not known; type model= one of: {', '.join(NAMES)}.")
    return known[cfg.name](cfg, numeric, fields, seed)
