"""Sweep as a parent run in MLflow, which compares its runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from gbactl.config import RunConfig, TrackingConfig
from gbactl.errors import GbactlError
from gbactl.launch import sweep_parent_run
from gbactl.launch.hydra_config import run_hydra
from gbactl.launch.sweep_parent_run import BEST, PARENT_RUN, OpenSweep, SweepCallback, parent_tags, sweep_name
from gbactl.launch.training_run import train
from gbactl.report.report_command import selected
from gbactl.tracking.mlflow_store import NOTE, PARENT, VERDICT, connect, read_runs, tracking_uri
from gbactl.tracking.run_description import CommandLine
from tests.support.metric_groups import is_grouped

SMALL = (
    "cluster=virtual", "data.days=2", "data.rows_per_day=1500", "data.max_cardinality=100", "data.numeric=2",
    "data.fields=4", "model.dim=4", "model.hidden=[8]", "train.global_batch=64", "collective=shm",
)  # fmt: skip


def sweep(tmp_path: Path, *more: str, job: Callable[[RunConfig, CommandLine], Any] = train) -> None:
    places = (f"data.cache={tmp_path / 'cache'}", f"run_dir={tmp_path}/${{mode.name}}-${{seed}}")
    run_hydra(["-m", *SMALL, *places, f"tracking.uri={tracking_uri()}", *more], job)


def stored() -> tuple[list[Any], list[Any]]:
    """Parent runs, oldest first, and the runs that have one."""
    client = connect(tracking_uri())
    ids = [each.experiment_id for each in client.search_experiments()]
    runs = client.search_runs(ids, order_by=["attributes.start_time"])
    parents = [run for run in runs if "gbactl.kind" in run.data.tags]
    return parents, [run for run in runs if "gbactl.kind" not in run.data.tags]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv(PARENT_RUN, raising=False)


def test_a_sweep_compares_its_runs_and_those_that_it_takes_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = []  # of the parent, at the beginning of each job

    def noted(cfg: RunConfig, command: CommandLine) -> Any:
        notes.append(connect(tracking_uri()).get_run(os.environ[PARENT_RUN]).data.tags[NOTE])
        return train(cfg, command)

    sweep(tmp_path, "mode=sync,gba", "seed=1", "+tracking.tags.at=x${seed}", job=noted)
    assert "No run has ended yet." in notes[0] and "| sync | 1 |" in notes[1] and "| gba |" not in notes[1]
    [parent], children = stored()
    assert sorted(run.info.run_name for run in children) == ["gba s1", "sync s1"]
    assert {run.data.tags[PARENT] for run in children} == {parent.info.run_id}
    assert all(run.data.tags["gbactl.command"].endswith("'+tracking.tags.at=x${seed}'") for run in children)
    assert (parent.info.run_name, parent.info.status) == ("sync,gba", "FINISHED")
    assert [name for run in children for name in run.data.metrics if not is_grouped(name)] == []
    note = parent.data.tags[NOTE]
    assert (
        note.startswith("**Against sync: gba: ") and "| gba | 1 |" in note and "gbactl train -m cluster=virtual" in note
    )
    assert all(VERDICT in run.data.tags for run in (parent, *children) if run.info.run_name[:4] != "sync")
    client = connect(tracking_uri())
    files = {file.path for file in client.list_artifacts(parent.info.run_id, "plots")}
    bars = {"plots/samples-per-second-eps.svg", "plots/seconds-of-training-to-sync-s-last-auc.svg"}
    assert {"plots/auc-over-samples.svg", *bars} <= files
    page = Path(client.download_artifacts(parent.info.run_id, "report.html", str(tmp_path))).read_text()
    assert "Against sync: gba: " in page and page.count("<figure") >= 5
    assert len(read_runs(tracking_uri(), ["gbactl"], [])) == 2, "a report leaves the parent out"
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": AUC")[0] for line in lines[:2]] == ["run 1 of 2: sync s1", "run 2 of 2: gba s1"]
    assert lines[0].endswith("sync-1") and any(line.startswith("gba  ") and "vs" not in line for line in lines[2:])
    assert lines[-2] == f"compare runs:  gbactl report --sweep {parent.info.run_id[:8]} --uri {tracking_uri()}"
    assert lines[-1] == f"look at them:  gbactl ui --uri {tracking_uri()}" and max(map(len, lines[2:-2])) <= 80
    sweep(tmp_path, "mode=sync,gba", "seed=1", "+tracking.tags.at=x${seed}")
    assert re.search(r"run 2 of 2: gba s1: AUC 0\.\d{5}, finished before, gba-1\n", capsys.readouterr().err)
    (_, again), children = stored()
    assert len(children) == 2 and {run.data.tags[PARENT] for run in children} == {parent.info.run_id}, "they stay"
    assert "| gba | 1 |" in again.data.tags[NOTE]
    assert len(selected(read_runs(tracking_uri(), ["gbactl"], []), sweep=again.info.run_id)) == 2


def test_a_sweep_s_run_directories_may_name_what_only_its_jobs_have(tmp_path: Path) -> None:
    schedules = "switch.schedule=[{at: {day: 1}, to: async}],[{at: {day: 1}, to: gba}]"
    sweep(tmp_path, schedules, "data.days=3", "run_dir=to-${switch.schedule.0.to}")
    [parent], children = stored()
    assert {path.name for path in tmp_path.glob("to-*")} == {"to-async", "to-gba"}
    assert [run.data.tags[PARENT] for run in children] == 2 * [parent.info.run_id]


@pytest.mark.slow
def test_trials_are_children_and_the_best_is_a_tag_of_their_parent(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra gbactl[optuna] is not installed")
    rates = "optim.lr=tag(log, interval(0.0001, 0.01))"
    sweep(tmp_path, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2", "mode=gba", rates, "run_dir=lr-${optim.lr}")
    [parent], children = stored()
    assert [run.data.tags[PARENT] for run in children] == 2 * [parent.info.run_id]
    best, other = sorted(children, key=lambda run: -run.data.metrics["auc"])
    line, command = parent.data.tags["gbactl.best"].splitlines()
    assert line == f"optim.lr={best.data.params['optim.lr']}: auc {best.data.metrics['auc']:.6g}"
    assert f"optim.lr={best.data.params['optim.lr']}" in command and other.data.params["optim.lr"] not in command


def test_the_best_trial_of_a_resumed_run_is_trained_again_by_what_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / BEST).write_text("{best_params: {optim.lr: 0.1}, best_value: 0.7}")
    path, kept = "hydra.searchpath=[file:///own]", ["resume=runs/long", "run_dir=lr-${optim.lr}", "mode=gba"]
    overrides = {
        "task": ["model=dlrm", kept[0], "optim.lr=interval(0.1,1)", *kept[1:]],
        "hydra": [path, "hydra/sweeper=optuna", "hydra.sweeper.n_trials=2"],
    }
    config = {"objective": ["auc"], "hydra": {"sweep": {"dir": str(tmp_path)}, "overrides": overrides}}
    begun = OpenSweep(TrackingConfig())
    monkeypatch.setattr(sweep_parent_run, "_open", [begun])
    monkeypatch.setattr(SweepCallback, "chosen", ["model=dlrm"])
    monkeypatch.setattr(sys, "argv", ["gbactl train"])
    SweepCallback().on_multirun_end(OmegaConf.create(config))
    command = dict(begun.best)["train it"]
    assert shlex.split(command) == ["gbactl", "train", path, *kept, "optim.lr=0.1"]


def test_a_script_names_the_parent_and_a_failed_sweep_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT_RUN, "its-own")
    with pytest.raises(GbactlError):
        sweep(tmp_path, "mode=gba", "model.dropout=0.0,2.0")
    [parent], [child] = stored()
    assert parent.info.status == "FAILED" and child.data.tags[PARENT] == parent.info.run_id
    assert parent.data.tags[PARENT] == "its-own"
    assert parent_tags() == {PARENT: "its-own"}


def test_a_sweep_that_is_stopped_has_the_report_that_its_note_names(tmp_path: Path) -> None:
    def stopped_in_the_second(cfg: RunConfig, command: CommandLine) -> Any:
        if cfg.seed == 2:
            raise KeyboardInterrupt
        return train(cfg, command)

    with pytest.raises(KeyboardInterrupt):
        sweep(tmp_path, "mode=gba", "seed=1,2", job=stopped_in_the_second)
    [parent], _ = stored()
    assert parent.info.status == "KILLED" and "The artifact report.html" in parent.data.tags[NOTE]
    files = {file.path for file in connect(tracking_uri()).list_artifacts(parent.info.run_id)}
    assert "report.html" in files


def test_a_mistyped_sweep_leaves_no_parent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(GbactlError, match=r"no key optim.lrr. Did you mean optim.lr"):
        sweep(tmp_path, "mode=gba", "optim.lrr=1,2")
    assert stored() == ([], []) and "compare runs" not in capsys.readouterr().out
    assert not list(tmp_path.glob("runs/*-sweep-*"))


def test_without_a_store_a_sweep_trains_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    sweep(tmp_path, "mode=gba", "seed=0", f"tracking.uri=sqlite:///{tmp_path}/file/mlflow.db")
    assert len(list(tmp_path.glob("gba-*/result.json"))) == 1
    said = capsys.readouterr().err
    assert "did not take everything" in said and said.count("the sweep's runs have no parent run there") == 1
    sweep(tmp_path, "mode=gba,sync", "seed=1,1", "tracking.enabled=false")  # the second of each finished before
    told = capsys.readouterr().out.splitlines()
    assert not any("repeated" in line for line in told)
    assert [line.split()[:2] for line in told if re.match("(gba|sync) +1 ", line)] == [["sync", "1"], ["gba", "1"]]
    assert not list(tmp_path.glob("runs/*-sweep-*/*.jsonl"))[1:]


def test_a_sweep_is_named_by_what_varies() -> None:
    typed = ["experiment=modes", "mode=sync,gba", "seed=0,1", "model.hidden=[8,4]"]
    assert sweep_name(typed) == "sync,gba s0,1"
    assert sweep_name([*typed, "optim.lr=.1,.2"]) == "sync,gba lr=0.1,0.2 s0,1"
    schedules = "switch.schedule=[{at: {day: 2}, to: async}],[{at: {day: 2}, to: gba}]"
    assert sweep_name([schedules, "seed=0,1", "run_dir=a-${seed}"]) == "schedule=async@day2,gba@day2 s0,1"
    assert sweep_name(["seed=0,1"]) == "s0,1" and sweep_name(["seed=range(3)"]) == "s0,1,2"
    assert sweep_name(["mode=gba", "seed=1,2"]) == "gba s1,2" and sweep_name(["optim.lr=1"]) == "sweep"
    assert sweep_name(["optim.lr=tag(log, interval(0.0001, .1))"]) == "lr=0.0001..0.1", "of Optuna"
    assert sweep_name(["mode=glob([g*, hop_*])", "seed=1,2"]) == "g*,hop_* s1,2"
    assert sweep_name(["optim.lr=0.016599761066641544,.1"]) == "lr=0.0166,0.1"
