"""The models against a naive reading of their formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gbactl.conf_files import options
from gbactl.config import ModelConfig
from gbactl.errors import ConfigError
from gbactl.models import build, dense_size, row_width
from gbactl.models.base import ClickModel
from gbactl.models.flat_parameters import FlatModel

B, N, F = 5, 3, 4


def config(name: str = "deepfm", **options: object) -> ModelConfig:
    return ModelConfig(name=name, dim=2, hidden=[6, 5], **options)  # type: ignore[arg-type]


def inputs(numeric: int = N) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(7)
    return torch.randn(B, numeric, generator=draw), torch.randn(B, F, 3, generator=draw)


def randomise(model: ClickModel) -> None:
    draw = torch.Generator().manual_seed(8)
    for parameter in model.parameters():
        parameter.data.normal_(generator=draw)


def naive_logit(model: ClickModel, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """One sample, every pair of terms written out."""
    hidden = torch.cat([x, *[row[:2] for row in rows]])
    for layer in model.mlp:
        hidden = layer.weight @ hidden + layer.bias if isinstance(layer, torch.nn.Linear) else hidden.clamp(min=0)
    logit = model.bias[0] + hidden[0] + sum(row[2] for row in rows)
    terms = [row[:2] for row in rows]
    if model.numeric_weight is not None:
        logit = logit + sum(x[j] * model.numeric_weight[j] for j in range(len(x)))
    if hasattr(model, "numeric_vectors"):
        if model.numeric_vectors is not None:
            terms += [x[j] * model.numeric_vectors[j] for j in range(len(x))]
        logit = logit + sum(terms[i] @ terms[j] for i in range(len(terms)) for j in range(i + 1, len(terms)))
    return logit


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("hidden", [[], [6], [6, 5]])
@pytest.mark.parametrize("numeric", [0, N])
@pytest.mark.parametrize("name", options("model"))
def test_the_size_is_known_without_the_model(name: str, numeric: int, hidden: list[int], batch_norm: bool) -> None:
    cfg = ModelConfig(name=name, dim=2, hidden=hidden, batch_norm=batch_norm)
    assert dense_size(cfg, numeric, F) == FlatModel(build(cfg, numeric, F, seed=1)).size


@pytest.mark.parametrize("numeric", [0, N])
@pytest.mark.parametrize("name", options("model"))
def test_logits_and_gradients_equal_the_naive_formula(name: str, numeric: int) -> None:
    model = build(config(name), numeric, F, seed=1)
    randomise(model)
    x, rows = inputs(numeric)
    rows.requires_grad_()
    wanted = torch.stack([naive_logit(model, x[b], rows[b]) for b in range(B)])
    got = model(x, rows)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    leaves = [rows, *model.parameters()]
    weights = torch.arange(1.0, B + 1)
    for a, b in zip(
        torch.autograd.grad(got @ weights, leaves), torch.autograd.grad(wanted @ weights, leaves), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_the_start_depends_on_the_seed_alone_and_leaves_the_global_rng_alone() -> None:
    torch.manual_seed(1)
    first = build(config(), N, F, seed=3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, third = build(config(), N, F, seed=3), build(config(), N, F, seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.mlp[0].weight, third.mlp[0].weight)


def test_a_row_holds_the_vector_and_one_weight() -> None:
    assert row_width(ModelConfig(dim=16)) == 17


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"model\.name=nope") as caught:
        build(config("nope"), N, F, seed=0)
    assert "deepfm, wide_deep" in str(caught.value)


def test_no_parameter_is_empty_without_numeric_fields() -> None:
    model = build(config(), 0, F, seed=0)
    assert all(p.numel() for p in model.parameters())


def test_dropout_keeps_the_expected_share_and_scales_it() -> None:
    from gbactl.models.base import Dropout

    layer = Dropout(0.25, torch.Generator().manual_seed(0))
    out = layer(torch.ones(200, 200)).numpy()
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((out > 0).mean() - 0.75) < 0.01
    assert torch.equal(layer.eval()(torch.ones(3)), torch.ones(3))
