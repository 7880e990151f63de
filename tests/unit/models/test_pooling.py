"""Pooling of lists against plain numpy and against autograd, with both sets of kernels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.config import ModelConfig
from gbactl.data.dataset import POOLINGS, Batch, Jagged, ListField, Schema
from gbactl.errors import ConfigError, DataError
from gbactl.kernels import load
from gbactl.models import build, dimension_mask
from gbactl.models.flat_parameters import FlatModel, TrainedModel
from gbactl.models.gradient_computer import GradientComputer
from gbactl.models.pooling import ListPooling, distinct_rows

IDS, WIDTH, LONGEST = 5, 3, 4  # few ids, so that a list repeats some
KERNELS = [load("native"), load("twin")]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, Batch]:
    """A batch with one column and up to three multi-valued fields, some of them in one table; lists may be empty."""
    samples = draw(st.integers(1, 5))
    kinds = draw(st.lists(st.sampled_from(POOLINGS), min_size=1, max_size=3))
    lengths = draw(
        st.lists(st.integers(0, draw(st.sampled_from([0, LONGEST]))), min_size=samples * len(kinds),
                 max_size=samples * len(kinds))
    )  # fmt: skip
    total = sum(lengths)
    values = draw(st.lists(st.integers(0, IDS - 1), min_size=total, max_size=total))
    weights = draw(st.none() | st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=total, max_size=total))
    tables = (0, *draw(st.lists(st.integers(0, len(kinds)), min_size=len(kinds), max_size=len(kinds))))
    first = draw(st.integers(0, 3))  # a slice's offsets do not begin at 0
    offsets = first + np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    jagged = Jagged(
        len(kinds), offsets, np.array(values, np.int32), None if weights is None else np.array(weights, np.float32)
    )
    ids = np.arange(samples, dtype=np.int32)[:, None] % IDS
    schema = Schema(0, (IDS,) * (1 + len(kinds)), tables, tuple(ListField(LONGEST, kind) for kind in kinds))
    return schema, Batch(np.zeros(samples, np.uint8), np.zeros((samples, 0), np.float32), ids, jagged)


def reference(schema: Schema, batch: Batch, table: torch.Tensor) -> torch.Tensor:
    """The model's fields [samples, fields, width], a list at a time."""
    jagged, found = batch.jagged, []
    assert jagged is not None
    bounds = (jagged.offsets - jagged.offsets[0]).tolist()
    for sample in range(len(batch)):
        found.append(table[int(schema.offsets[0]) + int(batch.ids[sample, 0])])
        for place, field in enumerate(schema.lists):
            low, high = (bounds[sample * jagged.lists + place + end] for end in (0, 1))
            at = torch.from_numpy(jagged.values[low:high].astype(np.int64)) + int(schema.offsets[1 + place])
            weights = torch.ones(high - low) if jagged.weights is None else torch.from_numpy(jagged.weights[low:high])
            rows = table[at] * weights[:, None]
            if low == high or (field.pooling == "mean" and float(weights.sum()) == 0):
                found.append(torch.zeros(WIDTH))
            elif field.pooling == "max":
                found.append(torch.stack([rows[int(rows[:, column].argmax()), column] for column in range(WIDTH)]))
            else:
                total = rows.sum(0)
                found.append(total / weights.sum() if field.pooling == "mean" else total)
    return torch.stack(found).reshape(len(batch), schema.fields, WIDTH)


def padded(schema: Schema, batch: Batch, table: torch.Tensor, field: int) -> torch.Tensor:
    """The lists of one field [samples, longest, width], a value at a time."""
    jagged, place = batch.jagged, field - 1
    assert jagged is not None
    bounds = (jagged.offsets - jagged.offsets[0]).tolist()
    cut = [range(*bounds[sample * jagged.lists + place :][:2]) for sample in range(len(batch))]
    out = torch.zeros(len(batch), max(1, *map(len, cut)), WIDTH)
    for sample, values in enumerate(cut):
        for nth, at in enumerate(values):
            weight = 1.0 if jagged.weights is None else float(jagged.weights[at])
            out[sample, nth] = table[int(jagged.values[at]) + int(schema.offsets[field])] * weight
    return out


