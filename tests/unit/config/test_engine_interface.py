"""cluster=auto: the engine of what the process runs in, by its environment."""

from __future__ import annotations

import pytest

from gbactl.config.engine_interface import detected_engine, with_engine
from gbactl.launch.hydra_config import compose

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
HOSTS = {"GBACTL_HOSTS": "worker-0:2,worker-1:2"}


@pytest.mark.parametrize(
    ("environment", "engine"),
    [
        ({}, "local"),
        ({"SLURM_JOB_NODELIST": "n[1-2]"}, "slurm"),
        ({"SLURM_JOB_NODELIST": ""}, "local"),
        (POD, "local"),
        (HOSTS, "local"),
        (POD | HOSTS, "exec"),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, "local"),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, "ray"),
    ],
)
def test_surroundings(environment: dict[str, str], engine: str) -> None:
    assert detected_engine(environment) == engine


def test_a_run_s_configuration_has_the_engine_that_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (POD | HOSTS).items():
        monkeypatch.setenv(name, value)
    cluster = compose(["cluster=auto"]).cluster
    assert (cluster.name, cluster.hosts, cluster.workers) == ("exec", ["worker-0:2", "worker-1:2"], 4)
    assert compose(["cluster=auto", "cluster.hosts=[a:1]"]).cluster.hosts == ["a:1"]


@pytest.mark.parametrize(
    ("typed", "then"),
    [
        (["cluster=auto", "-m"], ["cluster=slurm", "-m"]),
        (["cluster=auto,local", "mode=sync"], ["cluster=slurm,local", "mode=sync"]),
        (["cluster=local,auto"], ["cluster=local,slurm"]),
        (["switch=auto", "cluster.bind=auto"], ["switch=auto", "cluster.bind=auto"]),
    ],
)
def test_only_the_engine_is_replaced(typed: list[str], then: list[str]) -> None:
    assert with_engine(typed, {"SLURM_JOB_NODELIST": "n1"}) == then
