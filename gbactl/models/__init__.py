"""Click models, whose input are embedding rows that the kernels have looked up.

Importing this package does not import torch; building a model does (1-2 s).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from gbactl.checked_dataclasses import Bounds, Count, ShareBelowOne, SomeShare, did_you_mean, expect
from gbactl.configured_classes import found_class, own_code_error
from gbactl.errors import ConfigError, require

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from gbactl.data.dataset import Schema

INT63 = (1 << 63) - 1
Dimension = Annotated[int, Bounds(at_least=1, at_most=65_536)]


@dataclass
class ModelConfig:
    """Configuration of a click model over looked-up rows.

    `target` is its class; None: that of gbactl's model `name`. `dims`: smaller dimensions than `dim`, by field.
    `options` are the arguments of its constructor beyond those that every model is offered; in files they stand beside
    the other keys."""

    name: str = "deepfm"
    dim: Dimension = 16
    dims: dict[str, Dimension] | None = None
    hidden: list[Count] = field(default_factory=lambda: [400, 400, 400])
    dropout: ShareBelowOne = 0.0
    batch_norm: bool = False
    batch_norm_momentum: SomeShare = 0.1
    init_scale: Annotated[float, Bounds(at_least=0, at_most=1000)] = 0.01
    target: str | None = None
    first_order: bool | None = None
    options: dict[str, Any] = field(default_factory=dict)


def row_width(cfg: ModelConfig) -> int:
    """Compute the width of an embedding row in floats: its vector, and a first-order weight for models that have it.

    By default these are gbactl's own."""
    return cfg.dim + int(cfg.target is None if cfg.first_order is None else cfg.first_order)


def dimension_mask(cfg: ModelConfig, schema: Schema, names: Sequence[str]) -> NDArray[np.float32] | None:
    """Return a mask of each field's rows, float32[fields, row width]: 1 within the field's dimension, 0 beyond it.

    `names`: of the fields. Those that share an embedding table have its dimension. None where no field has one of its
    own. Raises ConfigError for a field that the data do not have, or a dimension above model.dim."""
    if not cfg.dims:
        return None
    import numpy as np

    tables, chosen = schema.table_of, dict[int, tuple[str, int]]()
    for name, dim in cfg.dims.items():
        meant = did_you_mean(name, names) or f"There are: {', '.join(names[:30])}{', ...' if len(names) > 30 else ''}."
        require(name in names, f"model.dims.{name} names no field with ids of these data. {meant}")
        require(dim <= cfg.dim, f"model.dims.{name}={dim} is above model.dim={cfg.dim}; raise model.dim to {dim}.")
        other, of_table = chosen.setdefault(tables[names.index(name)], (name, dim))
        shared = f"model.dims.{name}={dim} and model.dims.{other}={of_table} are of one embedding table"
        require(dim == of_table, f"{shared}, which has one dimension; leave one of them out.")
    mask = np.ones((len(tables), row_width(cfg)), np.float32)
    for place, table in enumerate(tables):
        mask[place, chosen.get(table, ("", cfg.dim))[1] : cfg.dim] = 0
    return mask


def dense_size(cfg: ModelConfig, numeric: int, fields: int, list_targets: Sequence[int | None] = ()) -> int:
    """Count the values of a model's dense vector (parameters and batch-norm buffers). Imports torch.

    gbactl's own models are built without memory for it. Raises ConfigError where a model cannot be built."""
    import torch

    from gbactl.models.flat_parameters import dense_tensors

    with torch.device("meta") if cfg.target is None else contextlib.nullcontext():
        parameters, _, buffers = dense_tensors(build(cfg, numeric, fields, 0, list_targets))
    return sum(each.numel() for each in (*parameters, *buffers))