@settings(deadline=None)
@given(case=cases(), shards=st.integers(1, 3), seed=st.integers(0, 99), raw=st.sets(st.integers(1, 3)))
def test_pooled_and_padded_rows_and_their_gradient_are_those_of_numpy_and_autograd(
    case: tuple[Schema, Batch], shards: int, seed: int, raw: set[int]
) -> None:
    (schema, batch), random = case, np.random.default_rng(seed)
    asked = [field for field in raw if field < schema.fields]
    jagged = batch.jagged
    assert jagged is not None
    table = random.standard_normal((schema.rows, WIDTH)).astype(np.float32)
    upstream = random.standard_normal((len(batch), schema.fields, WIDTH)).astype(np.float32)
    leaf = torch.from_numpy(table).requires_grad_()
    expected = reference(schema, batch, leaf)
    raw_expected = [padded(schema, batch, leaf, field) for field in asked]
    raw_upstream = [random.standard_normal(each.shape).astype(np.float32) for each in raw_expected]
    pairs = zip([expected, *raw_expected], [upstream, *raw_upstream], strict=True)
    sum((one * torch.from_numpy(other)).sum() for one, other in pairs).backward()  # type: ignore[union-attr]
    bits = []
    for kernels in KERNELS:
        unique = distinct_rows(kernels, batch, schema, shards)
        shard = np.repeat(np.arange(shards), unique.counts)
        pulled = table[unique.index * shards + shard]
        rows = pulled[unique.inverse]
        pooling, columns = ListPooling(kernels, schema, jagged), batch.ids.size
        values = rows[columns:].copy()
        pooled, lists = pooling.pool(values), pooling.pad(values, asked)
        for (one, mask), other in zip(lists, raw_expected, strict=True):
            np.testing.assert_array_equal(one, other.detach().numpy())
            assert one.shape[:2] == mask.shape and not one[~mask].any()
        fields = np.concatenate([rows[:columns].reshape(-1, 1, WIDTH), pooled], 1)
        np.testing.assert_allclose(fields, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
        gradient = np.empty_like(rows)
        gradient[:columns] = upstream[:, 0]
        pooling.unpool(upstream[:, 1:], gradient[columns:], raw_upstream)
        sums = np.empty((len(unique.index), WIDTH), np.float32)
        kernels.segment_sum(gradient, unique.inverse, sums)
        whole = np.zeros_like(table)
        whole[unique.index * shards + shard] = sums
        assert leaf.grad is not None
        np.testing.assert_allclose(whole, leaf.grad.numpy(), rtol=1e-5, atol=1e-6)
        bits.append((fields.tobytes(), whole.tobytes()))
    assert bits[0] == bits[1], "native and twin give the same bits"


def test_ids_outside_of_their_tables_are_refused() -> None:
    schema = Schema(0, (IDS, IDS), (), (ListField(2),))
    jagged = Jagged(1, np.array([0, 2]), np.array([1, IDS], np.int32))
    ids = np.zeros((1, 1), np.int32)
    batch = Batch(np.zeros(1, np.uint8), np.zeros((1, 0), np.float32), ids, jagged)
    with pytest.raises(DataError, match="has the id 5, not one below 5"):
        distinct_rows(KERNELS[0], batch, schema, 1)
    good = Jagged(1, np.array([0, 2]), np.array([1, 0], np.int32))
    with pytest.raises(ValueError, match="outside the table"):
        distinct_rows(KERNELS[0], Batch(batch.labels, batch.numeric, ids - 1, good), schema, 1)


def test_a_trained_model_of_raw_fields_looks_up_and_pads_its_lists() -> None:
    schema = Schema(1, (IDS, IDS), (0, 0), (ListField(LONGEST),))
    random, samples = np.random.default_rng(3), 4
    offsets = np.array([0, 2, 2, 6, 7])
    jagged = Jagged(1, offsets, random.integers(0, IDS, 7).astype(np.int32), random.random(7, np.float32))
    ids = np.arange(samples, dtype=np.int32)[:, None]
    batch = Batch(np.zeros(samples, np.uint8), random.random((samples, 1), np.float32), ids, jagged)
    cfg = ModelConfig("din", dim=WIDTH, hidden=[4], first_order=False, options={"attention": [3]})
    model, table = build(cfg, 1, 2, 5, schema.list_targets), torch.randn(schema.rows, WIDTH)
    trained = TrainedModel(model, FlatModel(model).initial(), table, schema)
    numeric, mask = torch.from_numpy(batch.numeric), torch.arange(LONGEST) < torch.from_numpy(np.diff(offsets))[:, None]
    with torch.inference_mode():
        wanted = torch.sigmoid(
            model(numeric, reference(schema, batch, table), [(padded(schema, batch, table, 1), mask)])
        )
    torch.testing.assert_close(trained(numeric, torch.from_numpy(ids), jagged), wanted)


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([[0, 9], [8, 1]], r"^Field 1 has the id 9; its ids are from 0 to 6\.$"),
        ([[0, 6], [-1, 1]], r"^Field 0 has the id -1; its ids are from 0 to 8\.$"),
        ([[0], [1]], r"^The ids have the shape \[2, 1\]; the model needs \[samples, 2\]\.$"),
    ],
)
def test_a_trained_model_takes_no_row_of_another_field(ids: list[list[int]], told: str) -> None:
    schema = Schema(1, (9, 7))
    model = build(ModelConfig("wide_deep", dim=WIDTH, hidden=[4]), 1, 2, 5)
    trained = TrainedModel(model, FlatModel(model).initial(), torch.randn(schema.rows, WIDTH + 1), schema)
    assert trained(torch.zeros(2, 1), torch.tensor([[0, 6], [8, 0]])).shape == (2,)
    with pytest.raises(DataError, match=told):
        trained(torch.zeros(2, 1), torch.tensor(ids))


