"""Name, note, configuration tag and data sets of a run; the view of its experiment."""

from __future__ import annotations

import base64
import json
import shlex
import zlib
from pathlib import Path

import pytest

from gbactl.config import flatten
from gbactl.data.dataset import open_dataset
from gbactl.tracking.metrics_and_tags import logged_name
from gbactl.tracking.run_description import (
    LONGEST_NAME,
    LONGEST_TAG,
    VIEW,
    CommandLine,
    config_tag,
    dataset_inputs,
    folded,
    parameters,
    run_name,
    run_note,
    saved_view,
    short,
    view_path,
)
from tests.support.small_data import options, prepared

PLANS = "[{kind: constant, workers: [1], factor: 4}]"
SMOKE = ("experiment=smoke", "mode=gba", "mode.iota=3", "seed=1", "run_dir=runs/a", "+tracking.tags.a=b")


def test_a_run_is_named_by_what_was_typed() -> None:
    assert run_name("gba", 1, CommandLine("train", SMOKE)) == "gba iota=3 s1"
    assert run_name("sync>gba@day2", 0, CommandLine("switch", ("switch.schedule=[{at: 1}]",))) == "sync>gba@day2 s0"
    assert run_name("gba", 0, CommandLine("train", ("faults=one_slow", "data.path=/a/b"))) == "gba faults=one_slow s0"
    kept = CommandLine("train", ("checkpoint.keep=3", "mode.iota=3"))
    assert run_name("gba", 0, kept, {"checkpoint.keep"}) == "gba iota=3 s0"
    for plans in (PLANS, PLANS.replace(" ", "")):
        assert run_name("gba", 0, CommandLine("train", (f"faults.plans={plans}",))) == "gba plans=constant W1 x4 s0"


def test_a_list_of_names_with_colons_is_shown_as_typed() -> None:
    assert short("[a:4,b:4]") == "[a:4,b:4]"


@pytest.mark.parametrize(("logged", "shown"), [("None", "null"), ("True", "true"), ("[None, False]", "[null,false]")])
def test_a_constant_is_shown_as_it_is_typed(logged: str, shown: str) -> None:
    assert short(logged) == shown


def test_a_structure_has_one_name_however_it_was_typed() -> None:
    typed = "[{kind: random, workers: all, mean: 1.5}]"
    again = ("[{kind:random,workers:all,mean:1.5}]", "[{'kind': 'random', 'workers': 'all', 'mean': 1.5}]")
    assert short(typed).startswith("random all workers #") and {short(each) for each in again} == {short(typed)}
    assert short(typed) != short(typed.replace("1.5", "1.6"))


def test_a_run_of_a_sweep_is_named_by_what_varies() -> None:
    typed = ("experiment=modes", "mode=gba", "seed=2", "cluster.workers=8", "optim.lr=.01")
    assert run_name("gba", 2, CommandLine("train", typed, ("mode", "seed", "optim.lr"))) == "gba lr=.01 s2"


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("0.016599761066641544", "0.0166"), ("1.6599761066641544e-05", "1.66e-05"), ("-0.123456", "-0.1235"),
        ("1e-3", "1e-3"), ("0.001", "0.001"), (".01", ".01"), ("1234567", "1234567"), ("1.2.3.4.5", "1.2.3.4.5"),
        ("0.99999", "0.99999"), ("0.999912", "0.9999"),
    ],
)  # fmt: skip
def test_a_number_in_a_name_has_four_significant_digits(value: str, named: str) -> None:
    assert run_name("gba", 2, CommandLine("train", (f"optim.lr={value}",))) == f"gba lr={named} s2"


def test_a_long_name_keeps_its_seed() -> None:
    many = tuple(f"model.key{n}={'x' * 30}" for n in range(9))
    name = run_name("gba", 12, CommandLine("train", many))
    assert len(name) <= LONGEST_NAME and name.startswith("gba key0=xxxxxxxxxxxxxxxxx... ") and name.endswith(" s12")


def test_the_command_runs_again_in_a_directory_of_its_own() -> None:
    again = "gbactl train experiment=smoke mode=gba mode.iota=3 seed=1 +tracking.tags.a=b"
    assert CommandLine("train", SMOKE).text == again
    assert CommandLine("train", ("faults.plans=[{kind: kill}]",)).text == "gbactl train 'faults.plans=[{kind: kill}]'"
    fork = CommandLine("switch", ("resume=runs/base", "mode=gba", "run_dir=runs/fork"))
    assert fork.text == "gbactl switch resume=runs/base mode=gba run_dir=runs/fork", "else it would go on in runs/base"
    again = CommandLine("train", ("resume=runs/a", "tracking.enabled=false"))
    assert again.retyped(fork.text).overrides == (*fork.overrides, "tracking.enabled=false")
    assert again.retyped(again.retyped(fork.text).text) == again.retyped(fork.text)


def test_the_configuration_fits_into_a_tag_and_long_values_stay_different() -> None:
    config = {"mode": {"name": "gba", "iota": 3}, "seed": 1, "resume": None, "tracking": {"uri": "x"}, "cost": {}}
    assert json.loads(config_tag(config)) == {"mode": {"name": "gba", "iota": 3}, "seed": 1, "resume": None, "cost": {}}
    traces = [{**config, "faults": {"plans": [[0.5] * 5000 + [last]]}} for last in (1, 2)]
    first, second = map(config_tag, traces)
    assert len(first) <= LONGEST_TAG and first != second
    assert flatten(json.loads(first))["mode.iota"] == 3


