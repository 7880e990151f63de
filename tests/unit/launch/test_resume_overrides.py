"""`resume=RUN` and what is typed beside it: that run's configuration, changed there alone."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from gbactl.conf_catalogue import conf_dir
from gbactl.config import to_dict
from gbactl.errors import CheckpointError, GbactlError, UsageError
from gbactl.launch.hydra_config import compose
from gbactl.launch.resume import find, group_choices
from tests.support.checkpoint_files import POSITION, save, shards_of

STORED = [
    "mode=gba", "mode.iota=5", "data.days=7", "model.dim=3", "optim=adagrad", "optim.lr=0.5", "cluster.workers=2",
    "train.global_batch=64", "checkpoint=cpr_mfu", "+tracking.tags.study=a", "seed=9",
    "switch.schedule=[{at: {day: 1}, to: async}, {at: {day: 2}, to: sync}]",
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with a checkpoint; one switch is behind it."""
    cfg = compose(STORED)
    (tmp_path / "config.yaml").write_text("")
    mode = {**to_dict(cfg)["mode"], "iota": 6, "workers": 2}
    position = {**POSITION, "mode": mode, "switches": 1}
    save(tmp_path / "checkpoints", shards_of(1), config=to_dict(cfg), position=position)
    find.cache_clear()
    return tmp_path


def test_nothing_typed_changes_nothing_but_the_moment(run: Path) -> None:
    cfg = compose([f"resume={run}"])
    stored = compose(STORED)
    assert cfg.resume == str(run.resolve() / "checkpoints" / "cut-000001")
    assert cfg.mode.options["iota"] == 6, "as the mode was at the checkpoint"
    assert [entry.to for entry in cfg.entries] == ["sync"], "a switch that is behind it does not come again"
    same = ("data", "model", "optim", "cluster", "train", "checkpoint", "tracking", "seed")
    assert all(getattr(cfg, name) == getattr(stored, name) for name in same)


def test_what_is_typed_wins_key_by_key(run: Path) -> None:
    cfg = compose([f"resume={run}", "mode.iota=1", "cluster.servers=5", "optim.lr=0.25", "checkpoint.keep=7",
                   "switch.schedule=[]"])  # fmt: skip
    assert cfg.mode.options["iota"] == 1
    assert (cfg.cluster.workers, cfg.cluster.servers, cfg.optim.lr) == (2, 5, 0.25)
    assert (cfg.checkpoint.name, cfg.checkpoint.keep) == ("cpr_mfu", 7)
    assert cfg.entries == cfg.switch.modes == [] and cfg.train.global_batch == 64


def test_a_group_that_is_typed_is_taken_as_a_whole(run: Path) -> None:
    cfg = compose([f"resume={run}", "mode=hop_bs", "mode.bound=4", "checkpoint=full"])
    assert (cfg.mode.name, cfg.mode.options["bound"]) == ("hop_bs", 4)
    assert dataclasses.asdict(cfg.checkpoint)["name"] == "full"
    assert cfg.model.dim == 3


def test_a_run_on_slurm_goes_on_on_the_nodes_of_its_next_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, slurm = tmp_path / "run", tmp_path / "scontrol"
    run.mkdir()
    slurm.write_text("#!/bin/sh\nprintf 'n3\\nn4\\n'\n")
    slurm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    for key, value in {"JOB_NODELIST": "n[3-4]", "NTASKS": "2", "TASKS_PER_NODE": "1(x2)"}.items():
        monkeypatch.setenv(f"SLURM_{key}", value)
    foreign(run, name="slurm", hosts=["n1:1", "n2:1"], bind="10.0.0.1")
    cfg = compose([f"resume={run}"])
    assert (cfg.cluster.hosts, cfg.cluster.bind, cfg.cluster.workers) == (["n3:1", "n4:1"], "auto", 2)
    assert compose([f"resume={run}", "cluster.hosts=[n4:2]"]).cluster.hosts == ["n4:2"]
    with pytest.raises(UsageError, match=r"cluster.workers=2 do not fit into the 1 slots"):
        compose([f"resume={run}", "cluster.hosts=[n4:1]"])


WRONG = {"experiment=smoke": "leave experiment= out", "mode.bound=3": r"mode\.bound does not", "no=1": "no key no"}


