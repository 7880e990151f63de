"""Machines whose prices are known: the virtual backend makes the observations, the fit finds the prices again."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gbactl.calibration import fit as fitting
from gbactl.calibration.fit import GROUPS, Predict, averaged, fit, predict, scaled
from gbactl.calibration.short_local_runs import Observation, ProgressLog
from gbactl.config.groups import CostConfig
from gbactl.data.dataset import Dataset
from gbactl.simulation.simulated_run import run_virtual
from gbactl.wire.messages import Event
from tests.support.calibration_runs import MACHINE, config

MODES = ("sync", "async", "gba")


def predictor(dataset: Dataset, folder: Path) -> Predict:
    return lambda mode, workers, cost: predict(config(mode, workers), cost, dataset, folder)


def observed(told: Predict, noise: float = 0.0) -> list[Observation]:
    jitter = random.Random(7)
    found = []
    for mode in MODES:
        for workers in (2, 4):
            one = told(mode, workers, MACHINE)
            cpu = {role: seconds * jitter.lognormvariate(0, noise) for role, seconds in one.cpu.items()}
            found.append(replace(one, eps=one.eps * jitter.lognormvariate(0, noise), cpu=cpu))
    return found


@pytest.fixture
def short_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few global batches in a prediction as a machine without noise needs: a fit makes some 240 of them."""
    monkeypatch.setattr(fitting, "SKIPPED", 2)
    monkeypatch.setattr(fitting, "ENOUGH", 8)


def start(*off: float) -> CostConfig:
    """MACHINE with each group of prices off by a factor."""
    return scaled(MACHINE, np.log(off))


@pytest.mark.usefixtures("short_predictions")
@pytest.mark.slow
def test_known_prices_are_found_again(dataset: Dataset, tmp_path: Path) -> None:
    told = predictor(dataset, tmp_path)
    found = fit(start(0.7, 2.0, 0.4, 2.0, 0.5, 0.5, 1.0), observed(told), told)
    assert max(abs(error) for error in found.errors) < 0.02
    for key in ("batch_us", "sample_us", "row_apply_ns", "server_message_us", "coordinator_message_us"):
        assert getattr(found.cost, key) == pytest.approx(getattr(MACHINE, key), rel=0.15), key
    for key in ("allreduce_us", "allreduce_work_us"):
        assert getattr(found.cost, key) == pytest.approx(getattr(MACHINE, key), rel=0.4), key
    untouched = {f: v for f, v in vars(MACHINE).items() if not any(f in keys for keys in GROUPS.values())}
    assert {f: getattr(found.cost, f) for f in untouched} == untouched


@pytest.mark.usefixtures("short_predictions")
@pytest.mark.slow
def test_what_was_fitted_on_2_and_4_workers_holds_for_8(dataset: Dataset, tmp_path: Path) -> None:
    told = predictor(dataset, tmp_path)
    found = fit(start(1.4, 0.5, 3.0, 0.5, 2.0, 2.0, 1.0), observed(told, noise=0.03), told)
    for mode in MODES:
        assert told(mode, 8, found.cost).eps == pytest.approx(told(mode, 8, MACHINE).eps, rel=0.08), mode


@pytest.mark.usefixtures("short_predictions")
@pytest.mark.slow
def test_rates_alone_are_enough(dataset: Dataset, tmp_path: Path) -> None:
    told = predictor(dataset, tmp_path)
    rates = [replace(one, cpu={}) for one in observed(told)]
    found = fit(start(0.7, 1.0, 1.0, 2.0, 0.5, 0.5, 1.0), rates, told)
    assert max(abs(error) for error in found.errors) < 0.03


def test_a_prediction_is_the_rate_of_the_real_virtual_run(dataset: Dataset, tmp_path: Path) -> None:
    for mode in MODES:
        cfg, notes = config(mode, 4), ProgressLog()
        virtual = replace(cfg, cluster=replace(cfg.cluster, name="virtual"), cost=MACHINE)
        (tmp_path / mode).mkdir()
        events: list[Event] = []
        run_virtual(virtual, dataset, tmp_path / mode, events.append)
        told = [event.fields for event in events if event.name == "progress"]
        late = [each for each in told if each["round_finished"] >= 0.06 * each["round_samples"]]
        assert sum(map(notes.add, late)) > 20
        assert predict(cfg, MACHINE, dataset, tmp_path).eps == pytest.approx(notes.rate, rel=0.02), mode


def test_what_follows_the_backward_pass_stays_the_same_part_of_a_gradient() -> None:
    faster = start(0.5, *[1.0] * (len(GROUPS) - 1))
    assert faster.push_us / faster.sample_us == pytest.approx(MACHINE.push_us / MACHINE.sample_us)


def test_a_prediction_is_the_same_every_time(dataset: Dataset, tmp_path: Path) -> None:
    cfg = config("gba", 2)
    assert predict(cfg, MACHINE, dataset, tmp_path) == predict(cfg, MACHINE, dataset, tmp_path)


def test_workers_that_share_cores_pay_for_the_all_reduce_in_turn(dataset: Dataset, tmp_path: Path) -> None:
    free = replace(MACHINE, allreduce_float_ns=0.0, allreduce_work_us=0.0, allreduce_message_us=0.0, allreduce_us=0.0)
    costs = (free, replace(free, allreduce_float_ns=400.0))
    rates = {n: [predict(config("sync", n), cost, dataset, tmp_path).eps for cost in costs] for n in (2, 8)}
    added = {n: 64 * n / with_work - 64 * n / without for n, (without, with_work) in rates.items()}
    # 8 workers do 7/4 of the work each that 2 do, and there are four of them on a core instead of one; some of it slows
    # the one down that computes in the core's time slot
    assert added[8] == pytest.approx(7 * added[2], rel=0.15)


def test_runs_of_a_kind_are_averaged() -> None:
    runs = [Observation("gba", 2, 100.0, {"W": 1.0, "S": 3.0}), Observation("gba", 2, 400.0, {"W": 2.0})]
    assert averaged([*runs, Observation("gba", 4, 7.0)]) == [
        Observation("gba", 2, pytest.approx(200.0), {"W": 1.5}), Observation("gba", 4, pytest.approx(7.0), {}),
    ]  # fmt: skip
