"""Simulations of an advice: a saved base, and modes that go on from it with real gradients; times without them.

Their schedule: a seed's base before its modes, and as many seeds as fit into the time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gbactl.advise.data_subset import DataSubset, choose_subset
from gbactl.advise.simulation_jobs import (
    FEWEST_SEEDS,
    MOST_SEEDS,
    Outcome,
    Schedule,
    SimulationSeconds,
    base_checkpoint,
    base_config,
    in_mode,
    on_virtual_cluster,
    predicted_eps,
    result_of,
    simulate,
    train_base,
)
from gbactl.config import OptimConfig, RunConfig, check
from gbactl.errors import ClusterError, ConfigError
from gbactl.faults.fault_plan import FaultsConfig
from gbactl.launch.hydra_config import compose
from tests.support import small_data
from tests.support.simulated_runs import config


@pytest.fixture(scope="module")
def subset(tmp_path_factory: pytest.TempPathFactory) -> DataSubset:
    cfg = config("sync")
    return choose_subset(small_data.prepared(tmp_path_factory.mktemp("cache"), 1500, 4), cfg.train, 800, 1024)


@pytest.fixture(scope="module")
def base(subset: DataSubset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advice") / "base-s3"
    assert train_base(config("sync"), subset, folder) > 0
    return folder


def test_a_mode_goes_on_from_the_base(subset: DataSubset, base: Path, tmp_path: Path) -> None:
    for mode in ("sync", "gba"):
        found = simulate(in_mode(config("sync"), mode), subset, tmp_path / mode, base)
        assert (found.mode, found.seed, found.diverged) == (mode, 3, "")
        assert len(found.parts) == subset.parts and sum(part["samples"] for part in found.parts) == subset.trained
        assert all(part["mode"] == mode and 0 < part["auc"] < 1 for part in found.parts)
        assert found.result["samples"]["read"] == subset.base + subset.trained
        assert found.result["mode"].partition("@")[0] == ("sync" if mode == "sync" else "sync>gba")
        assert found.eps > 0 and found.took.total > 0 and (tmp_path / mode / "result.json").exists()
    assert base_checkpoint(base).is_dir()


def test_times_do_not_depend_on_gradients(subset: DataSubset, tmp_path: Path) -> None:
    cfg = config("gba", cost={"spread": "lognormal", "spread_scale": 0.3})
    whole = replace(subset, base=0, part=subset.timed, parts=1, judged=1400)
    trained = simulate(cfg, whole, tmp_path / "whole", None)
    assert trained.result["phases"][-1]["samples"] == subset.timed
    assert trained.eps == predicted_eps(cfg, subset, tmp_path / "times")
    assert predicted_eps(replace(cfg, seed=4), subset, tmp_path / "times") != trained.eps


def test_a_mode_that_diverges_is_an_outcome(subset: DataSubset, tmp_path: Path) -> None:
    wild = check(replace(config("async", hard=False), optim=OptimConfig(name="sgd", lr=1e30)))
    found = simulate(wild, subset, tmp_path, None)
    assert found.diverged and not found.result and found.eps > 0


def test_a_configuration_moves_to_the_virtual_cluster_and_to_another_mode() -> None:
    cfg = on_virtual_cluster(RunConfig())
    assert not cfg.engine.real and cfg.cluster.workers == 4
    assert in_mode(cfg, "gba").mode.options["iota"] == 3 and in_mode(cfg, "sync") is cfg
    assert on_virtual_cluster(compose(["experiment=demo"])).checkpoint.name == "none"
    assert on_virtual_cluster(compose(["train.eval_every=2048"])).train.eval_every is None, "the phases are the parts"
    assert on_virtual_cluster(compose(["faults=kill_server"])).checkpoint.name == "cpr"
    slowed = in_mode(compose(["cluster=virtual", "faults=one_slow"]), "sync")
    assert slowed.fault_plan() and base_config(slowed, Path("base"), 1).faults == FaultsConfig(), "a base has no faults"
    one = replace(cfg, cluster=replace(cfg.cluster, workers=1))
    with pytest.raises(ConfigError, match="backup"):
        in_mode(one, "hop_bw")


MODES = {mode: config(mode) for mode in ("sync", "gba", "async")}
SUBSET = DataSubset(Path(), 0, 1, 1, 1, 1)


class FakePool:
    """Pool that has done a call as soon as somebody waits for it: the last one first."""

    jobs = 2

    def __init__(self, seconds: float) -> None:
        self.seconds, self.calls, self.most, self.now = seconds, list[str](), 0, 0.0

    def submit(self, call: Any, cfg: Any, subset: DataSubset, folder: Path, base: Path | None = None) -> Future[Any]:
        self.calls.append(folder.name)
        if base is not None:
            assert base.name == f"base-s{cfg.seed}" and base.name in self.calls
        future = Future[Any]()
        took = SimulationSeconds(0.0, 0.0, self.seconds)
        future.set_result(Outcome(cfg.mode.name, cfg.seed, 1.0, took, {}) if call is simulate else self.seconds)
        return future

    def first_done(self, futures: Any) -> set[Future[Any]]:
        self.most = max(self.most, len(futures))
        self.now += self.seconds / self.jobs
        return {list(futures)[-1]}


def run(pool: FakePool, left: float, seeds: int | None, *kept: str) -> list[Outcome]:
    seconds, heard = dict.fromkeys(MODES, 10.0), list[Outcome]()

    def narrow(outcomes: Sequence[Outcome]) -> Sequence[str]:
        assert [each.seed for each in outcomes].count(MODES["sync"].seed) == len(MODES)
        return kept

    folder = Path("advice")
    told = heard.append
    made = Schedule(pool, MODES, SUBSET, folder, 10.0, seconds, left, seeds, told, narrow)  # type: ignore[arg-type]
    assert made.run() == heard
    return heard


def test_every_seed_has_all_modes_from_its_base_two_at_a_time() -> None:
    pool = FakePool(10.0)
    found = run(pool, 0.0, 4)
    first = MODES["sync"].seed
    assert {(each.mode, each.seed - first) for each in found} == {(m, s) for m in MODES for s in range(4)}
    assert len(pool.calls) == len(set(pool.calls)) == 4 * 4 and pool.most == 2


@pytest.mark.parametrize(
    ("left", "seconds", "seeds"),
    [(-1.0, 10.0, [3]), (1e6, 10.0, [MOST_SEEDS]), (120.0, 10.0, [6, 7, 8]), (120.0, 40.0, [3])],
)
def test_modes_that_matter_have_as_many_seeds_as_fit(
    monkeypatch: pytest.MonkeyPatch, left: float, seconds: float, seeds: list[int]
) -> None:
    """The first seed and the base of the second take 25 s, each seed of two modes 10 s and a further base 5 s."""
    pool = FakePool(seconds)
    monkeypatch.setattr(time, "monotonic", lambda: pool.now)
    counts = Counter(each.mode for each in run(pool, left, None, "sync", "gba"))
    assert counts["async"] == 1
    assert counts["sync"] == counts["gba"] and counts["gba"] in seeds


def test_where_no_mode_matters_the_first_seeds_are_enough() -> None:
    assert len(run(FakePool(10.0), 1e9, None)) == FEWEST_SEEDS * len(MODES)


def test_a_process_that_dies_is_told() -> None:
    future = Future[Any]()
    future.set_exception(BrokenProcessPool())
    with pytest.raises(ClusterError, match="type --jobs 1"):
        result_of(future)
