"""Simulations of an advice: a saved base, and modes that go on from it with real gradients; times without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gbactl.advise.sample import Sample, sample_of
from gbactl.advise.simulation_jobs import in_mode, newest, on_virtual_cluster, predicted_eps, simulate, train_base
from gbactl.config import OptimConfig, RunConfig, check
from gbactl.errors import ConfigError
from gbactl.launch.hydra_config import compose
from tests.support import small_data
from tests.support.simulated_runs import config


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    cfg = config("sync")
    return sample_of(small_data.prepared(tmp_path_factory.mktemp("cache"), 1500, 4), cfg.train, 800, 1024)


@pytest.fixture(scope="module")
def base(sample: Sample, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("advice") / "base-s3"
    assert train_base(config("sync"), sample, folder) > 0
    return folder


def test_a_mode_goes_on_from_the_base(sample: Sample, base: Path, tmp_path: Path) -> None:
    for mode in ("sync", "gba"):
        found = simulate(in_mode(config("sync"), mode), sample, tmp_path / mode, base)
        assert (found.mode, found.seed, found.diverged) == (mode, 3, "")
        assert len(found.parts) == sample.parts and sum(part["samples"] for part in found.parts) == sample.trained
        assert all(part["mode"] == mode and 0 < part["auc"] < 1 for part in found.parts)
        assert found.result["samples"]["read"] == sample.base + sample.trained
        assert found.result["mode"].partition("@")[0] == ("sync" if mode == "sync" else "sync>gba")
        assert found.eps > 0 and found.took.total > 0 and (tmp_path / mode / "result.json").exists()
    assert newest(base).is_dir()


def test_times_do_not_depend_on_gradients(sample: Sample, tmp_path: Path) -> None:
    cfg = config("gba", cost={"spread": "lognormal", "spread_scale": 0.3})
    whole = replace(sample, base=0, part=sample.timed, parts=1, judged=1400)
    trained = simulate(cfg, whole, tmp_path / "whole", None)
    assert trained.result["phases"][-1]["samples"] == sample.timed
    assert trained.eps == predicted_eps(cfg, sample, tmp_path / "times")
    assert predicted_eps(replace(cfg, seed=4), sample, tmp_path / "times") != trained.eps


def test_a_mode_that_diverges_is_an_outcome(sample: Sample, tmp_path: Path) -> None:
    wild = check(replace(config("async", hard=False), optim=OptimConfig(name="sgd", lr=1e30)))
    found = simulate(wild, sample, tmp_path, None)
    assert found.diverged and not found.result and found.eps > 0


def test_a_configuration_moves_to_the_virtual_cluster_and_to_another_mode() -> None:
    cfg = on_virtual_cluster(RunConfig())
    assert not cfg.engine.real and cfg.cluster.workers == 4
    assert in_mode(cfg, "gba").mode.options["iota"] == 3 and in_mode(cfg, "sync") is cfg
    assert on_virtual_cluster(compose(["experiment=demo"])).checkpoint.name == "none"
    assert on_virtual_cluster(compose(["faults=kill_server"])).checkpoint.name == "cpr"
    one = replace(cfg, cluster=replace(cfg.cluster, workers=1))
    with pytest.raises(ConfigError, match="backup"):
        in_mode(one, "hop_bw")
