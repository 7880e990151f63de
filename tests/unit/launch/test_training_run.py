"""What runs say of themselves: one worse than no model, one that goes on from another, one that has no replay."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from gbactl.config.validation import switched_config
from gbactl.data.dataset import DAYS_BY_ROWS
from gbactl.errors import ConfigError, DataError, EventLogError
from gbactl.launch.hydra_config import compose
from gbactl.launch.progress import ProgressDisplay, Terminal
from gbactl.launch.training_run import train
from gbactl.replay.replay_command import replay, run_and_show
from gbactl.tracking.metrics_and_tags import ORIGIN_RUN, SLOW_WORKER, git_tags, user
from gbactl.tracking.mlflow_store import KIND, MODEL_DEVELOPMENT, NOTE, PARENT, connect, tracking_uri
from gbactl.tracking.run_description import CommandLine, SweepPlace
from tests.support.metric_groups import is_grouped

SMALL = (
    "cluster=virtual", "data.days=2", "data.rows_per_day=8000", "data.max_cardinality=100", "data.numeric=2",
    "data.fields=4", "model.dim=4", "model.hidden=[8]", "train.global_batch=64",
)  # fmt: skip
NOISY = """
import numpy as np
from torch import nn

class Noisy(nn.Module):
    def __init__(self, dim, fields):
        super().__init__()
        self.last = nn.Linear(dim * fields, 1)

    def forward(self, numeric, fields):
        return self.last(fields.flatten(1)).squeeze(1) + np.random.random()
