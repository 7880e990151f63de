"""Statistics of the coordinator: staleness in steps and samples, rates; the loss that ends a run, in every mode."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.coordinator.replica_phases import curve, sum_of, summary
from gbactl.coordinator.statistics import MOST_BINS, MOST_WORKERS, ActivityTimes, LossLimit, Statistics, quantiles
from gbactl.errors import WireError
from gbactl.policies.policy import Member, Step
from gbactl.trainer.trainer_core import ExchangeStatistics
from gbactl.wire.messages import KIND, ClosedReplicas, unpack

TIMES = [0.1, 0.2, 0.0, 0.05, 0.4]  # seconds of each wait


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
    statistics.count_gradient(worker, batch, samples, pulled)
    statistics.add_timing(worker, samples, loss, seconds)


def test_nothing_is_zero() -> None:
    assert quantiles(Counter()) == {"mean": 0.0, "p50": 0.0, "p99": 0.0}
    assert Statistics().summary()["staleness"]["samples_mean"] == 0.0


def test_staleness_is_what_was_applied_since_the_pull_in_steps_and_samples() -> None:
    statistics = Statistics()
    gradient(statistics, 0, 0, 10, 0.5, 0.1, 0)
    gradient(statistics, 0, 1, 10, 0.5, 0.1, 0)
    statistics.count_step(step(0, (0, 1.0)))
    statistics.count_step(step(1, (1, 1.0), token=3))
    gradient(statistics, 1, 2, 30, 0.5, 0.1, 1)
    statistics.count_step(step(2, (2, 0.0), samples=30))
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
    statistics.count_gradient(2, 1, 100, 0)
    assert statistics.summary()["per_worker"] == {"W2": {"batches": 2, "samples": 200, "compute_eps": 200.0}}


def test_the_loss_is_weighted_by_samples_and_taken_once() -> None:
    statistics = Statistics()
    gradient(statistics, 0, 0, 10, 1.0, 0.1, 0)
    gradient(statistics, 1, 1, 30, 2.0, 0.1, 0)
    point = statistics.take_recent().point()
    assert point["loss"] == pytest.approx(1.75) and point["auc"] is None
    assert point["speeds"] == {"W0": pytest.approx(100.0), "W1": pytest.approx(300.0)}
    assert statistics.take_recent().point() == {"loss": None, "auc": None, "speeds": {}}
    for batch, ranked in ((2, (3.5, 4)), (3, (1.0, 2))):
        statistics.count_gradient(0, batch, 10, 0)
        statistics.add_timing(0, 10, 1.0, 0.1, ranked=ranked)
    assert statistics.take_recent().point()["auc"] == 0.75


def test_the_trainers_together() -> None:
    first, second = ExchangeStatistics(), ExchangeStatistics()
    first.add(2, 1.0, 10.0)
    second.add(4, 3.0, 10.0)
    second.add(8, 0.0, 10.0)
    second.foreground = 0.25
    told = summary(sum_of([first.totals, second.totals]))
    assert told["sync_gap"]["mean"] == (2 + 4 + 4) / 3 and told["exchanges"] == 3
    assert (told["bytes_exchanged"], told["foreground_seconds"]) == (30, 0.25)
    again = sum_of([sum_of([first.totals]), second.totals])
    assert again == sum_of([first.totals, second.totals])


def test_without_an_exchange_there_are_zeros() -> None:
    told = summary(sum_of([ExchangeStatistics().totals]))
    assert told["sync_gap"]["mean"] == 0.0 and told["exchange_ms"] == 0.0 and told["distance"] == []


def test_a_curve_has_at_most_twenty_points_in_order() -> None:
    points = curve([[float(n), 2.0 * n] for n in range(100)])
    assert len(points) == 20 and points[0] == [2.0, 4.0] and points == sorted(points)


def noted() -> ExchangeStatistics:
    notes = ExchangeStatistics(iterations=7)
    notes.distance(0.5, np.ones(4, np.float32), np.zeros(4, np.float32))
    notes.add(3, 0.25, 100.0)
    return notes


def closed(**changes: Any) -> ClosedReplicas:
    """Message of a trainer, as decoded, with some of its totals replaced."""
    totals = {**dataclasses.asdict(noted().totals), **changes}
    found: ClosedReplicas = unpack(KIND[ClosedReplicas], msgspec.msgpack.encode((1, 0, totals)))
    return found


def test_what_a_trainer_tells_may_be_told() -> None:
    assert closed() == ClosedReplicas(1, 0, noted().totals)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("iterations", -1), ("iterations", 1.5), ("exchanges", True), ("exchanges", None), ("seconds", "1"),
        ("sent", [1]), ("gaps", []), ("gaps", {"x": 1}), ("gaps", {-1: 1}), ("gaps", {1 << 63: 1}), ("gaps", {3: -1}),
        ("gaps", {3: "1"}), ("distances", {}), ("distances", [[1.0]]), ("distances", [1.0]),
        ("distances", [["a", "b"]]),
    ],
)  # fmt: skip
def test_what_are_no_totals(key: str, value: Any) -> None:
    with pytest.raises(WireError):
        closed(**{key: value})


@pytest.mark.parametrize(
    ("losses", "passed"),
    [
        ([0.7, 0.6, 700.0], False),
        ([0.7, 0.6, 701.0], True),
        ([1e-4, 690.0], False),  # a tiny first loss sets no limit below 1,000 times ln 2
        ([1e-4, 694.0], True),
        ([5.0, 4999.0], False),
        ([5.0, 5001.0], True),
        ([1e6], False),  # nothing to compare it with
        ([math.nan], True),
        ([0.7, math.inf], True),
        ([0.7, -math.inf], True),
    ],
)
def test_no_number_or_a_thousand_times_the_first(losses: list[float], passed: bool) -> None:
    limit = LossLimit()
    assert not any(limit.exceeded_by(loss) for loss in losses[:-1])
    assert limit.exceeded_by(losses[-1]) == passed


def test_the_sentence() -> None:
    limit = LossLimit()
    limit.exceeded_by(0.7)
    told = limit.sentence(2, 17, math.nan, 1e6)
    assert told == (
        "The model diverged: the loss of W2 at step 17 is nan, 1,000 times the first one is 700, at a learning rate of "
        "1e+06; type a smaller optim.lr, or train.on_divergence=continue to train on."
    )


def test_totals_by_phase_and_what_is_recent_is_taken_once() -> None:
    times = ActivityTimes()
    times.add(10.0, 3, 0.5, TIMES, "sync")
    times.add(11.0, 3, 0.5, TIMES, "sync")
    found = times.summary(8.0, {})
    assert found["processes"] == {
        "W3": {"batches": 2, "compute": 1.0, "batch": 0.2, "rows": 0.4, "turn": 0.0, "push": 0.1, "all_reduce": 0.8}
    }
    assert times.take_shares()["all_reduce"] == pytest.approx(0.8 / 2.5) and times.take_shares() == {}
    assert found["first_second"] == 2.0 and len(found["bins_by_mode"]) == 2
    assert times.take_recent() == found["processes"] and times.take_recent() == {}
    times.on_heartbeat("S1", {"idle": 1.0, "kernels": 3.0})
    times.on_heartbeat("S1", {"idle": 1.5, "kernels": 4.0})
    assert times.take_recent() == times.take_recent() == {"S1": {"idle": 0.5, "kernels": 1.0}}


def test_servers_that_are_replaced_keep_their_seconds() -> None:
    times = ActivityTimes()
    times.on_heartbeat("S1", {"idle": 1.0, "kernels": 3.0})
    times.on_servers_replaced(["S1", "S0"])  # S0 has sent no heartbeat
    times.on_heartbeat("S1", {"idle": 0.25, "kernels": 0.5})
    assert times.take_recent()["S1"] == {"idle": 0.25, "kernels": 0.5}
    times.on_servers_replaced(["S1"])
    found = times.summary(0.0, {"S0": {"idle": 2.0}, "S1": {"idle": 0.0, "kernels": 4.0}})["processes"]
    assert found == {"S0": {"idle": 2.0}, "S1": {"idle": 1.25, "kernels": 7.5}}
    assert times.summary(0.0, {})["processes"] == {"S1": {"idle": 1.25, "kernels": 3.5}}  # resumed with fewer servers


def test_bins_merge_and_lose_nothing() -> None:
    times = ActivityTimes()
    for second in range(1000):
        times.add(float(second), second % 2, 1.0, TIMES, "sync" if second < 500 else "gba")
    found = times.summary(0.0, {})
    bins = found["bins_by_mode"]
    assert found["bin_seconds"] == 16.0 and len(bins) <= MOST_BINS
    # the bin from second 496 has four seconds of sync and twelve of gba
    assert [list(each) for each in bins[30:33]] == [["sync"], ["sync", "gba"], ["gba"]]
    assert [workers["W1"]["batches"] for workers in bins[31].values()] == [2, 6]
    for mode, worker in itertools.product(("sync", "gba"), ("W0", "W1")):
        assert sum(each[mode][worker]["compute"] for each in bins if mode in each) == pytest.approx(250.0)


@pytest.mark.parametrize("waits", [[], [0.1] * 4, [math.nan] * 5, [math.inf] * 5, [-1.0] * 5])
def test_other_reports_are_ignored(waits: list[float]) -> None:
    times = ActivityTimes()
    times.add(0.0, 0, 1.0, waits, "sync")
    assert times.summary(0.0, {})["processes"] == {}


def test_of_many_workers_only_totals_are_kept() -> None:
    times = ActivityTimes()
    for worker in range(MOST_WORKERS + 1):
        times.add(0.0, worker, 1.0, TIMES, "sync")
    assert times.take_recent() == {} and times.summary(0.0, {})["bins_by_mode"] == []
    assert len(times.summary(0.0, {})["processes"]) == MOST_WORKERS + 1
