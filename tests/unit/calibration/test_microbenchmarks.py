"""What one worker and one server cost by themselves."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gbactl.calibration import microbenchmarks
from gbactl.config.groups import CostConfig
from gbactl.data.dataset import Dataset
from tests.support.calibration_runs import config


@settings(deadline=None)
@given(st.floats(0, 1e-2), st.floats(1e-6, 1e-3))
def test_the_line_through_exact_points_is_found(base: float, each: float) -> None:
    found = microbenchmarks.line({n: base + each * n for n in (16, 64, 128, 512)})
    assert found == pytest.approx((base, each), rel=1e-6, abs=1e-9)


def test_a_line_has_no_negative_part() -> None:
    assert microbenchmarks.line({10: 1.0, 20: 4.0})[0] == 0.0
    assert microbenchmarks.line({10: 4.0, 20: 1.0})[1] == 0.0


def test_sizes_lie_around_the_local_batch_and_within_the_data(dataset: Dataset) -> None:
    assert microbenchmarks.sizes(config("async", 2), dataset) == [16, 32, 64, 128]
    assert max(microbenchmarks.sizes(config("async", 2, 20_000), dataset)) == dataset.splits[0].rows


def test_everything_measured_is_a_price_of_the_cost_model(dataset: Dataset) -> None:
    cfg = config("gba", 2)
    prices = microbenchmarks.measure_worker(cfg, dataset, 0.05) | microbenchmarks.measure_server(cfg, dataset, 0.05)
    assert set(prices) <= {f.name for f in fields(CostConfig)} and len(prices) == 9
    assert all(price >= 0 for price in prices.values())
    assert prices["batch_us"] + prices["sample_us"] > 0 and prices["predict_us"] > 0
    assert 0 < prices["push_us"] < prices["batch_us"] + prices["sample_us"] * cfg.local_batch
    assert prices["row_pull_ns"] > 0 and prices["row_apply_ns"] > 0
    CostConfig(**prices).check()  # type: ignore[arg-type]