"""


def test_a_run_that_goes_on_from_another_one_is_tagged_with_that(tmp_path: Path) -> None:
    uri = tracking_uri(uri=f"sqlite:///{tmp_path}/mlflow.db")
    own = (f"data.cache={tmp_path / 'cache'}", f"tracking.uri={uri}")
    first = train(
        compose(
            [
                *SMALL,
                *own,
                "data.days=3",
                "data.rows_per_day=2000",
                "train.days=1",
                "cost.worker_scale=[1,3,1,1]",
                "checkpoint=full",
                f"run_dir={tmp_path / 'first'}",
            ]
        )
    )
    then = train(
        compose([f"resume={tmp_path / 'first'}", "mode=async", "train.days=2", f"run_dir={tmp_path / 'then'}"])
    )
    tags = connect(uri).get_run(then["run_id"]).data.tags
    assert tags[ORIGIN_RUN] == first["run_id"] and then["mode"] == "sync>async@day1"
    assert f"[MLflow run `{first['run_id']}`](#/runs/{first['run_id']})" in tags[NOTE]
    of_first = connect(uri).get_run(first["run_id"]).data.tags
    assert of_first[SLOW_WORKER].startswith("W1's compute takes 3.0 times the median")
    assert ORIGIN_RUN not in of_first and "- W1's compute takes 3.0 times the median" in of_first[NOTE]


@pytest.mark.parametrize(("lr", "useless"), [("10", True), ("1e-3", False)])
def test_a_log_loss_above_the_base_rates_is_a_warning_everywhere(
    lr: str, useless: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = tracking_uri(uri=f"sqlite:///{tmp_path}/mlflow.db")
    cfg = compose([
        *SMALL, "mode=gba", f"data.cache={tmp_path / 'cache'}", "optim=adam", f"optim.lr={lr}",
        "train.on_divergence=continue", f"run_dir={tmp_path / 'run'}", f"tracking.uri={uri}", "checkpoint.keep=3",
        "optim.initial_accumulator=0.5",
    ])  # fmt: skip
    train(cfg, CommandLine("train", ("mode=gba", "checkpoint.keep=3", "optim.initial_accumulator=0.5")))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    run = connect(uri).get_run(result["run_id"])
    tags = run.data.tags
    assert run.data.params["mode"] == "gba" and len(run.data.params) < 25
    assert not {"checkpoint.keep", "optim.initial_accumulator"} & set(run.data.params), "typed, but without effect"
    assert {"auc", "logloss", "loss", "eps", "staleness", "eval/ne", "system/cpu_utilization_percentage"} <= set(
        run.data.metrics
    )
    assert run.info.run_name == "gba s0" and "Run it again" in tags[NOTE]
    assert run.data.metrics["train/eps_now"] > 0, "the last point is one of training"
    named = {"mlflow.user": user(), "mlflow.source.name": "gbactl train", "mlflow.source.type": "LOCAL"}
    assert (named | git_tags(Path.cwd())).items() <= tags.items()
    curves = ("auc", "loss", "system/cpu_utilization_percentage")
    auc, loss, system = ([m.step for m in connect(uri).get_metric_history(result["run_id"], name)] for name in curves)
    assert max(auc) == max(loss) == result["samples"]["trained"] == 8000, "one axis for all curves: samples"
    assert len(loss) >= 30 and set(system) <= {0, *loss}
    assert [(each.tags[0].value, each.dataset.name) for each in run.inputs.dataset_inputs] == [
        ("train", "synthetic"), ("eval", "synthetic"),
    ]  # fmt: skip
    experiment = connect(uri).get_experiment(run.info.experiment_id).tags
    assert experiment[KIND] == MODEL_DEVELOPMENT and "gbactl report --experiment gbactl" in experiment[NOTE]
    assert experiment[NOTE].startswith("Which distributed training mode should this model run in, on this cluster?\n")
    assert (result["ne"] > 1) == useless and result["status"] == "FINISHED"
    said = capsys.readouterr().err
    if not useless:
        assert "warnings" not in result and "gbactl.warnings" not in tags and "Warning" not in said
        run_and_show(str(tmp_path / "run"), None, None, uri)
        [child] = connect(uri).search_runs([run.info.experiment_id], f"tags.`{PARENT}` = '{run.info.run_id}'")
        assert (child.info.run_name, child.info.status) == ("replay of gba s0", "FINISHED")
        assert child.data.metrics["replay/steps"] == result["global_step"]
        assert [name for name in (*run.data.metrics, *child.data.metrics) if not is_grouped(name)] == []
        return
    [warning] = result["warnings"]
    assert warning.startswith(f"The log loss {result['logloss']:.4g} is {result['ne']:.4g} times that of ")
    assert tags["gbactl.warnings"] == warning
    assert f"Warning: {warning}" in said


def test_days_by_row_count_and_a_model_that_cannot_be_replayed_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "noisy_model.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "t.csv").write_text("y,c\n" + "1,a\n0,b\n" * 200)
    (tmp_path / "s.yaml").write_text("columns: {y: label, c: categorical}")
    data = ("data=table", f"data.path={tmp_path}/t.csv", f"data.schema={tmp_path}/s.yaml", "data.days=2")
    rest = ("cluster=virtual", "mode=gba", "train.global_batch=64", f"data.cache={tmp_path}/cache")
    own = ("model.target=noisy_model.Noisy", "tracking.enabled=false", f"run_dir={tmp_path}/run")
    warning, *_ = train(compose([*data, *rest, *own]))["warnings"]
    assert warning.startswith("The run cannot be replayed: model.target=noisy_model.Noisy gives another gradient")
    said = capsys.readouterr().err
    assert f"  {DAYS_BY_ROWS}\n" in said and f"Warning: {warning}\n" in said
    with pytest.raises(EventLogError, match=re.escape(warning)):
        replay(tmp_path / "run")


def test_an_error_in_the_data_leaves_the_terminal_its_cursor(tmp_path: Path) -> None:
    out = io.StringIO()

    class OnTerminal(ProgressDisplay):
        def __init__(self, unit: str, place: SweepPlace | None = None) -> None:
            super().__init__(unit, place)
            self.console = Terminal(file=out, force_terminal=True)

    (tmp_path / "t.csv").write_text("y,c\n" + "0,a\n" * 200)
    (tmp_path / "s.yaml").write_text("columns: {y: label, c: categorical}")
    data = ("data=table", f"data.path={tmp_path}/t.csv", f"data.schema={tmp_path}/s.yaml", "data.days=2")
    with pytest.raises(DataError, match="All 200 rows have the label 0"):
        train(compose([*data, "cluster=virtual", f"data.cache={tmp_path}/cache"]), display=OnTerminal)
    assert "reading t.csv" in out.getvalue()
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l"), "it is shown again"


def test_a_model_that_ends_with_a_sigmoid_is_doubted_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sure_model.py").write_text(NOISY.replace(" + np.random.random()", ".sigmoid()"))
    monkeypatch.syspath_prepend(tmp_path)
    own = ("model.target=sure_model.Noisy", "tracking.enabled=false", f"run_dir={tmp_path}/run")
    warning, *_ = train(compose([*SMALL, "mode=gba", f"data.cache={tmp_path}/cache", *own]))["warnings"]
    assert warning.startswith("model.target=sure_model.Noisy ends with a sigmoid")
    assert replay(tmp_path / "run")["identical"]


def test_a_policy_of_ones_own_is_tried_before_training_and_before_a_switch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = (
        "from gbactl.policies.async_and_bsp import AsyncPolicy\nclass Never(AsyncPolicy):\n    take = lambda *_: None\n"
    )
    (tmp_path / "never_policy.py").write_text(never)
    monkeypatch.syspath_prepend(tmp_path)
    own = ("tracking.enabled=false", f"data.cache={tmp_path}/cache", f"run_dir={tmp_path}/run")
    told = r"^mode\.target=never_policy\.Never grants no worker a batch, although \d+ samples are left"
    with pytest.raises(ConfigError, match=told):
        train(compose([*SMALL, "mode.target=never_policy.Never", *own]))
    assert not (tmp_path / "run").exists()
    cfg = compose([*SMALL, "mode=gba", *own])
    with pytest.raises(ConfigError, match=told):
        switched_config(cfg, cfg, {"name": "Never", "target": "never_policy.Never"})
