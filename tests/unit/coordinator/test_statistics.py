"""What the coordinator counts: staleness in steps and samples, rates, losses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.coordinator.statistics import Statistics, quantiles
from gbactl.policies import Member, Step


def step(number: int, *members: tuple[int, float], samples: int = 10, token: int = 0) -> Step:
    return Step(number, tuple(Member(batch, 0, weight, samples, token) for batch, weight in members), 1.0)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=300))
def test_quantiles_of_a_histogram_are_those_of_the_values(values: list[int]) -> None:
    found = quantiles(Counter(values))
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["p50"] == np.quantile(values, 0.5, method="inverted_cdf")
    assert found["p99"] == np.quantile(values, 0.99, method="inverted_cdf")


def gradient(
    statistics: Statistics, worker: int, batch: int, samples: int, loss: float, seconds: float, pulled: int
) -> None:
    statistics.announced(worker, batch, samples, pulled)
    statistics.timed(worker, samples, loss, seconds)


def test_nothing_is_zero() -> None:
    assert quantiles(Counter()) == {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    assert Statistics().summary()["staleness"]["samples_mean"] == 0.0


def test_staleness_is_what_was_applied_since_the_pull_in_steps_and_samples() -> None:
    statistics = Statistics()
    gradient(statistics, 0, 0, 10, 0.5, 0.1, 0)
    gradient(statistics, 0, 1, 10, 0.5, 0.1, 0)
    statistics.applied(step(0, (0, 1.0)))
    statistics.applied(step(1, (1, 1.0), token=3))
    gradient(statistics, 1, 2, 30, 0.5, 0.1, 1)
    statistics.applied(step(2, (2, 0.0), samples=30))
    summary = statistics.summary()
    assert summary["staleness_histogram"] == {"0": 1, "1": 2}
    assert summary["staleness"]["mean"] == pytest.approx(2 / 3)
    assert summary["staleness"]["samples_mean"] == pytest.approx((0 + 10 + 10) / 3)
    assert summary["token_staleness"]["mean"] == 1.0
    assert summary["gradients"] == {"applied": 2, "decayed": 1, "dropped": 0}
    assert statistics.samples_at == [0, 10, 20, 50]


def test_a_workers_rate_is_its_samples_over_its_compute_time() -> None:
    statistics = Statistics()
    for batch in range(3):
        gradient(statistics, 2, batch, 100, 1.0, 0.5, 0)
    assert statistics.summary()["per_worker"] == {"W2": {"batches": 3, "samples": 300, "compute_eps": 200.0}}
    gradient(statistics, 1, 9, 100, 1.0, 0.0, 0)
    assert statistics.summary()["per_worker"]["W1"]["compute_eps"] == 0.0


def test_gradients_of_which_only_a_log_tells_count_in_no_rate() -> None:
    statistics = Statistics()
    gradient(statistics, 2, 0, 100, 1.0, 0.5, 0)
    statistics.announced(2, 1, 100, 0)
    assert statistics.summary()["per_worker"] == {"W2": {"batches": 2, "samples": 200, "compute_eps": 200.0}}


def test_the_loss_is_weighted_by_samples_and_taken_once() -> None:
    statistics = Statistics()
    gradient(statistics, 0, 0, 10, 1.0, 0.1, 0)
    gradient(statistics, 0, 1, 30, 2.0, 0.1, 0)
    assert statistics.take_loss() == pytest.approx(1.75)
    assert statistics.take_loss() is None
