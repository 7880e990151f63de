"""Filters that one can type: which runs they choose, and what their mistakes say; runs read from directories."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from gbactl.errors import UsageError
from gbactl.report.compare import compare
from gbactl.report.report_command import ReportOptions, conditions, report, run_at, selected, sweep_table
from gbactl.tracking.metrics_and_tags import ORIGIN
from gbactl.tracking.mlflow_store import PARENT, TAKEN, Run
from gbactl.tracking.run_description import MODE_TAG
from tests.support.report_examples import run


def runs() -> list[Run]:
    made = [
        run("sync", 1, 0.8, at=1, cluster__workers="4"), run("gba", 1, 0.8, at=2, cluster__workers="4"),
        run("gba", 2, 0.8, at=3, cluster__workers="8", optim__lr="0.001", faults__name="one_slow"),
    ]  # fmt: skip
    parents = ("aaa", "abb", "abb")
    return [replace(each, tags={PARENT: parent, "who": parent}) for each, parent in zip(made, parents, strict=True)]


def test_a_sweep_from_a_base_compares_the_last_round(monkeypatch: pytest.MonkeyPatch) -> None:
    days = {"auc/day 2": 0.7, "eps/day 2": 5.0, "auc/day 10": 0.75, "eps/day 10": 7.0}
    found = [replace(each, metrics={**each.metrics, **days}) for each in runs()]
    monkeypatch.setattr("gbactl.report.report_command.read_children", lambda *_: found)
    assert "alone" not in sweep_table("", "")
    found = [replace(each, tags={ORIGIN: "abc@step9"}) for each in found]
    table = sweep_table("", "")
    assert "All columns are of day 10 alone; of the whole run: log loss, NE" in table and "0.75000" in table


OPTIONS = ReportOptions(
    runs=(), uri=None, experiments=(), where=(), last=None, sweep=None, by=None, baseline=None, on="auc", margin=None,
    round=None, time_to_auc=None, metrics=(), form="table", plots=None, log=False,
)  # fmt: skip


def test_resumed_runs_of_directories_pair_by_their_origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [tmp_path / f"{mode}-s{seed}" for mode in ("sync", "gba") for seed in (1, 2)]
    for folder in folders:
        folder.mkdir()
        mode, _, seed = folder.name.partition("-s")
        config = {"mode": {"name": mode}, "seed": int(seed), "resume": f"runs/base-s{seed}/checkpoints/step-9"}
        result = {"status": "FINISHED", "mode": mode, "auc": 0.7 + int(seed) / 100, "origin": "abc@step9"}
        result["cell"] = None if mode == "sync" else "0000-da7a-c0de"
        times = {name: {"compute": seconds, "batches": 1} for name, seconds in (("W0", 1.0), ("W1", 4.0), ("W2", 1.0))}
        result["time"] = {"processes": times}
        (folder / "config.yaml").write_text(json.dumps({**config, "tracking": {"tags": {"who": "me"}}}))
        (folder / "result.json").write_text(json.dumps(result))
    found = [run_at(folder)[0] for folder in folders]
    assert [(each.key, each.n) for each in compare(found).groups] == [(("sync",), 2), (("gba",), 2)]
    assert found[0].tags["who"] == "me" and found[0].params["mode"] == "sync"
    assert [(each.data, each.code) for each in found] == [("", "")] * 2 + [("da7a", "c0de")] * 2
    said = list[str]()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    report(replace(OPTIONS, runs=folders), said.append, said.append, said.append)
    assert (
        "gba, seed 1: W1's compute takes 4.0 times the median." in said[0]
        and "+-0.00707" in said[0]
        and said[0].isascii()
    )
    (folders[0] / "config.yaml").write_text("")
    with pytest.raises(UsageError, match=r"sync-s1 cannot be read"):
        run_at(folders[0])


@pytest.mark.parametrize(
    ("where", "times"),
    [
        (["mode=gba"], [2, 3]), (["mode=sync,gba"], [1, 2, 3]), (["mode=gba", "cluster.workers=8"], [3]),
        (["params.mode=sync"], [1]), (["optim.lr=1e-3"], [1, 2, 3]), (["seed=2"], [3]), (["faults=one_slow"], [3]),
        (["tags.who=aaa"], [1]),
    ],
)  # fmt: skip
def test_conditions_are_on_the_whole_configuration(where: list[str], times: list[int]) -> None:
    typed, filters = conditions(where)
    plain = [replace(each, params={"optim.lr": "0.001", **each.params}) for each in runs()]
    assert filters == [] and [each.start_ms for each in selected(plain, typed)] == times


def test_a_condition_on_a_structure_or_a_switched_mode_takes_the_name_that_is_shown() -> None:
    plans = [{"kind": "constant", "workers": [1, 2], "factor": 4}, {"kind": "kill", "servers": [0]}]
    slow = run("gba", 3, 0.8, at=4, faults__plans=str(plans))
    slow = replace(slow, tags={MODE_TAG: "sync>gba@day2"})
    typed, filters = conditions(["faults.plans=constant W1,2 x4 + kill S0"])
    assert filters == [] and [each.start_ms for each in selected([*runs(), slow], typed)] == [4]
    typed, _ = conditions(["mode=sync>gba@day2"])
    assert [each.start_ms for each in selected([*runs(), slow], typed)] == [4]
    with pytest.raises(UsageError, match=r"has faults\.plans=kill W1; there are: constant W1,2 x4 \+ kill S0\.$"):
        selected([*runs(), slow], conditions(["faults.plans=kill W1"])[0])


@pytest.mark.parametrize("text", ["params.mode = 'gba'", "params.mode='gba'", "metrics.auc=0.5", "metrics.auc > 0.7"])
def test_mlflows_syntax_stays(text: str) -> None:
    assert conditions([text, "mode=gba"])[1] == [text]


def test_the_newest_and_those_of_a_sweep() -> None:
    assert [each.start_ms for each in selected(runs(), last=2)] == [2, 3]
    assert [each.start_ms for each in selected(runs(), last=9)] == [1, 2, 3]
    assert [each.start_ms for each in selected(runs(), sweep="last")] == [2, 3]
    assert [each.start_ms for each in selected(runs(), sweep="aa", last=1)] == [1]


@pytest.mark.parametrize(
    ("started", "times"),
    [
        ({"aaa": 1, "abb": 2, "ccc": 9}, [1, 3]), ({"aaa": 9, "abb": 9, "ccc": 8}, [2, 3]),
        ({"aaa": 9, "abb": 2, "ccc": 8}, [1]), ({"ccc": 9}, [1, 3]), ({"aaa": 1, "ccc": 2}, [2, 3]),
        (None, [1, 3]),
    ],
    ids=["it reused runs", "tie", "none reused", "others are gone", "another is gone", "tie of runs"],
)  # fmt: skip
def test_the_last_sweep_is_the_one_that_began_last(started: dict[str, int] | None, times: list[int]) -> None:
    """Sweep ccc has trained nothing: its runs are one of aaa's and one of abb's."""
    found = [
        replace(each, tags={**each.tags, f"{TAKEN}ccc": "true"}) if each.start_ms != 2 else each for each in runs()
    ]
    assert [each.start_ms for each in selected(found, sweep="last", started=started)] == times


def test_the_store_says_when_sweeps_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gbactl.report.report_command.read_runs", lambda *_: runs())
    began = {"aaa": 9, "abb": 8}
    monkeypatch.setattr(
        "gbactl.report.report_command.read_start_times", lambda _, ids: {each: began[each] for each in ids}
    )
    said = list[str]()
    report(replace(OPTIONS, uri="http://there", sweep="last", form="json"), said.append, said.append, said.append)
    assert [each["key"] for each in json.loads(said[-1])["groups"]] == [["sync"]], "of sweep aaa"


@pytest.mark.parametrize(
    ("where", "sweep", "sentence"),
    [
        (["mode=bsp"], None, "None of the 3 runs has mode=bsp; there are: gba, sync."),
        (["colour=red"], None, "No run has the key colour. Type --where KEY=VALUE"),
        (["mdoe=gba"], None, "No run has the key mdoe. Did you mean mode"),
        ([], "a", "a is the beginning of 2 sweeps; type --sweep last"),
        ([], "zz", "None of the runs is of sweep zz"),
    ],
)
def test_mistakes_say_what_there_is(where: list[str], sweep: str | None, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        selected(runs(), conditions(where)[0], sweep)
    assert sentence in str(caught.value)
