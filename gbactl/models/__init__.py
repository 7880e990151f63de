"""Click models, whose input are embedding rows that the kernels have looked up.

Importing this package does not import torch; building a model does (1-2 s).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gbactl.errors import ConfigError
from gbactl.models.options import ModelConfig, dense_size, row_width

if TYPE_CHECKING:
    from gbactl.models.base import ClickModel

NAMES = ("deepfm", "wide_deep")


def build(cfg: ModelConfig, numeric: int, fields: int, seed: int) -> ClickModel:
    """Build a model for the given numbers of numeric and categorical fields; initial values depend on `seed` alone.

    Raises ConfigError for a name that is not known.
    """
    from gbactl.models.deepfm import DeepFM
    from gbactl.models.wide_deep import WideDeep

    known: dict[str, type[ClickModel]] = {"deepfm": DeepFM, "wide_deep": WideDeep}
    if cfg.name not in known:
        raise ConfigError(f"model.name={cfg.name} is not known; type model= one of: {', '.join(NAMES)}.")
    return known[cfg.name](cfg, numeric, fields, seed)


__all__ = ["NAMES", "ModelConfig", "build", "dense_size", "row_width"]