TABLES = Schema(1, (9, 7, 7, 9), (0, 1, 1, 0), (ListField(2), ListField(2)))
NAMES = ["item", "tag", "tags", "seen"]


@pytest.mark.parametrize(
    ("dims", "kept"),
    [({"item": 2}, [2, 3, 3, 2]), ({"tags": 1, "seen": 3}, [3, 1, 1, 3]), ({"tag": 1, "tags": 1}, [3, 1, 1, 3])],
)
def test_fields_of_one_table_have_one_dimension(dims: dict[str, int], kept: list[int]) -> None:
    for first_order in (False, True):
        mask = dimension_mask(ModelConfig(dim=3, dims=dims, first_order=first_order), TABLES, NAMES)
        assert mask is not None and mask.tolist() == [[*[1] * n, *[0] * (3 - n), *[1] * first_order] for n in kept]
    assert dimension_mask(ModelConfig(dim=3), TABLES, NAMES) is None


@pytest.mark.parametrize(
    ("dims", "told"),
    [
        ({"tagz": 2}, r"model\.dims\.tagz names no field .* Did you mean tag or tags\?"),
        ({"q": 2}, r"model\.dims\.q names no field with ids of these data\. There are: item, tag, tags, seen\.$"),
        ({"item": 4}, r"model\.dims\.item=4 is above model\.dim=3; raise model\.dim to 4\.$"),
        (
            {"item": 2, "seen": 1},
            r"seen=1 and model\.dims\.item=2 are of one embedding table, .* leave one of them out",
        ),
    ],
)
def test_dimensions_that_cannot_be(dims: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        dimension_mask(ModelConfig(dim=3, dims=dims), TABLES, NAMES)


@pytest.mark.parametrize("name", ["deepfm", "din"])
def test_a_smaller_dimension_has_no_other_values_and_trains_none(name: str) -> None:
    """Whatever the values beyond it are, also those of raw lists: the gradient is as if they were zeros."""
    cfg = ModelConfig(name, dim=4, dims={"item": 3, "tag": 1}, hidden=[5])
    mask, drawn = dimension_mask(cfg, TABLES, NAMES), np.random.default_rng(2)
    assert mask is not None
    numeric, labels = drawn.random((6, 1), np.float32), np.arange(6) % 2
    rows = drawn.standard_normal((6, 4, mask.shape[1])).astype(np.float32)
    lists = drawn.standard_normal((2, 6, 2, mask.shape[1])).astype(np.float32)
    there = np.ones((6, 2), np.bool_)
    found = []
    for each, zeros in ((mask, np.ones_like(mask)), (None, mask)):
        computer = GradientComputer(build(cfg, 1, 4, 5, TABLES.list_targets), mask=each)
        raw = [(lists[place] * zeros[field], there) for place, field in enumerate(computer.raw_fields)]
        loss, gradient = computer.gradient(numeric, labels, rows * zeros, 7, raw)
        of_fields = gradient.reshape(rows.shape)
        of_raw = list(zip(computer.raw_fields, computer.of_raw, strict=True))
        assert len(of_raw) == (2 if name == "din" else 0)
        if each is not None:
            assert not of_fields[:, mask == 0].any()
            assert not any(one[..., mask[field] == 0].any() for field, one in of_raw)
        dense = np.empty(computer.flat.size, np.float32)
        computer.flat.gradient_into(dense)
        parts = [dense, of_fields * mask, *(one * mask[field] for field, one in of_raw)]
        found.append((loss, [part.tobytes() for part in parts]))
    assert found[0] == found[1]
