"""Each rule against a few lines on scalars, and what must hold whatever the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gbactl.averaging_rules import AveragingRule, make

BLOCK: dict[str, Any] = {"block_momentum": 0.0, "block_lr": 1.0, "nesterov": False}
numbers = st.floats(-100, 100, width=32)
vectors = arrays(np.float32, 5, elements=numbers)
shares = st.floats(0, 1, width=32)


def exchanged(rule: AveragingRule, replica: Any, other: Any) -> tuple[Any, Any]:
    """(replica, other) after an exchange in which nothing else happened."""
    difference, new = np.asarray(replica, np.float32).copy(), np.asarray(other, np.float32).copy()
    rule.exchange(difference, new)
    return np.asarray(replica, np.float32) + difference, new


def test_easgd_on_scalars() -> None:
    replica, centre = exchanged(make("easgd", 1, {"alpha": 0.25}), [4.0], [8.0])
    assert (replica, centre) == (5.0, 7.0)  # .75 * 4 + .25 * 8 and .75 * 8 + .25 * 4


def test_ma_on_scalars() -> None:
    replica, mean = exchanged(make("ma", 1, {"alpha": 0.25}), [4.0], [8.0])
    assert (replica, mean) == (5.0, 8.0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_bmuf_on_scalars(nesterov: bool) -> None:
    alpha, mu, eta = 0.5, 0.25, 2.0
    rule = make("bmuf", 1, {"alpha": alpha, "block_momentum": mu, "block_lr": eta, "nesterov": nesterov})
    rule.start(np.array([1.0], np.float32))
    model, velocity, replica = 1.0, 0.0, 3.0
    for mean in (2.0, 4.0, -1.0):
        velocity = mu * velocity + eta * (model - mean)
        model = model - velocity
        target = model - mu * velocity if nesterov else model
        got, other = exchanged(rule, [replica], [mean])
        replica = (1 - alpha) * replica + alpha * target
        assert (got, other) == (pytest.approx(replica), pytest.approx(target))


@given(vectors, vectors, shares)
def test_easgd_keeps_the_sum(replica: Any, centre: Any, alpha: float) -> None:
    moved, other = exchanged(make("easgd", 5, {"alpha": alpha}), replica, centre)
    before = replica.astype(np.float64) + centre
    np.testing.assert_allclose(moved.astype(np.float64) + other, before, atol=1e-4)


@given(vectors, vectors, shares)
def test_both_ends_of_easgd_compute_the_same_bits(replica: Any, centre: Any, alpha: float) -> None:
    """The trainer adds what the server subtracts."""
    ends = [exchanged(make("easgd", 5, {"alpha": alpha}), replica, centre) for _ in range(2)]
    assert [one.tobytes() for one in ends[0]] == [one.tobytes() for one in ends[1]]


@given(vectors, vectors)
def test_ma_with_alpha_1_is_the_mean(replica: Any, mean: Any) -> None:
    moved, _ = exchanged(make("ma", 5, {}), replica, mean)
    np.testing.assert_allclose(moved, mean, rtol=1e-6, atol=2e-5)


@given(vectors, st.lists(vectors, min_size=1, max_size=4), shares)
def test_bmuf_without_momentum_is_ma(replica: Any, means: list[Any], alpha: float) -> None:
    ma, bmuf = make("ma", 5, {"alpha": alpha}), make("bmuf", 5, {**BLOCK, "alpha": alpha})
    bmuf.start(np.zeros(5, np.float32))
    for mean in means:
        ours, theirs = exchanged(bmuf, replica, mean)[0], exchanged(ma, replica, mean)[0]
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-4)


def test_bmuf_without_momentum_is_ma_to_1e_6_at_the_size_of_weights() -> None:
    rng = np.random.default_rng(3)
    ma, bmuf = make("ma", 1000, {"alpha": 0.5}), make("bmuf", 1000, {**BLOCK, "alpha": 0.5})
    replica, mean = (rng.normal(0, 0.1, 1000).astype(np.float32) for _ in range(2))
    bmuf.start(np.zeros(1000, np.float32))
    np.testing.assert_allclose(exchanged(bmuf, replica, mean)[0], exchanged(ma, replica, mean)[0], atol=1e-6, rtol=0)


def test_bmuf_that_does_not_know_its_start_begins_at_the_first_mean() -> None:
    rule = make("bmuf", 1, {**BLOCK, "block_momentum": 0.9})
    assert exchanged(rule, [0.0], [3.0]) == (3.0, 3.0)


def test_batch_norm_statistics_are_averaged_without_momentum() -> None:
    rule = make("bmuf", 1, {**BLOCK, "block_momentum": 0.9, "block_lr": 3.0})
    rule.start(np.zeros(2, np.float32))
    for _ in range(3):
        moved, other = exchanged(rule, [0.0, 1.0], [1.0, 2.0])
    assert (moved[1], other[1]) == (2.0, 2.0)
    assert moved[0] != 1.0


@pytest.mark.parametrize("name", ["easgd", "ma", "bmuf"])
def test_with_alpha_0_a_replica_stays(name: str) -> None:
    replica = np.array([1.0, 2.0], np.float32)
    moved, _ = exchanged(make(name, 2, {**BLOCK, "alpha": 0.0}), replica, [5.0, 5.0])
    assert moved.tobytes() == replica.tobytes()


def test_an_unknown_rule_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no rule gossip among bmuf, easgd, ma"):
        make("gossip", 1, {})
