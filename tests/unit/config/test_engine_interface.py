"""cluster=auto: the engine of what the process runs in, by its environment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import gbactl
from gbactl.config import RunConfig
from gbactl.config.engine_interface import detected_engine
from gbactl.launch import training_run
from gbactl.launch.hydra_config import compose, run_hydra, with_shown_engine
from gbactl.launch.progress import after_run
from gbactl.tracking.run_description import CommandLine

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


def test_every_door_says_once_which_engine_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    typed, commands = ["cluster=auto", "tracking.enabled=false"], list[CommandLine]()

    def trained(cfg: RunConfig, command: CommandLine, **_: object) -> dict[str, str]:
        commands.append(command)
        after_run(cfg, command, {"run_dir": "made"}, compose)
        return {"run_dir": "made"}

    def told(door: Callable[[list[str]], object], *more: str) -> str:
        door([*typed, *more])
        return capsys.readouterr().err

    monkeypatch.setattr(training_run, "train", trained)
    assert told(compose) == "cluster=auto: in no scheduler, so cluster=local\n"
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    slurm = "cluster=auto: in a Slurm allocation, so cluster=slurm\n"
    for door in (lambda words: gbactl.train(*words), lambda words: run_hydra(words, trained)):
        assert told(door, "cluster.hosts=[a:4]") == slurm and "cluster=slurm" in commands.pop().overrides
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    for name, value in (POD | HOSTS).items():
        monkeypatch.setenv(name, value)
    assert told(compose) == "cluster=auto: in a pod with GBACTL_HOSTS, so cluster=exec\n"


@pytest.mark.parametrize(
    ("typed", "then"),
    [
        (["cluster=auto", "-m"], ["cluster=slurm", "-m"]),
        (["cluster=auto,local", "mode=sync"], ["cluster=slurm,local", "mode=sync"]),
        (["cluster=local,auto"], ["cluster=local,slurm"]),
        (["switch=auto", "cluster.bind=auto"], ["switch=auto", "cluster.bind=auto"]),
    ],
)
def test_only_the_engine_is_replaced(typed: list[str], then: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    assert with_shown_engine(typed) == then
