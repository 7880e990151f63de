"""Dry run of a model of the user's own on one batch, before training: does it keep the contract of a model?

forward(numeric float32[B, N], fields float32[B, F, W]) returns logits float32[B] in train and in eval mode, for any B
from 1 on; every parameter is a float32 and has a gradient. A model with the attribute `raw_fields`, numbers of
multi-valued fields, has forward(numeric, fields, raw): raw holds for each of these fields the rows float32[B, L, W] of
its lists, padded with zeros, and a mask bool[B, L]; L is the longest list of the batch, at least 1.

A run can be replayed if gradients depend on the parameters, the batch and its seed alone. The dry run costs a few
passes over a small batch. gbactl's own models are not run: tests have seen to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gbactl.configured_classes import own_code_error
from gbactl.data.dataset import Batch, Dataset, Schema
from gbactl.errors import GbactlError, require
from gbactl.kernels import load
from gbactl.kernels.base import Floats
from gbactl.models import ModelConfig, build, dimension_mask, row_width, warning_of_any_options
from gbactl.models.gradient_computer import GradientComputer, raw_tensors
from gbactl.models.pooling import ListPooling, RawField

SAMPLES = 32  # of the batch; one of a single sample follows, as a phase may end with it
SHAPES = (
    "Squeeze",
    "Unsqueeze",
    "View",
    "UnsafeView",
    "Reshape",
    "Select",
    "Slice",
    "ToCopy",
)  # beginnings of names of autograd
KEYS = (1, 2, 1)  # seeds of three batches, of which the first and the last have to give the same


class Findings(NamedTuple):
    """Result of a dry run: why a run of the model cannot be replayed, and what is doubtful about the model; or ""."""

    obstacle: str = ""
    doubt: str = ""


def dry_run(cfg: ModelConfig, dataset: Dataset, seed: int, precision: str) -> Findings:
    """Test a model on samples of the first day or split.

    Raises ConfigError, one sentence, where the model breaks the contract."""
    batch, schema = dataset.splits[0].slice(0, min(SAMPLES, dataset.splits[0].rows)), dataset.schema
    random, width, scale = np.random.default_rng(seed), row_width(cfg), max(cfg.init_scale, 0.01)
    rows = (random.uniform(-1, 1, (len(batch), schema.fields, width)) * scale).astype(np.float32)
    model = build(cfg, schema.numeric, schema.fields, seed, schema.list_targets)
    _check_parameters(cfg, model)
    mask = dimension_mask(cfg, schema, dataset.meta["field_names"])
    with _errors_of_model(cfg, model):
        computer = GradientComputer(model, precision=precision, mask=mask)
        _check_raw_fields(cfg, computer.raw_fields, schema)
        raw: list[RawField] = []
        if batch.jagged is not None:
            values = (random.uniform(-1, 1, (len(batch.jagged.values), width)) * scale).astype(np.float32)
            raw = ListPooling(load(), schema, batch.jagged).pad(values, computer.raw_fields)
        doubt = ""
        for count in (len(batch), 1):
            lists = [_head(each, count) for each in raw]
            doubt = _check_batch(cfg, computer, batch.numeric[:count], rows[:count], lists)
        doubts = filter(None, (doubt, warning_of_any_options(cfg, type(model))))
        return Findings(_obstacle(cfg, computer, batch, rows, raw), " ".join(doubts))


def _check_raw_fields(cfg: ModelConfig, asked: Sequence[int], schema: Schema) -> None:
    """Raise ConfigError unless each field that the model wants raw is a multi-valued field of the data."""
    listed = list(range(schema.columns, schema.fields))
    for field in asked:
        available = f"the multi-valued fields are {listed}" if listed else "the data have no multi-valued fields"
        require(field in listed, f"model.target={cfg.target} wants field {field} raw (raw_fields), but {available}.")


def _head(field: RawField, count: int) -> RawField:
    """Return a raw field of the first `count` samples; for one sample with an empty list, to test that case."""
    rows, mask = field
    return (rows[:count], mask[:count]) if count > 1 else (0 * rows[:1, :1], np.zeros((1, 1), np.bool_))


def _check_parameters(cfg: ModelConfig, model: nn.Module) -> None:
    what = f"model.target={cfg.target}"
    named = dict(model.named_parameters())
    require(bool(named), f"{what} has no parameters, so there is nothing dense to train; give it a bias at least.")
    for name, parameter in named.items():
        lazy = isinstance(parameter, nn.parameter.UninitializedParameter)
        require(not lazy, f"{what} has the lazy parameter {name}; give its layer the width of its input.")
        kind = str(parameter.dtype).removeprefix("torch.")
        require(kind == "float32", f"{what} has the parameter {name} of type {kind}; all of them have to be float32.")
        problem = f"{what} has the parameter {name} without a gradient (requires_grad=False); make it a buffer."
        require(parameter.requires_grad, problem)


@contextlib.contextmanager
def _errors_of_model(cfg: ModelConfig, model: nn.Module, when: str = "in a dry run") -> Iterator[None]:
    """Context that re-raises an exception of the user's model as one sentence."""
    try:
        yield
    except GbactlError:
        raise
    except Exception as error:
        raise own_code_error(f"model.target={cfg.target} fails {when}", error, type(model).__module__) from error


def _logits(what: str, output: Any, when: str) -> Tensor:
    """Return a model's output as logits. Raises ConfigError unless it is a tensor."""
    kind = type(output).__name__
    hint = "; return the logits alone" if isinstance(output, tuple | list | dict) else "; end forward with return"
    require(isinstance(output, Tensor), f"{what} returns a {kind}{when}, not a tensor of logits{hint}.")
    return output.float()  # type: ignore[no-any-return]


