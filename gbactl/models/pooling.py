"""Distinct rows of a batch's ids, and pooling of multi-valued fields: the rows of each list become one row.

A model with an attribute `raw_fields`, numbers of multi-valued fields, gets the lists of these fields raw as well.

The flat order of a batch's ids is: all columns of `ids`, sample by sample, then the values of the lists. Finding the
distinct rows, pulling them and summing gradients by row treat all of them alike.

Pooling a sum is the kernel that sums gradients by row, and its gradient is the kernel that gathers rows: no code of
their own, and the same bits with both sets of kernels. It costs two passes over the values' rows in each direction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gbactl.data.dataset import Batch, Jagged, Schema
from gbactl.kernels.base import DistinctRows, Floats, Ints, Kernels

Longs = NDArray[np.int64]
RawField = tuple[Floats, NDArray[np.bool_]]  # rows float32[samples, longest list, W], and where they are of values


def distinct_rows(kernels: Kernels, batch: Batch, schema: Schema, shards: int) -> DistinctRows:
    """Find the distinct rows of a batch's ids, in flat order. Raises DataError, ValueError for ids out of bounds."""
    if batch.jagged is None:
        return kernels.dedupe(batch.ids, schema.offsets, shards)
    of_columns = (batch.ids + schema.offsets[: schema.columns]).reshape(-1)
    rows = np.concatenate([of_columns, rows_of_values(batch.jagged, schema)])
    if (batch.ids < 0).any() or schema.rows > 1 << 31:
        raise ValueError("Refused: an index lies outside the table.")
    return kernels.dedupe(rows.astype(np.int32)[:, None], np.zeros(1, np.int64), shards)


def rows_of_values(jagged: Jagged, schema: Schema) -> Longs:
    """Return the rows of all values of lists in the fused embedding table. Raises DataError for lists out of bounds."""
    lengths = jagged.checked_lengths(schema)
    first = np.tile(schema.offsets[schema.columns :], len(lengths) // jagged.lists)
    rows: Longs = np.add(jagged.values, np.repeat(first, lengths))
    return rows


class ListPooling:
    """Pooling and padding of a batch's lists: from their values' rows to one row per list, and gradients back.

    A list of `max` passes the gradient of a column on to the first of the values that are greatest in this column."""

    def __init__(self, kernels: Kernels, schema: Schema, jagged: Jagged) -> None:
        self.kernels, self.weights, self.lists = kernels, jagged.weights, jagged.lists
        self.lengths: Longs = np.diff(jagged.offsets)
        self.of_value: Ints = np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)
        kinds = np.array([field.pooling for field in schema.lists])
        self._scale = self._mean_scale(kinds == "mean") if (kinds == "mean").any() else None
        self._largest = np.flatnonzero((kinds == "max")[self.of_value % self.lists])  # values of lists of max
        self._passes: NDArray[np.bool_] = np.empty((0, 0), np.bool_)
        self._padded: list[tuple[Longs, NDArray[np.bool_]]] = []  # positions of a raw field's values, and its mask
        self._first = schema.columns

    def _mean_scale(self, is_mean: NDArray[np.bool_]) -> Floats:
        """Return the factor of each list's sum, float32[lists, 1]: 1 or, for a mean, 1 / the sum of its weights."""
        total = self.lengths.astype(np.float64)
        if self.weights is not None:
            total = np.bincount(self.of_value, self.weights, minlength=len(total)).astype(np.float64)
        of_mean = np.divide(1.0, total, out=np.zeros_like(total), where=total > 0)
        every = np.where(np.tile(is_mean, len(total) // self.lists), of_mean, 1.0)
        return every.astype(np.float32)[:, None]

    def pool(self, rows: Floats) -> Floats:
        """Pool the values' rows float32[values, W] to float32[samples, lists, W]; weights scale `rows` in place."""
        if self.weights is not None:
            rows *= self.weights[:, None]
        pooled = np.empty((len(self.lengths), rows.shape[1]), np.float32)
        self.kernels.segment_sum(rows, self.of_value, pooled)
        if self._scale is not None:
            pooled *= self._scale
        if len(self._largest):
            self._take_largest(rows[self._largest], pooled)
        return pooled.reshape(-1, self.lists, rows.shape[1])

    def _take_largest(self, rows: Floats, pooled: Floats) -> None:
        lists, starts, counts = np.unique(self.of_value[self._largest], return_index=True, return_counts=True)
        greatest = np.maximum.reduceat(rows, starts, axis=0)
        pooled[lists] = greatest
        equal = rows == np.repeat(greatest, counts, axis=0)
        seen = np.cumsum(equal, axis=0, dtype=np.int32)
        before = np.repeat(seen[starts] - equal[starts], counts, axis=0)
        self._passes = equal & (seen - before == 1)

    def pad(self, rows: Floats, raw_fields: Sequence[int]) -> list[RawField]:
        """Return the lists of `raw_fields`, each padded with zeros to the field's longest (at least 1), with masks.

        `rows`: rows of the values after `pool`, which scales them in place.
        The values of a list stand at its beginning, in their order."""
        found: list[RawField] = []
        self._padded = []
        for field in raw_fields:
            lengths = self.lengths[field - self._first :: self.lists]
            mask = np.arange(max(1, int(lengths.max(initial=0)))) < lengths[:, None]
            at = np.flatnonzero(self.of_value % self.lists == field - self._first)
            padded = np.zeros((*mask.shape, rows.shape[1]), np.float32)
            padded[mask] = rows[at]
            self._padded.append((at, mask))
            found.append((padded, mask))
        return found

    def unpool(self, gradient: Floats, out: Floats, of_raw: Sequence[Floats] = ()) -> None:
        """Compute the gradient of the values' rows, `out` float32[values, W], from the pooled rows' `gradient`.

        `of_raw`: the gradients of the padded rows of the fields that `pad` was asked for."""
        pooled = np.array(gradient, np.float32).reshape(len(self.lengths), -1)
        if self._scale is not None:
            pooled *= self._scale
        self.kernels.gather(pooled, self.of_value, out)
        if len(self._largest):
            out[self._largest] *= self._passes
        for (at, mask), of_rows in zip(self._padded, of_raw, strict=True):
            out[at] += of_rows[mask]
        if self.weights is not None:
            out *= self.weights[:, None]
