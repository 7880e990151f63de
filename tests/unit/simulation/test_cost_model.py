"""What things cost: by hand, and what a configuration may say."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
import yaml

from gbactl.checked_dataclasses import build
from gbactl.conf_catalogue import conf_dir
from gbactl.config.groups import CostConfig
from gbactl.errors import ConfigError
from gbactl.simulation.cost_model import CostModel


def model(**keys: Any) -> CostModel:
    return CostModel(CostConfig(**keys), seed=3)


def test_a_batch_costs_its_base_and_its_samples_times_the_worker() -> None:
    cost = model(batch_us=100.0, sample_us=10.0, predict_us=2.0, worker_scale=[1.0, 2.5])
    assert cost.gradient(0, 0, 50) == pytest.approx(600e-6)
    assert [cost.gradient(w, 0, 50) for w in (1, 2, 3)] == pytest.approx([1500e-6, 600e-6, 1500e-6])
    assert cost.predict(1, 100) == pytest.approx(500e-6)


@pytest.mark.parametrize(("spread", "scale"), [("lognormal", 0.5), ("exponential", 0.5), ("exponential", 1.0)])
def test_random_factors_have_mean_one_and_belong_to_seed_worker_and_turn(spread: str, scale: float) -> None:
    cost = model(spread=spread, spread_scale=scale)
    factors = [cost.factor(w, t) for w in range(20) for t in range(500)]
    assert statistics.mean(factors) == pytest.approx(1.0, abs=0.03)
    assert min(factors) > 0 and len(set(factors)) == len(factors)
    again, other = model(spread=spread, spread_scale=scale), CostModel(cost.cfg, seed=4)
    assert [again.factor(w, t) for w in range(20) for t in range(500)] == factors
    assert other.factor(0, 0) != factors[0]


def test_a_spread_of_nothing_is_none() -> None:
    assert {model(spread="lognormal", spread_scale=0.0).factor(w, 7) for w in range(5)} == {1.0}


def test_serving_is_by_the_row_and_by_the_float() -> None:
    cost = model(row_pull_ns=10.0, row_apply_ns=100.0, dense_pull_ns=1.0, dense_apply_ns=2.0, dense_step_ns=5.0)
    assert cost.pull(1000, 500) == pytest.approx(10.5e-6)
    assert cost.apply(1000, 4, 500) == pytest.approx(100e-6 + (8 + 5) * 0.5e-6)
    assert cost.replica_step(1000) == pytest.approx(7e-6)


def test_a_ring_sends_two_rounds_of_shares() -> None:
    local = {"local_latency_us": 1.0, "local_bandwidth_gbit": 80.0}
    cost = model(latency_us=10.0, bandwidth_gbit=8.0, allreduce_us=50.0, **local)
    assert cost.ring(4_000_000, 4, 4) == pytest.approx(6 * (10e-6 + 1e-3))
    assert cost.ring(4_000_000, 4, 1) == pytest.approx(6 * (1e-6 + 1e-4))
    assert cost.ring(4_000_000, 1, 1) == cost.all_reduce(4_000_000, 1, 1, 1.0) == 0.0
    assert cost.all_reduce(4_000_000, 4, 4, 1.0) == pytest.approx(50e-6 + cost.ring(4_000_000, 4, 4))


def test_an_all_reduce_hides_behind_the_backward_pass_and_no_longer() -> None:
    keys = {"latency_us": 0.0, "bandwidth_gbit": 8.0, "allreduce_us": 0.0}
    whole, half = model(**keys, overlap=0.0), model(**keys, overlap=0.5)
    ring = whole.ring(4_000_000, 4, 4)
    assert half.all_reduce(4_000_000, 4, 4, 1.0) == pytest.approx(ring / 2)
    assert half.all_reduce(4_000_000, 4, 4, 3e-4) == pytest.approx(ring - 2e-4)


def test_ranks_far_apart_agree_before_they_sum() -> None:
    """Horovod took 38 ms for one small bucket and 60 for two between two network namespaces 5 ms apart."""
    far = model(latency_us=5000.0, local_latency_us=0.0, bandwidth_gbit=1e6, allreduce_us=0.0)
    one, two = (far.all_reduce(8, 2, 2, 0.0, agreed=buckets) for buckets in (1, 2))
    assert (one, two) == pytest.approx((35e-3, 60e-3))
    assert far.all_reduce(8, 2, 2, 0.0) == pytest.approx(10e-3) and far.all_reduce(8, 2, 1, 0.0, agreed=2) < 1e-5
    as_near = model(latency_us=60.0, local_latency_us=60.0)
    assert as_near.all_reduce(8, 2, 2, 0.0, agreed=2) == as_near.all_reduce(8, 2, 2, 0.0)


@pytest.mark.parametrize("path", sorted(conf_dir().glob("cost/*.yaml")), ids=lambda path: path.stem)
def test_every_named_model_says_everything(path: Any) -> None:
    values = yaml.safe_load(path.read_text())
    made = CostConfig(**values)
    made.check()
    assert made.name == path.stem
    assert set(values) == set(CostConfig.__dataclass_fields__)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"cores": 0}, r"cost\.cores=0 is not a whole number from 1 to 65536; type for instance cost\.cores=4\.$"),
    ({"workers_per_host": 0}, "cost.workers_per_host=0"),
    ({"servers_on": "moon"}, "type cost.servers_on= one of: workers, own"),
    ({"spread": "cauchy"}, "type cost.spread= one of: none, lognormal, exponential"),
    ({"spread": "exponential", "spread_scale": 1.5}, "exponential has cost.spread_scale from 0 to 1, not 1.5"),
    ({"overlap": 1.1}, "cost.overlap=1.1"),
    ({"allreduce_rounds": -1.0}, r"cost\.allreduce_rounds=-1\.0 is not a number from 0 to 1000; type"),
    ({"worker_scale": [1.0, 0.0]}, r"cost\.worker_scale=\[1\.0, 0\.0\] is not a list, each a number from 0\.001 to"),
    ({"sample_us": -1.0}, r"cost\.sample_us=-1\.0 is not a number from 0 to"),
    ({"row_pull_ns": float("nan")}, "cost.row_pull_ns=nan"),
    ({"bandwidth_gbit": 0.0}, r"cost\.bandwidth_gbit=0\.0 is not a number from 1e-06 to"),
]


@pytest.mark.parametrize(("values", "message"), WRONG, ids=[str(values) for values, _ in WRONG])
def test_what_cannot_be_is_told(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build(CostConfig, values, "cost.").check()
    assert "\n" not in str(caught.value)