def _check_batch(
    cfg: ModelConfig, computer: GradientComputer, numeric: Floats, rows: Floats, raw: Sequence[RawField]
) -> str:
    """Raise ConfigError unless a batch's logits and gradients exist, are finite and have the right shape.

    Logits are computed in train and in eval mode. Returns a warning where they seem to be probabilities, else ""."""
    what, count = f"model.target={cfg.target}", len(rows)
    named = dict(computer.model.train().named_parameters())
    computer.flat.use_running_statistics(count == 1)
    fields = torch.from_numpy(rows).requires_grad_()
    lists = raw_tensors(raw)
    of_raw = {f"raw field {n}": each.requires_grad_() for n, (each, _) in zip(computer.raw_fields, lists, strict=True)}
    shapes = f"numeric {list(numeric.shape)} and fields {list(rows.shape)}"
    shapes += f" and raw fields {', '.join(str(list(each.shape)) for each, _ in raw)}" if raw else ""
    with _errors_of_model(cfg, computer.model, f"on a batch of {shapes}"):
        logits = _logits(what, computer.output(torch.tensor(numeric), fields, lists), "")
        shape = f"{what} returns logits of shape {list(logits.shape)} for a batch of {count}, not [{count}]"
        hint = "; end forward with .squeeze(1)" if logits.dim() == 2 else "; squeeze(1) keeps the batch, squeeze() not"
        require(tuple(logits.shape) == (count,), f"{shape}{hint if logits.numel() == count else ''}.")
        require(bool(torch.isfinite(logits).all()), f"{what} returns logits that are NaN or infinite.")
        require(logits.requires_grad, f"{what} returns logits without a gradient; leave out detach() and no_grad().")
        of_dense = {f"the parameter {name}": each for name, each in named.items()}
        leaves = {"the looked-up fields": fields, **of_raw, **of_dense}
        for each in _leaves(logits):
            hint = "create it in __init__, and keep layers in an nn.ModuleList instead of a list"
            problem = f"{what} uses a parameter of shape {list(each.shape)} that is not among its parameters()"
            require(any(each is leaf for leaf in leaves.values()), f"{problem}, so that it is never trained; {hint}.")
        found = torch.autograd.grad(logits.sum(), list(leaves.values()), allow_unused=True)
        with torch.inference_mode():
            computer.model.eval()
            _logits(what, computer.output(torch.tensor(numeric), torch.from_numpy(rows), lists), " in eval mode")
        shares = computer.predict(numeric, rows, raw)
        shape = f"{what} returns logits of shape {list(shares.shape)} in eval mode, for a batch of {count}"
        require(shares.shape == (count,), f"{shape}, not [{count}].")
        require(bool(np.isfinite(shares).all()), f"{what} returns logits that are NaN in eval mode.")
        for (which, leaf), gradient in zip(leaves.items(), found, strict=True):
            hint = "compute the logits from them, too" if leaf is fields else "take it out"
            problem = f"{what} gives no gradient to {which}, which forward does not use; {hint}."
            require(gradient is not None or not leaf.numel(), problem)  # the rows of data without fields
            finite = gradient is None or bool(torch.isfinite(gradient).all())
            require(finite, f"{what} gives a gradient to {which} that is NaN or infinite.")
    return _warning_of_sigmoid(what, logits)


def _leaves(logits: Tensor) -> list[Tensor]:
    """Return the leaf tensors of autograd's graph from which logits were computed, such as parameters."""
    found, nodes, seen = list[Tensor](), [logits.grad_fn], set[Any]()
    while nodes:
        node: Any = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            nodes += [each for each, _ in node.next_functions]
    return found


def _warning_of_sigmoid(what: str, logits: Tensor) -> str:
    """Return a warning if the model's last operation, apart from reshapes and casts, is a sigmoid; else ""."""
    made_by: Any = logits.grad_fn
    while made_by is not None and made_by.name().startswith(SHAPES):
        made_by = made_by.next_functions[0][0]
    ends = made_by is not None and made_by.name().startswith("SigmoidBackward")
    return f"{what} ends with a sigmoid, which the loss applies again; return logits, without it." if ends else ""


def _obstacle(cfg: ModelConfig, computer: GradientComputer, batch: Batch, rows: Floats, raw: Sequence[RawField]) -> str:
    """Describe why a gradient depends on more than parameters, batch and seed; "" if it does not."""
    norms = {id(each) for norm in computer.flat.norms for each in norm.buffers()}
    buffers = {name: each for name, each in computer.model.named_buffers() if id(each) not in norms}
    before = {name: each.clone() for name, each in buffers.items()}
    seen = []
    for key in KEYS:
        order = slice(None, None, -1 if key == KEYS[1] else 1)
        computer.flat.restore_running()
        lists = [(each[order].copy(), mask[order].copy()) for each, mask in raw]
        loss, of_rows = computer.gradient(batch.numeric[order], batch.labels[order], rows[order], key, lists)
        dense = np.empty(computer.flat.size, np.float32)
        computer.flat.gradient_into(dense)
        seen.append((loss, of_rows.tobytes(), dense.tobytes(), *(each.tobytes() for each in computer.of_raw)))
    what = f"The run cannot be replayed: model.target={cfg.target}"
    if changed := [name for name, each in buffers.items() if not torch.equal(each, before[name])]:
        return f"{what} changes its buffer {changed[0]} in training, of which each worker has its own, unsaved."
    if seen[0] != seen[-1]:
        return (
            f"{what} gives another gradient to the same batch with the same seed: it draws random numbers from "
            "elsewhere than torch, or remembers earlier batches."
        )
    first, again = (computer.predict(batch.numeric, rows, raw).tobytes() for _ in range(2))
    return "" if first == again else f"{what} draws random numbers in eval mode, too: its AUC is another each time."
