"""Random numbers by counter: values that can be checked by hand, means; digests of arrays."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.hashes_and_random_numbers import DISTRIBUTIONS, digest, exponential, key_of, lognormal, pareto, uniform

WORDS = st.integers(0, 2**64 - 1)


def test_the_hash_is_splitmix64() -> None:
    """The first number of the published generator seeded with 0."""
    assert key_of(0) == 0xE220A8397B1DCDAF


def test_a_uniform_number_is_the_hash_divided_by_two_to_the_64() -> None:
    assert uniform(7, 3) == pytest.approx(key_of(7, 3) / 2.0**64, abs=1e-15)


def test_quantiles_that_can_be_checked_by_hand() -> None:
    assert exponential(0.5) == pytest.approx(math.log(2))
    assert lognormal(0.5, 1.0) == pytest.approx(math.exp(-0.5))
    assert pareto(0.75, 2.0) == pytest.approx(1.0)  # (2 - 1) (0.25 ** -0.5 - 1)


@given(WORDS, WORDS)
def test_uniform_is_open_and_every_distribution_finite(key: int, turn: int) -> None:
    u = uniform(key, turn)
    assert 0.0 < u < 1.0
    assert all(0.0 <= draw(u, None) < math.inf for draw in DISTRIBUTIONS.values())


@pytest.mark.parametrize("u", [2.0**-53, 1.0 - 2.0**-53])
def test_the_ends_are_finite_too(u: float) -> None:
    assert all(0.0 <= draw(u, None) < math.inf for draw in DISTRIBUTIONS.values())


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_mean_is_one(name: str) -> None:
    mean = statistics.fmean(DISTRIBUTIONS[name](uniform(5, turn), None) for turn in range(40_000))
    assert mean == pytest.approx(1.0, abs=0.03)


@given(st.lists(WORDS, min_size=1, max_size=4), WORDS)
def test_a_key_differs_for_other_arguments(parts: list[int], other: int) -> None:
    assert key_of(*parts) != key_of(*parts, other)
    if other != parts[-1]:
        assert key_of(*parts) != key_of(*parts[:-1], other)


def test_a_digest_knows_where_one_array_ends() -> None:
    one, two = np.zeros(3, np.float32), np.zeros(5, np.float32)
    assert digest([one, two]) != digest([two, one])