@pytest.mark.parametrize(("typed", "message"), WRONG.items())
def test_what_cannot_be_typed(run: Path, typed: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compose([f"resume={run}", typed])


FOREIGN = {
    "cluster.ssh": "sh -c 'touch evil' #", "cluster.python": "/tmp/evil", "cluster.forward": ["AWS_SECRET_ACCESS_KEY"],
}  # fmt: skip


def foreign(run: Path, **cluster: Any) -> None:
    """A run with a checkpoint, whose configuration somebody else has written."""
    config = to_dict(compose(["cluster=hosts", "cluster.hosts=[a:2]", "mode=gba", "train.global_batch=64"]))
    config["cluster"].update(cluster)
    (run / "config.yaml").write_text("")
    mode = {**config["mode"], "workers": 2}
    save(run / "checkpoints", shards_of(1), config=config, position={**POSITION, "mode": mode})
    find.cache_clear()


@pytest.mark.parametrize(("key", "value"), FOREIGN.items())
def test_commands_of_another_run_are_taken_only_if_they_are_typed(tmp_path: Path, key: str, value: Any) -> None:
    name = key.partition(".")[2]
    foreign(tmp_path, **{name: value})
    with pytest.raises(UsageError, match=rf"has {key}=.*type {key}=VALUE beside resume=") as told:
        compose([f"resume={tmp_path}"])
    assert "\n" not in str(told.value)
    typed = json.dumps(value)
    assert getattr(compose([f"resume={tmp_path}", f"{key}={typed}"]).cluster, name) == value
    assert compose([f"resume={tmp_path}", "cluster=local"]).cluster.name == "local"


def test_a_run_that_names_no_command_goes_on_with_its_hosts(tmp_path: Path) -> None:
    foreign(tmp_path)
    assert compose([f"resume={tmp_path}"]).cluster.hosts == ["a:2"]


def test_a_run_in_pods_goes_on_from_another_pod(tmp_path: Path) -> None:
    kubectl = "kubectl exec -i {host} -- {agent}"
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    foreign(own, name="exec", exec=kubectl, hosts=["pod-0:2"], bind="10.0.0.1")
    cluster = compose([f"resume={own}"]).cluster
    assert (cluster.hosts, cluster.bind, cluster.options) == (["pod-0:2"], "auto", {"exec": kubectl})
    foreign(other, name="exec", exec="evil {host} {agent}")
    with pytest.raises(UsageError, match=r"has cluster.exec='evil .*type cluster.exec=VALUE beside resume="):
        compose([f"resume={other}"])


def test_a_group_s_file_outside_the_configuration_s_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "evil.yaml").write_text("# @package hydra\nlauncher: {_target_: os.system}\n")
    outside = os.path.relpath(tmp_path / "evil", conf_dir() / "cluster")
    foreign(tmp_path, name=outside)
    assert group_choices([f"resume={tmp_path}"], conf_dir())
    assert not any("evil" in text for text in group_choices([f"resume={tmp_path}"], conf_dir()))


def test_runs_that_are_not_there_or_have_nothing(tmp_path: Path) -> None:
    with pytest.raises(GbactlError, match="There is no run nowhere"):
        compose(["resume=nowhere"])
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        compose([f"resume={tmp_path}"])


def test_the_beginning_of_a_run_s_name_is_no_number(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    (run / "runs").mkdir()
    for name in ("3e45ab", "007a"):
        (run / "runs" / name).symlink_to(run)
    for typed in ("3e45", "007"):
        assert compose([f"resume={typed}"]).resume == str(run.resolve() / "checkpoints" / "cut-000001")


def test_a_sweep_names_the_run_of_each_seed(run: Path) -> None:
    (run.parent / "base-9").symlink_to(run)
    name = f"{run.parent}/base-${{seed}}"
    assert "mode=gba" in group_choices(["-m", "seed=9,10", f"resume={name}"], conf_dir())
    assert compose(["seed=9", f"resume={name}"]).resume == str(run.resolve() / "checkpoints" / "cut-000001")
    with pytest.raises(UsageError, match="base-10"):
        group_choices(["-m", "seed=10,9", f"resume={name}"], conf_dir())
