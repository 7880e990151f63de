"""The emulated jobs of the study of CPR: by hand, and against the equations."""

from __future__ import annotations

import math

import emulation
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.checkpoint.costs_and_interval import (
    JobCosts,
    SaveSchedule,
    bases,
    expected_pls,
    full_overhead,
    partial_overhead,
)
from gbactl.config import FaultsConfig
from gbactl.errors import ConfigError
from gbactl.faults.fault_plan import FaultInjector, FaultPlan

EMULATED = JobCosts(job=100.0, between_failures=50.0, servers=4, save=2.0, load=4.0, reschedule=1.0)


def kills(*times: float, server: int = 1) -> FaultInjector:
    plans = [{"kind": "kill", "servers": [server], "time": time} for time in times]
    return FaultInjector(FaultPlan(FaultsConfig(plans=plans), 0, 1, 4))


def whole(interval: float) -> SaveSchedule:
    return SaveSchedule(1, interval, None, 0)


def test_without_failures_saves_alone_cost() -> None:
    """At 20, 40, ... by the clock, of which each takes 2: 5 of them until 100 are trained."""
    found = emulation.Emulation(EMULATED, whole(20.0), "full", kills()).run()
    assert (found.saves, found.failures, found.pls) == (5, 0, 0.0)
    assert found.overhead == pytest.approx(0.1)


def test_everybody_goes_back_by_hand() -> None:
    """Saved at 20, when 20 were trained; at 30, 28 were; 8 are trained again, after 5."""
    found = emulation.Emulation(EMULATED, whole(20.0), "full", kills(30.0)).run()
    assert found.spent.again == pytest.approx(8.0) and found.pls == 0.0
    assert (found.spent.loading, found.spent.rescheduling) == (4.0, 1.0)
    assert found.overhead == pytest.approx((8 + 5 + 2 * found.saves) / 100)


def test_one_server_goes_back_by_hand() -> None:
    """28 trained, of which 20 are saved; later, right behind a save, nothing is lost."""
    found = emulation.Emulation(EMULATED, whole(20.0), "partial", kills(30.0, 41.0)).run()
    assert found.pls == pytest.approx(8 / (100 * 4)) and found.failures == 2
    assert found.spent.again == 0.0
    assert found.overhead == pytest.approx((2 * (1.0 + 1.0) + 2 * found.saves) / 100)


def test_what_was_lost_is_lost_once_and_chosen_saves_save_no_samples() -> None:
    twice = emulation.Emulation(EMULATED, whole(1000.0), "partial", kills(10.0, 30.0)).run()
    assert twice.pls == pytest.approx((10 + 18) / 400), "2 seconds of the 20 between them went by in recovery"
    chosen = emulation.Emulation(EMULATED, SaveSchedule(4, 80.0, None, 0), "partial", kills(30.0)).run()
    assert chosen.pls == pytest.approx((30 - 0.5) / 400)
    assert chosen.spent.saving == pytest.approx(0.5 * chosen.saves)


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.2, 5.0), st.floats(1.0, 20.0), st.sampled_from(["partial", "full"]), st.integers(0, 1000),
    st.sampled_from(["exponential", "weibull", "gamma"]),
)  # fmt: skip
def test_the_accounting_adds_up(save: float, interval: float, recovery: str, seed: int, distribution: str) -> None:
    costs = JobCosts(300.0, 50.0, 4, save, 4.0, 1.0)
    job = emulation.Emulation(
        costs, whole(interval + save), recovery, emulation.by_distribution(costs, seed, distribution)
    )
    found = job.run()
    assert job.trained == pytest.approx(300.0)
    assert job.clock == pytest.approx(300.0 * (1 + found.overhead))
    assert found.spent.saving == pytest.approx(save * found.saves)
    assert 0 <= found.pls <= found.failures / 4
    assert found == emulation.emulate(costs, whole(interval + save), recovery, seed, distribution)


@pytest.mark.parametrize("distribution", ["exponential", "weibull", "gamma"])
def test_the_equations_hold_over_many_failures(distribution: str) -> None:
    """Small costs: the equations are of the first order."""
    costs = JobCosts(3000 * 1000.0, 1000.0, 8, 0.5, 3.0, 1.0)
    part = emulation.emulate(costs, whole(200.0), "partial", 1, distribution)
    assert part.pls == pytest.approx(expected_pls(costs, 200.0), rel=0.05)
    assert part.overhead == pytest.approx(partial_overhead(costs, 200.0) / costs.job, rel=0.05)
    chosen = emulation.emulate(costs, SaveSchedule(4, 200.0, None, 2), "partial", 1, distribution)
    assert chosen.overhead == pytest.approx(
        (partial_overhead(costs, 200.0) + bases(costs, 200.0, 4, 2)) / costs.job, rel=0.05
    )
    everybody = emulation.emulate(costs, whole(50.0), "full", 1, distribution)
    assert everybody.overhead == pytest.approx(full_overhead(costs, 50.0) / costs.job, rel=0.05)


def test_a_distribution_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match="normal"):
        emulation.by_distribution(EMULATED, 0, "normal")
    assert math.isfinite(emulation.by_distribution(EMULATED, 0, "weibull", 0.7).next_seconds)
