"""Flat float32 vector (parameters, then batch-norm statistics) that backs a whole model: loading is one memcpy.

The statistics (Q values) are the running mean and variance of each batch-norm layer. The memory is that of the vector
once, plus Q. Other buffers of a model are no part of the vector: every process has them as the model was built.

The module also has a trained model with its embedding rows, for predictions outside of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gbactl.data.dataset import Jagged, Schema
from gbactl.errors import DataError
from gbactl.kernels import load
from gbactl.kernels.base import Floats, address
from gbactl.models.pooling import ListPooling, rows_of_values
from gbactl.store.dense import DenseSpec

Vector = NDArray[np.float32]
ALIGNMENT = 64  # bytes, as torch aligns its own memory
MOST_VIEWS = 8


def dense_tensors(model: nn.Module) -> tuple[list[nn.Parameter], list[_BatchNorm], list[Tensor]]:
    """List the tensors that make a model's vector: parameters, and the statistics of the batch-norm layers listed."""
    norms = [norm for norm in model.modules() if isinstance(norm, _BatchNorm) and norm.running_mean is not None]
    pairs = ((norm.running_mean, norm.running_var) for norm in norms)
    return list(model.parameters()), norms, [each for pair in pairs for each in pair if each is not None]


class FlatModel:
    """Model whose parameters and batch-norm buffers are views of one flat float32 vector.

    After a training forward pass the buffers hold the statistics of that batch alone: momentum 1 makes them so, mean
    and unbiased variance, without computing them a second time. The running values are kept in the dense vector."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters, self.norms, self._buffers = dense_tensors(model)
        self.momentum = float(self.norms[0].momentum or 0.0) if self.norms else 0.0
        for norm in self.norms:
            norm.momentum = 1.0
        self.params = sum(p.numel() for p in self.parameters)
        self.buffers = sum(b.numel() for b in self._buffers)
        self._own = torch.empty(self.params + self.buffers, dtype=torch.float32)
        self._numpy: Vector = self._own.numpy()
        self.vector = self._numpy  # in the model's own memory; writing to it changes the model
        self._views: dict[int, tuple[Vector, list[Tensor]]] = {}
        self._spans = self._adopt()
        self._initial = self._numpy.copy()
        self._running = self._numpy[self.params :].copy()
        self._gradients: tuple[Tensor, ...] = ()
        self._listener: Callable[[int, Tensor], None] | None = None
        self._listening = False

    def _adopt(self) -> list[tuple[int, int]]:
        spans, low = [], 0
        for tensor in (*self.parameters, *self._buffers):
            high = low + tensor.numel()
            view = self._own[low:high].view(tensor.shape)
            view.copy_(tensor.detach())
            tensor.data = view
            spans.append((low, high))
            low = high
        return spans

    def use(self, vector: Vector) -> bool:
        """Use `vector` in place as the model's memory until the next `load` or `use`; return False if it was copied.

        False, and a copy, where the vector is not aligned like the model's own memory: sums would differ in bits.
        """
        place = address(vector)
        if place % ALIGNMENT or vector.shape != self._numpy.shape:
            self.load(vector)
            return False
        self._bind(place, vector)
        np.copyto(self._running, vector[self.params :])
        return True

    def use_shared(self, vector: Vector) -> None:
        """Use a vector that others read, too: in place, or copied if the model has buffers, to keep it unchanged."""
        if self.buffers:
            self.load(vector)
        else:
            self.use(vector)

    def _bind(self, place: int, vector: Vector) -> None:
        if place not in self._views:
            if len(self._views) >= MOST_VIEWS:
                self._views.clear()
            tensors = (*self.parameters, *self._buffers)
            parts = torch.from_numpy(vector).split_with_sizes([high - low for low, high in self._spans])
            views = [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]
            self._views[place] = (vector, views)
        self._numpy, views = self._views[place]
        for tensor, view in zip((*self.parameters, *self._buffers), views, strict=True):
            tensor.data = view

    @property
    def dense_spec(self) -> DenseSpec:
        """Layout of the vector: number of parameters and of batch-norm buffers, and the buffers' momentum."""
        return DenseSpec(self.params, self.buffers, self.momentum)

    @property
    def size(self) -> int:
        """Length of the vector: parameters and buffers."""
        return self.params + self.buffers

    def initial(self) -> Vector:
        """Copy the vector of initial values, as the model was built."""
        return self._initial.copy()

    def load(self, vector: Vector) -> None:
        """Copy a vector into the model: the parameters, and the buffers as running statistics of batch norm."""
        if vector.shape != self._numpy.shape:
            raise ValueError(f"the vector has shape {vector.shape}, not ({self.size},)")
        if self._numpy is not self.vector:
            self._bind(address(self.vector), self.vector)
        np.copyto(self._numpy, vector)
        if self.buffers:
            np.copyto(self._running, vector[self.params :])

    def use_own_memory(self) -> None:
        """Return to the model's own memory, with the values from before the first `use`."""
        if self._numpy is not self.vector:
            self._bind(address(self.vector), self.vector)
        self._views.clear()

    def load_slice(self, low: int, values: Vector) -> None:
        """Copy `values` into the model's vector from position `low` on."""
        np.copyto(self._numpy[low : low + len(values)], values)
        start = max(low, self.params)
        if start < low + len(values):
            np.copyto(self._running[start - self.params : low + len(values) - self.params], values[start - low :])

    def use_running_statistics(self, alone: bool) -> None:
        """With `alone`, make batch norm use its running statistics, as a batch of one sample has no variance.

        It then leaves them unchanged."""
        for norm in self.norms:
            norm.training = not alone
        if alone:
            self.restore_running()

    def restore_running(self) -> None:
        """Restore the loaded running statistics, which a training forward pass overwrites with a batch's statistics."""
        if self.buffers:
            np.copyto(self._numpy[self.params :], self._running)

    def keep_gradients(self, gradients: tuple[Tensor, ...]) -> None:
        """Store the gradients of all parameters, in order, in place of the previous call's gradients."""
        self._gradients = gradients

    def listen(self, listener: Callable[[int, Tensor], None] | None) -> None:
        """Call `listener(index, gradient)` for each parameter as soon as a backward pass has computed its gradient."""
        self._listener = listener
        if listener is not None and not self._listening:
            self._listening = True
            for index, parameter in enumerate(self.parameters):
                parameter.register_hook(partial(self._tell, index))  # type: ignore[no-untyped-call]

    def _tell(self, index: int, gradient: Tensor) -> None:
        if self._listener is not None:
            self._listener(index, gradient)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Range (low, high) of each parameter in the vector, in order."""
        return self._spans[: len(self.parameters)]

    def statistics_into(self, out: Vector) -> None:
        """Copy the batch-norm statistics of the last forward pass into `out`."""
        np.copyto(out, self._numpy[self.params :])

    def gradient_into(self, out: Vector) -> None:
        """Copy the last gradient, followed by the batch's batch-norm statistics, into `out`.

        After a batch of one sample the statistics are the running ones. Raises ValueError if out has
        another shape or no gradient was computed.
        """
        if out.shape != self._numpy.shape:
            raise ValueError(f"out has shape {out.shape}, not ({self.size},)")
        if not self._gradients:
            raise ValueError("no gradient was computed yet")
        np.concatenate([gradient.numpy() for gradient in self._gradients], axis=None, out=out[: self.params])
        if self.buffers:
            self.statistics_into(out[self.params :])


class TrainedModel(nn.Module):
    """Model that looks its rows up itself: click probabilities from numeric features and ids.

    dense: its dense parameters and running statistics as one vector; rows: float32[rows of all tables, row width]."""

    def __init__(self, model: nn.Module, dense: Floats, rows: Tensor, schema: Schema) -> None:
        super().__init__()
        flat = FlatModel(model)
        flat.load(dense)
        flat.restore_running()
        self.model, self.schema = model, schema
        self.register_buffer("rows", rows)
        self.register_buffer("offsets", torch.from_numpy(schema.offsets))
        self.eval()

    @torch.inference_mode()
    def forward(self, numeric: Tensor, ids: Tensor, lists: Jagged | None = None) -> Tensor:
        """Compute click probabilities float32[samples].

        numeric: float32[samples, N]; ids: int[samples, columns], each counted within its field; lists: those of the
        multi-valued fields, if the data have such fields. Raises DataError for ids or lists outside of bounds."""
        rows, offsets, columns = self.get_buffer("rows"), self.get_buffer("offsets"), self.schema.columns
        self._check_ids(ids)
        emb = rows[ids.long() + offsets[:columns]]
        if self.schema.lists:
            if lists is None:
                raise DataError("The model has multi-valued fields; give their lists, for instance batch.jagged.")
            values = rows[torch.from_numpy(rows_of_values(lists, self.schema))].numpy()
            pooling = ListPooling(load(), self.schema, lists)
            emb = torch.cat((emb, torch.from_numpy(pooling.pool(values))), 1)
            if raw_fields := getattr(self.model, "raw_fields", ()):
                raw = [tuple(map(torch.from_numpy, each)) for each in pooling.pad(values, raw_fields)]
                return torch.sigmoid(self.model(numeric, emb, raw))
        return torch.sigmoid(self.model(numeric, emb))

    def _check_ids(self, ids: Tensor) -> None:
        sizes = torch.tensor(self.schema.cardinalities[: self.schema.columns], device=ids.device)
        if ids.shape[1:] != sizes.shape:
            raise DataError(f"The ids have the shape {list(ids.shape)}; the model needs [samples, {len(sizes)}].")
        outside = (ids < 0) | (ids >= sizes)
        if outside.any():
            sample, field = outside.nonzero()[0].tolist()
            raise DataError(f"Field {field} has the id {ids[sample, field]}; its ids are from 0 to {sizes[field] - 1}.")
