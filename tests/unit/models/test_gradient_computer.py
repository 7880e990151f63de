"""Gradients, batch-norm statistics and predictions as functions of their inputs alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from gbactl.config import ModelConfig
from gbactl.models import build, row_width
from gbactl.models.gradient_computer import GradientComputer

N, F, DIM = 3, 4, 5


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def computer(precision: str = "fp32", **options: object) -> GradientComputer:
    cfg = ModelConfig(dim=DIM, hidden=[8, 6], **options)  # type: ignore[arg-type]
    made = GradientComputer(build(cfg, N, F, seed=1), precision=precision)
    vector = made.flat.initial()
    vector[: made.flat.params] += np.linspace(-0.3, 0.3, made.flat.params, dtype=np.float32)
    made.flat.load(vector)
    return made


def batch(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return (
        draw.standard_normal((n, N)).astype(np.float32),
        (draw.random(n) < 0.5).astype(np.uint8),
        draw.standard_normal((n, F, DIM + 1)).astype(np.float32),
    )


def dense(made: GradientComputer) -> np.ndarray:
    out = np.full(made.flat.size, np.nan, np.float32)
    made.flat.gradient_into(out)
    return out


def test_gradient_equals_plain_torch() -> None:
    made, (x, y, rows) = computer(), batch(9)
    loss, of_rows = made.gradient(x, y, rows, rng_key=0)
    leaf = torch.from_numpy(rows.copy()).requires_grad_()
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(
        made.model(torch.from_numpy(x), leaf), torch.from_numpy(y.astype(np.float32))
    )
    wanted.backward()
    assert loss == pytest.approx(wanted.item())
    assert leaf.grad is not None
    np.testing.assert_array_equal(of_rows, leaf.grad.numpy().reshape(9 * F, DIM + 1))
    flat = torch.cat([p.grad.flatten() for p in made.model.parameters() if p.grad is not None])
    np.testing.assert_array_equal(dense(made), flat.numpy())


def test_gradient_points_downhill_by_as_much_as_it_says() -> None:
    made, (x, y, rows) = computer(), batch(16)
    start = made.flat.initial()
    made.flat.load(start)
    before, _ = made.gradient(x, y, rows, 0)
    slope = dense(made)
    made.flat.load(start - np.float32(1e-3) * slope)
    after, _ = made.gradient(x, y, rows, 0)
    assert before - after == pytest.approx(1e-3 * float(slope @ slope), rel=0.05)


def test_each_gradient_stands_alone() -> None:
    made = computer()
    made.gradient(*batch(9, seed=5), rng_key=1)
    made.gradient(*batch(9), rng_key=1)
    second = dense(made)
    fresh = computer()
    fresh.gradient(*batch(9), rng_key=1)
    np.testing.assert_array_equal(second, dense(fresh))


def test_dropout_is_a_function_of_its_key() -> None:
    made, given = computer(dropout=0.5), batch(9)
    results = []
    for key, noise in ((4, 1), (4, 2), (5, 1)):
        torch.manual_seed(noise)
        results.append((made.gradient(*given, rng_key=key)[0], dense(made)))
    assert results[0][0] == results[1][0] != results[2][0]
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_batch_norm_statistics_are_the_batchs_own() -> None:
    made, (x, y, rows) = computer(batch_norm=True), batch(9)
    made.gradient(x, y, rows, 0)
    statistics = dense(made)[made.flat.params :]
    first = made.model.mlp[0]
    with torch.no_grad():
        vectors = torch.from_numpy(rows[..., :DIM].reshape(9, -1))
        hidden = first(torch.cat([torch.from_numpy(x), vectors], dim=1)).numpy()
    assert made.flat.buffers == 2 * 8 + 2 * 6
    np.testing.assert_allclose(statistics[:8], hidden.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(statistics[8:16], hidden.var(0, ddof=1), rtol=1e-4)


def test_one_sample_uses_and_returns_the_running_statistics() -> None:
    made = computer(batch_norm=True)
    vector = made.flat.initial()
    vector[made.flat.params :] = np.linspace(0.5, 1.5, made.flat.buffers, dtype=np.float32)
    made.flat.load(vector)
    made.gradient(*batch(9), rng_key=0)
    loss, _ = made.gradient(*batch(1), rng_key=0)
    out = dense(made)
    np.testing.assert_array_equal(out[made.flat.params :], vector[made.flat.params :])
    assert np.isfinite(loss)
    assert np.abs(out[: made.flat.params]).max() > 0


def test_predictions_use_the_loaded_running_statistics() -> None:
    made, (x, _, rows) = computer(batch_norm=True), batch(9)
    before = made.predict(x, rows)
    made.gradient(*batch(9, seed=3), rng_key=0)
    np.testing.assert_array_equal(made.predict(x, rows), before)
    norm = next(m for m in made.model.modules() if isinstance(m, torch.nn.BatchNorm1d))
    assert norm.running_mean is not None
    assert float(norm.running_mean.abs().sum()) == 0.0


def test_predictions_do_not_depend_on_the_number_of_threads() -> None:
    made, (x, _, rows) = computer(), batch(3000)
    torch.set_num_threads(1)
    one = made.predict(x, rows)
    torch.set_num_threads(2)
    np.testing.assert_array_equal(made.predict(x, rows), one)
    assert torch.get_num_threads() == 2
    assert one.shape == (3000,)
    assert ((one >= 0) & (one <= 1)).all()


def test_bf16_is_close_and_keeps_the_rows_in_fp32() -> None:
    (exact, low), given = (computer(), computer("bf16")), batch(64)
    a, b = exact.gradient(*given, rng_key=0), low.gradient(*given, rng_key=0)
    assert b[1].dtype == np.float32
    assert a[0] != b[0]
    assert b[0] == pytest.approx(a[0], rel=0.02)
    np.testing.assert_allclose(b[1], a[1], atol=0.02)
    assert low.predict(given[0], given[2]).dtype == np.float32


def test_bf16_with_batch_norm_has_fp32_statistics() -> None:
    made, exact = computer("bf16", batch_norm=True), computer(batch_norm=True)
    for each in (made, exact):
        each.gradient(*batch(64), rng_key=0)
    np.testing.assert_allclose(dense(made)[made.flat.params :], dense(exact)[made.flat.params :], rtol=0.05, atol=0.02)


def test_a_read_only_batch_is_accepted_and_left_alone() -> None:
    made, given = computer(), batch(9)
    wanted = made.gradient(*given, rng_key=0)[0]
    for array in given:
        array.flags.writeable = False
    assert made.gradient(*given, rng_key=0)[0] == wanted


def test_the_flat_vector_is_the_model() -> None:
    made = computer(batch_norm=True)
    vector = np.arange(made.flat.size, dtype=np.float32)
    made.flat.load(vector)
    held = torch.cat([t.detach().flatten() for t in (*made.model.parameters(), *made.model.buffers())])
    np.testing.assert_array_equal(held.numpy(), vector)
    assert made.flat.size == made.flat.params + made.flat.buffers
    spec = computer(batch_norm=True, batch_norm_momentum=0.3).flat.dense_spec
    assert (spec.params, spec.buffers, spec.momentum) == (made.flat.params, made.flat.buffers, 0.3)
    with pytest.raises(ValueError, match="shape"):
        made.flat.load(vector[:-1])


def test_what_cannot_be_computed_is_refused() -> None:
    made = computer()
    with pytest.raises(ValueError, match="no gradient"):
        dense(made)
    with pytest.raises(ValueError, match="no samples"):
        made.gradient(*batch(0), rng_key=0)
    made.gradient(*batch(2), rng_key=0)
    with pytest.raises(ValueError, match="shape"):
        made.flat.gradient_into(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="fp16"):
        computer("fp16")


def test_rows_have_the_width_the_model_reads() -> None:
    assert row_width(ModelConfig(dim=DIM)) == DIM + 1