def build(cfg: ModelConfig, numeric: int, fields: int, seed: int, list_targets: Sequence[int | None] = ()) -> nn.Module:
    """Build a model for `numeric` features and `fields` categorical fields; initial values depend on `seed` alone.

    `list_targets`: of the multi-valued fields, which are the last ones of `fields` (see `Schema`). The constructor gets
    `model.options`, and by name what it wants of: numeric, fields, list_targets, dim, hidden, dropout, batch_norm,
    init_scale, seed, first_order. torch's global generator is seeded for it. Raises ConfigError."""
    import torch
    from torch import nn
    from torch.nn.modules.batchnorm import _BatchNorm

    what = "a model, a subclass of torch.nn.Module"
    kind = found_class("model", cfg.name, cfg.target, what, lambda found: issubclass(found, nn.Module))
    offered = {
        "numeric": numeric, "fields": fields, "dim": cfg.dim, "hidden": list(cfg.hidden), "dropout": cfg.dropout,
        "batch_norm": cfg.batch_norm, "init_scale": cfg.init_scale, "seed": seed,
        "first_order": row_width(cfg) > cfg.dim, "list_targets": tuple(list_targets),
    }  # fmt: skip
    arguments = _arguments(cfg, kind, offered)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed & INT63)
        try:
            model = kind(**arguments)
        except Exception as error:
            if cfg.target is None:
                raise
            raise own_code_error(f"model.target={cfg.target} cannot be built", error, kind.__module__) from error
    for norm in model.modules():
        if isinstance(norm, _BatchNorm):
            norm.momentum = cfg.batch_norm_momentum
    return model  # type: ignore[no-any-return]


def option_hints(name: str) -> dict[str, Any]:
    """Return the annotations of the constructor's parameters of one of gbactl's models."""
    kind = found_class("model", name, None, "a model", lambda found: True)
    return {each.name: each.annotation for each in _parameters(kind, annotated=True)}


def warning_of_any_options(cfg: ModelConfig, kind: type[Any]) -> str:
    """Return a warning of options that a constructor takes only as **kwargs, which may be misspelt; "" without any."""
    own = [each.name for each in _parameters(kind)]
    if not (taken := [name for name in cfg.options if name not in own]):
        return ""
    keys, meant = ", ".join(f"model.{name}" for name in taken), did_you_mean(taken[0], own)
    told = f"model.target={cfg.target} takes {keys} as **arguments, so that a misspelt key is not noticed."
    return f"{told} {meant}".rstrip()


def _parameters(kind: type[Any], annotated: bool = False) -> list[inspect.Parameter]:
    """List a constructor's parameters, with its base's parameters in place of the **arguments that it passes on.

    `annotated`: their annotations are types, which those of a user's class need not be."""
    found = dict[str, inspect.Parameter]()
    for each in kind.__mro__[:-1]:
        if "__init__" in vars(each):
            own = {one.name: one for one in inspect.signature(each, eval_str=annotated).parameters.values()}
            passes_on = [name for name, one in own.items() if one.kind is one.VAR_KEYWORD]
            found = {**own, **found}
            if not passes_on:
                return [one for one in found.values() if one.kind is not one.VAR_KEYWORD]
    return list(found.values())


def _arguments(cfg: ModelConfig, kind: type[Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor. Raises ConfigError for an unknown or a missing option.

    Options of gbactl's own models are checked by type and bounds."""
    every = _parameters(kind, annotated=cfg.target is None)
    named = [each for each in every if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in every)
    taken, what = [each.name for each in named], f"model.target={cfg.target}" if cfg.target else f"model={cfg.name}"
    own = [name for name in taken if name not in offered]
    if not takes_any and (unknown := sorted(set(cfg.options) - set(own))):
        meant = did_you_mean(unknown[0], [*own, *vars(cfg)]) or (
            f"Its own are: {', '.join(own)}." if own else "It has none of its own."
        )
        raise ConfigError(f"{what} has no option {unknown[0]}. {meant}")
    if cfg.target is None:
        for each in named:
            if each.name in cfg.options:
                expect(f"model.{each.name}", cfg.options[each.name], each.annotation, each.default)
    given = {**{name: value for name, value in offered.items() if name in taken}, **cfg.options}
    if lacking := [each.name for each in named if each.default is each.empty and each.name not in given]:
        rename = f", or rename the argument: gbactl passes {', '.join(offered)}" if cfg.target else ""
        raise ConfigError(f"{what} needs the option {lacking[0]}; type model.{lacking[0]}=VALUE{rename}.")
    return given
