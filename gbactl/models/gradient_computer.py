"""Worker's forward and backward pass: from a batch and its embedding rows to loss, row gradients and predictions.

Nothing of the size of the dense vector is allocated except autograd's own gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gbactl.data.dataset import Dataset
from gbactl.models import INT63, ModelConfig, build, dimension_mask
from gbactl.models.flat_parameters import FlatModel
from gbactl.models.pooling import RawField
from gbactl.quality_metrics import ranked_pairs

Floats = NDArray[np.float32]
RawTensors = Sequence[tuple[Tensor, Tensor]]  # rows float32[B, L, W] and mask bool[B, L] of each raw field


def _tensor(array: NDArray[Any]) -> Tensor:
    """Convert an array to a tensor, without a copy unless it is read-only (a memory-mapped slice)."""
    floats = np.ascontiguousarray(array, dtype=np.float32)
    return torch.from_numpy(floats if floats.flags.writeable else floats.copy())


def raw_tensors(raw: Sequence[RawField]) -> RawTensors:
    """Convert rows and masks of raw fields to tensors, without a copy."""
    return [(torch.from_numpy(rows), torch.from_numpy(mask)) for rows, mask in raw]


def seed_torch(key: int) -> None:
    """Seed torch's global generator, from which a model without the method `seed_dropout` draws its masks."""
    torch.default_generator.manual_seed(key & INT63)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Context in which torch runs on `count` threads, as their number changes the last bits of sums."""
    before = torch.get_num_threads()
    if count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class GradientComputer:
    """Gradient computation that depends on the loaded parameters, the batch and its random key alone."""

    def __init__(self, model: nn.Module, precision: str = "fp32", mask: Floats | None = None) -> None:
        """Wrap `model`; `precision` is fp32 or bf16 (autocast).

        `mask`, if given, multiplies the rows of each field (see `models.dimension_mask`)."""
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision {precision} is neither fp32 nor bf16")
        self.model = model
        self.flat = FlatModel(model)
        self._seed: Callable[[int], None] = getattr(model, "seed_dropout", seed_torch)
        self._low = precision == "bf16"
        self.raw_fields: Sequence[int] = getattr(model, "raw_fields", ())  # multi-valued fields it wants raw as well
        self._mask = None if mask is None else torch.from_numpy(mask)
        self.of_raw: list[Floats] = []  # gradients of their rows, of the last batch
        self.ranked = (0.0, 0)  # of the last batch, by the model before its step: see quality_metrics.ranked_pairs

    @classmethod
    def of(cls, cfg: ModelConfig, dataset: Dataset, seed: int, precision: str) -> GradientComputer:
        """Build a configured model for the fields of a data set. Raises ConfigError."""
        schema = dataset.schema
        model = build(cfg, schema.numeric, schema.fields, seed, schema.list_targets)
        return cls(model, precision=precision, mask=dimension_mask(cfg, schema, dataset.meta["field_names"]))

    def logits(self, numeric: Tensor, emb: Tensor, raw: RawTensors = ()) -> Tensor:
        """Compute logits float32[B]."""
        return self.output(numeric, emb, raw).float()

    def output(self, numeric: Tensor, emb: Tensor, raw: RawTensors = ()) -> Tensor:
        """Compute what the model returns, in the configured precision."""
        if self._mask is not None:
            emb = emb * self._mask
            raw = [(rows * self._mask[field], there) for field, (rows, there) in zip(self.raw_fields, raw, strict=True)]
        given = (numeric, emb, raw) if raw else (numeric, emb)
        if not self._low:
            return self.model(*given)  # type: ignore[no-any-return]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.model(*given)  # type: ignore[no-any-return]

    def gradient(
        self, numeric: Floats, labels: NDArray[Any], emb: Floats, rng_key: int, raw: Sequence[RawField] = ()
    ) -> tuple[float, Floats]:
        """Compute a batch's mean loss (nats) and the gradient of the rows `emb`; the model keeps the dense gradient.

        numeric float32[B, N], labels [B] of 0 and 1, emb float32[B, F, W], read and not kept; raw: rows and mask of
        each of `raw_fields`, whose gradients are then in `of_raw`. The dense gradient is fetched with
        `flat.gradient_into`. Raises ValueError for an empty batch.
        """
        if emb.shape[0] == 0:
            raise ValueError("a batch of no samples has no gradient")
        if not self.model.training:
            self.model.train()
        self._seed(rng_key)
        self.flat.use_running_statistics(emb.shape[0] == 1)
        rows = _tensor(emb).requires_grad_()
        lists = raw_tensors(raw)
        of_lists = [each.requires_grad_() for each, _ in lists]
        logits = self.logits(_tensor(numeric), rows, lists)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, _tensor(labels))
        leaves, bare = (rows, *of_lists, *self.flat.parameters), not rows.numel()  # data without fields
        of_rows, *others = torch.autograd.grad(loss, leaves, materialize_grads=bare)
        self.of_raw, of_dense = [each.numpy() for each in others[: len(lists)]], others[len(lists) :]
        self.flat.keep_gradients(tuple(of_dense))
        self.ranked = ranked_pairs(labels, logits.detach().numpy())
        return loss.item(), of_rows.contiguous().view(-1, emb.shape[2]).numpy()

    @torch.inference_mode()
    def predict(self, numeric: Floats, emb: Floats, raw: Sequence[RawField] = ()) -> Floats:
        """Compute click probabilities float32[samples], with running statistics and without dropout.

        The same batch gives the same bits whatever number of threads torch trains with.
        """
        self.model.eval()
        self.flat.restore_running()
        with torch_threads(1):
            return torch.sigmoid(self.logits(_tensor(numeric), _tensor(emb), raw_tensors(raw))).numpy()