def test_parameters_are_what_was_typed_and_what_differs() -> None:
    config = {
        "mode.name": "gba", "mode.iota": 3, "data.name": "libfm", "faults.name": "one_slow", "faults.plans": "[...]",
        "cluster.name": "local", "cluster.workers": 4, "optim.schedule.name": "cosine", "cost.name": "laptop",
        "seed": 0, "run_dir": "runs/a", "tracking.uri": "x", "train.global_batch": 64,
    }  # fmt: skip
    defaults = config | {"faults.name": "none", "train.global_batch": 2048, "run_dir": None, "optim.schedule.name": ""}
    command = CommandLine("train", ("data=frappe", "mode.iota=3", "experiment=frappe", "run_dir=runs/a", "~hydra.x"))
    assert parameters(config, command, defaults) == {
        "mode": "gba", "mode.iota": "3", "data": "frappe", "experiment": "frappe", "faults": "one_slow", "seed": "0",
        "cluster": "local", "train.global_batch": "64", "optim.schedule.name": "cosine",
    }  # fmt: skip
    slow = {"faults.plans": [{"kind": "constant", "workers": [1], "factor": 4}], "model.hidden": [8, 4]}
    typed = CommandLine("train", (f"faults.plans={PLANS}",))
    assert parameters(slow, typed, {}) == {"faults.plans": "constant W1 x4", "model.hidden": "[8, 4]"}


def test_a_note_says_what_happened_and_how_to_run_it_again() -> None:
    command = CommandLine("train", SMOKE)
    assert run_note("mode gba: 4 workers", command).splitlines()[0] == "mode gba: 4 workers"
    result = {"auc": 0.75, "eps": 12345.6, "staleness": {"mean": 1.25, "p99": 4.0}, "global_step": 40, "ne": None}
    note = run_note("mode gba", command, result, ["W1 killed at 2.0 s"])
    assert "- W1 killed at 2.0 s" in note and command.text in note
    assert "| AUC | EPS | steps | staleness mean / p99 |" in note and "| 0.75000 | 12,346 | 40 | 1.2 / 4 |" in note
    assert "No switch, no failure" in run_note("mode gba", command, result)
    failed = run_note("mode gba", command, {"error": "no room"})
    assert "- error: no room" in failed and "| AUC" not in failed


def test_what_was_trained_and_evaluated_on(tmp_path: Path) -> None:
    dataset = open_dataset(prepared(tmp_path, 100, days=3))
    train, judged = dataset_inputs(dataset, options(100, 3), {0, 1}, {1, 2})
    assert (train["name"], train["context"], judged["context"]) == ("synthetic", "train", "eval")
    assert train["digest"] != judged["digest"]
    assert json.loads(train["profile"]) == {"num_rows": 200, "splits": ["day0", "day1"]}
    columns = json.loads(train["schema"])["mlflow_colspec"]
    assert [columns[0]["name"], len(columns)] == ["label", 1 + 3 + 4]
    assert "data=synthetic data.rows_per_day=100" in train["source"] and train["source_type"] == "code"
    for given, uri, kind in [
        ({"train": "/data/train.libfm"}, "/data/train.libfm", "local"),
        ({"path": "bank.csv", "schema": "/there/schema.yaml"}, f"{Path.cwd()}/bank.csv", "local"),
        ({"path": ["a.csv", "b.csv"], "patterns": ["*.csv"]}, f"{Path.cwd()}/a.csv, {Path.cwd()}/b.csv", "local"),
        ({"path": "s3://clicks/day_0.parquet"}, "s3://clicks/day_0.parquet", "s3"),
    ]:
        files = dataset_inputs(dataset, {"name": "table", "cache": "/cache", **given}, {0}, {1})
        assert (json.loads(files[0]["source"]), files[0]["source_type"]) == ({"uri": uri}, kind)


def test_a_long_command_is_broken_between_words_and_means_the_same() -> None:
    words = ["gbactl", "train", *(f"key{n}=[{{at: {n}}}, {n}]" for n in range(12))]
    text = folded(shlex.join(words))
    assert (
        shlex.split(text.replace("\\\n", "")) == words
        and max(map(len, text.splitlines())) <= 110
        and len(text.splitlines()) > 2
    )
    assert folded("gbactl train mode=gba") == "gbactl train mode=gba"


def test_the_view_has_charts_of_the_main_metrics_by_mode() -> None:
    stored = json.loads(saved_view())
    packed = stored["state"].removeprefix("deflate;")
    state = json.loads(zlib.decompress(base64.b64decode(packed)))
    charts = [chart["metricKey"] for chart in state["compareRunCharts"]]
    assert charts[:5] == [logged_name(n) for n in ("auc", "eps", "loss", "staleness_mean", "progressive_auc")]
    assert state["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "gbactl.mode"}]
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} == {state["compareRunSections"][0]["uuid"]}
    assert view_path("7").startswith("/#/experiments/7/runs?") and view_path("7").endswith(f"={VIEW}")
