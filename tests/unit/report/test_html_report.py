"""The HTML page: one file that needs no network, with the answer, table, charts and commands; means of curves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest

from gbactl.errors import GbactlError
from gbactl.report import charts
from gbactl.report.compare import compare
from gbactl.report.failures_and_slowdowns import slow_sentence
from gbactl.report.html_report import binned, page, rerun_commands, write_figures
from gbactl.report.report_command import with_times
from gbactl.report.run_curves import Curves, curves_of
from gbactl.tracking.metrics_and_tags import SLOW_WORKER
from gbactl.tracking.mlflow_store import COMMAND, Run
from tests.support.report_examples import run, three


def result(mode: str, auc: float, seconds: float = 5.0) -> dict[str, Any]:
    each = {"mode": mode, "samples": 500, "seconds": seconds, "closing_seconds": 0.0}
    phases = [{**each, "auc": auc + day / 100} for day in (0, 1)]
    curve = [
        {"samples": 20 * n, "seconds": 0.3 * n, "training_seconds": 0.2 * n, "loss": 1 / n, "auc": 0.5 + n / 200,
         "speeds": {"W0": 100.0, "W1": 20.0 if n < 25 else 100.0}} for n in range(1, 51)
    ]  # fmt: skip
    acted = [{"plan": 0, "process": "W1", "from_s": 0.0, "until_s": 7.5, "factor": 5.0}]
    recovery = [{"process": "S0", "failure": "kill", "at_s": 3.0, "useful_s": 1.5}]
    wire = {"bytes": {"dense": 2e6, "rows": 1e6}, "shared_memory": 0}
    return {
        "eps": 100.0, "phases": phases, "curve": curve, "staleness_histogram": {"0": 5, "2": 3}, "wire": wire,
        "samples": {"trained": 1000}, "time": {"since_second": 7.0, "processes": {"W0": {"compute": 1.0}}},
        "faults": {"plans": [{"kind": "constant"}], "acted": acted}, "recovery": recovery,
    }  # fmt: skip


def written(*more: Run) -> str:
    report = compare([*three(), *more])
    curves = {
        g.key: [curves_of(seed, result(g.key[0], 0.8, 4.0 + int(seed))) for seed in g.seeds] for g in report.groups
    }
    runs = [
        replace(each, tags={COMMAND: f"gbactl train mode={each.params['mode']} seed={each.seed}"}) for each in three()
    ]
    return page(with_times(report, curves, "baseline"), curves, runs, "Which <mode>?")


class Balanced(HTMLParser):
    """Fails where an element is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def specs_of(text: str) -> dict[str, Any]:
    """The page's charts by title."""
    found = re.search(r"const specs = (\[.*\]), config = \{", text)
    return {} if found is None else {spec["description"]: spec for spec in json.loads(found[1])}


def rows_of(spec: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [row for row in spec["data"]["values"] if row["kind"] == kind]


def test_the_page_is_one_well_formed_file_that_fetches_nothing() -> None:
    text = written()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and text.isascii()
    vega = files("gbactl.report").joinpath("vega.js").read_text()
    assert text.count(vega) == 1 and "</script" not in vega and "<!--" not in vega
    addresses = {urlsplit(found).netloc for found in re.findall(r"https?://[^\s\"'`]+", vega)}
    assert addresses == {"www.w3.org", "vega.github.io", "github.com"}, "names of XML and schemas, and links not shown"
    own = text.replace(vega, "")
    assert not re.search(r"(src|href)=|https?://|@import|url\(", own)
    assert "prefers-color-scheme: dark" in own and "@media print" in own
    assert "<title>Which &lt;mode&gt;?</title>" in own


def test_a_caption_has_a_time_once() -> None:
    workers = {f"W{n}": {"batches": 10, "compute": 4.0 if n == 3 else 1.0, "all_reduce": 3.0} for n in range(4)}
    time: dict[str, Any] = {"since_second": 2.0, "processes": workers, "first_second": 2.0, "bin_seconds": 8.0}
    time["bins_by_mode"] = [{"sync": workers}]
    report = compare(three())
    curves = {g.key: [curves_of(1, {**result("sync", 0.8), "time": time})] for g in report.groups}
    text = page(report, curves, three(), "")
    assert text.count("sync, seed 1: W3&#39;s compute takes 4.0 times the median since second 2 of the run; sync") == 1


def test_it_has_the_answer_the_verdicts_and_every_chart() -> None:
    text = written(run("gba", 4, None, status="FAILED"))
    assert '<p class="answer">Against sync: gba: cannot tell' in text
    assert text.count('class="interval"') == 2 and 'class="verdict undecided"' in text
    specs = specs_of(text)
    assert list(specs) == [
        "AUC over samples", "AUC over seconds", "Training loss over samples", "Samples per second (EPS)",
        "Seconds of training to sync's last AUC", "Staleness of the gradients", "Bytes sent per sample",
        "sync, seed 1", "gba, seed 1",
        *(f"{mode}, seed 1: times since second 7 of the run" for mode in ("sync", "gba")),
    ]  # fmt: skip
    assert re.findall("<figcaption>(.*)</figcaption>", text) == [title.replace("'", "&#39;") for title in specs]
    marks = rows_of(specs["AUC over seconds"], "failure") + rows_of(specs["AUC over seconds"], "slow")
    assert [(mark["x"], mark["text"]) for mark in marks if mark["group"] == "gba"] == [
        (2.0, "S0 kill at 2 s (seed 1)"), (0.0, "W1 up to 5x slower, 0 to 5 s (seed 1)"),
    ]  # fmt: skip
    marks = rows_of(specs["AUC over samples"], "failure") + rows_of(specs["AUC over samples"], "slow")
    assert [(mark["x"], mark.get("end")) for mark in marks if mark["group"] == "gba"] == [(200.0, None), (0.0, 500.0)]
    times = {row["group"]: row for row in specs["Seconds of training to sync's last AUC"]["data"]["values"]}
    assert [times["gba"][key] for key in ("low", "end", "high")] == [10.0, 12.0, 14.0], "least, median, largest"
    sent = [row for row in specs["Bytes sent per sample"]["data"]["values"] if row["group"] == "gba"]
    assert [(row["begin"], row["end"], row["label"]) for row in sent] == [(0, 2000, "3,000"), (2000, 3000, None)]
    eps = {row["group"]: row for row in specs["Samples per second (EPS)"]["data"]["values"]}
    assert eps["gba"]["low"] < eps["gba"]["end"] < eps["gba"]["high"] and "95 % interval" in eps["gba"]["text"]
    slow = [row for row in specs["gba, seed 1"]["data"]["values"] if row["process"] == "W1" and row["speed"] < 0.5]
    assert max(row["until"] for row in slow) == pytest.approx(5.0, abs=0.4)
    assert "Left out, FAILED: gba-s4 (gba40000)." in text
    assert "gbactl train -m mode=gba seed=1,2,3" in text


@pytest.mark.parametrize(
    ("kind", "factor", "text"),
    [
        ("constant", 5.0, "W1 up to 5x slower, 0 to 5 s (seed 1)"), ("hog", 1.0, "W1 hog, 0 to 5 s (seed 1)"),
        ("messages", 1.0, "W1 messages, 0 to 5 s (seed 1)"),
    ],
)  # fmt: skip
def test_a_fault_without_a_factor_is_marked_by_its_kind(kind: str, factor: float, text: str) -> None:
    found = result("gba", 0.8)
    found["faults"] = {"plans": [{"kind": kind}], "acted": [{**found["faults"]["acted"][0], "factor": factor}]}
    report = compare([run("gba", 1, 0.8)])
    specs = specs_of(page(report, {report.groups[0].key: [curves_of("1", found)]}))
    assert [mark["text"] for mark in rows_of(specs["AUC over seconds"], "slow")] == [text]


def test_the_slow_worker_of_a_run_is_named_below_the_table_and_above_the_times_of_its_processes() -> None:
    times = {name: {"compute": seconds, "batches": 10} for name, seconds in (("W0", 1.0), ("W1", 4.0), ("W2", 1.0))}
    slow = {**result("gba", 0.8), "time": {"processes": times}}
    said = slow_sentence(slow["time"])
    report = compare([replace(run("gba", 1, 0.8), tags={SLOW_WORKER: said})])
    text = page(report, {report.groups[0].key: [curves_of("1", slow)]})
    assert said == "W1's compute takes 4.0 times the median" and f"gba, seed 1: {said}" in specs_of(text)
    assert f"<li>gba, seed 1: {said}.</li>".replace("'", "&#39;") in text


def test_longer_is_neither_better_nor_worse() -> None:
    took = {"sync": 10.0, "gba": 15.0}
    runs = [replace(each, metrics={**each.metrics, "wall_seconds": took[each.params["mode"]]}) for each in three()]
    text = page(compare(runs, on="wall_seconds"), {})
    assert '<span class="verdict higher"' in text
    assert not re.search(r"\.(higher|lower)\b", text.partition("</style>")[0]), "no colour of its own"


def test_a_curve_is_the_mean_over_seeds_with_their_range() -> None:
    curves = {("gba",): [curves_of(seed, result("gba", auc)) for seed, auc in (("1", 0.8), ("2", 0.7))]}
    shifted = replace(
        curves["gba",][1], training=tuple(p._replace(auc=p.auc + 0.02) for p in curves["gba",][1].training)
    )
    report = compare([run("gba", 1, 0.8), run("gba", 2, 0.7)])
    text = page(report, {report.groups[0].key: [curves["gba",][0], shifted]})
    spec = specs_of(text)["AUC over samples"]
    line, dots = rows_of(spec, "line"), rows_of(spec, "dot")
    assert all(row["mean"] - row["low"] == pytest.approx(0.01) == row["high"] - row["mean"] for row in line)
    assert [(row["mean"], row["low"], row["high"]) for row in dots] == [(0.75, 0.7, 0.8), (0.76, 0.71, 0.81)]
    low, high = spec["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert low < min(row["low"] for row in dots) and max(row["high"] for row in dots) < high
    lost = {"kind": "dot", "group": "gba", "x": 1.0, "mean": math.nan, "low": 0.7, "high": math.nan}
    assert charts.curves("AUC", ["gba"], [lost], "samples") is None, "JSON has no nan"


def test_charts_are_files_that_stand_alone(tmp_path: Path) -> None:
    names = ("sync", "</script><b>&")
    report = compare([run(name, seed, 0.8) for name in names for seed in (1, 2)], baseline="sync")
    phases = [{**phase, "mode": mode} for phase, mode in zip(result("", 0.8)["phases"], ("sync", "gba"), strict=True)]
    switched = {**result("gba", 0.8), "phases": phases}
    curves = {g.key: [curves_of(seed, switched) for seed in g.seeds] for g in report.groups}
    found = {path.name: path.read_text() for path in write_figures(report, curves, tmp_path / "new")}
    assert {"auc-over-samples.svg", "auc-over-seconds.svg", "staleness-of-the-gradients.svg"} <= set(found)
    for text in found.values():
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert "--c0: #" in text and "var(--c1)" in text and "NaN" not in text and "undefined" not in text
    texts = [each.text for each in ElementTree.fromstring(found["auc-over-samples.svg"]).iter() if each.text]
    assert texts.count("to gba") == 2, "the mark of each line's switch"
    drawn, plain = (
        specs_of(page(report, {g.key: [curves_of("1", each)] for g in report.groups}))
        for each in (switched, result("gba", 0.8))
    )
    for title, x in (("AUC over samples", 500), ("AUC over seconds", 5)):
        assert [row["x"] for row in rows_of(drawn[title], "switch")] == [x, x]
    axes = (each["AUC over samples"]["layer"][1]["encoding"]["y"]["scale"]["domain"] for each in (drawn, plain))
    (_, top), (_, low) = axes
    assert top > low + 0.01, "the marks' labels are above the curves"
    assert {*names, "AUC over samples"} <= set(texts)
    assert page(report, curves).count("</script>") == page(compare(three()), curves).count("</script>")
    (tmp_path / "file").touch()
    with pytest.raises(GbactlError, match=r"File exists.*; type --plots"):
        write_figures(report, curves, tmp_path / "file")


def test_labels_of_several_lines_stand_apart() -> None:
    names = [f"{mode}, faults=none, cluster=virtual, train.days=null, model.dim=4" for mode in ("sync", "gba")]
    bars = charts.bars("EPS", names, [{"group": n, "begin": 0.0, "end": 1.0, "text": n} for n in names], "EPS")
    steps = charts.histograms("Staleness", names, [{"group": n, "step": 0, "percent": 1.0} for n in names], "steps")
    assert bars and steps and steps["spec"]["height"] >= 5 * 13
    texts = [each for each in ElementTree.fromstring(charts.svg(bars)).iter() if each.tag.endswith("}text")]
    labels = [each for each in texts if len(each) == 5]
    first, second = (float(re.findall(r"[\d.]+", each.attrib["transform"])[-1]) for each in labels)
    assert second - first >= 5 * 13


def test_more_lines_than_colours_are_told_apart_by_dashes() -> None:
    report = compare([run(f"mode{n:02}", 1, 0.8) for n in range(12)])
    curves = {g.key: [curves_of("1", result(g.key[0], 0.8))] for g in report.groups}
    text = page(report, curves)
    line = specs_of(text)["AUC over samples"]["layer"][1]["encoding"]["strokeDash"]["scale"]
    assert line["range"] == [[1, 0]] * 8 + [[6, 4]] * 4 and len(set(line["domain"])) == 12
    assert len(set(re.findall(r'<button.*class="chip(.*?)"></span>', text))) == 12


def test_a_page_without_curves_and_one_of_a_single_run() -> None:
    alone = replace(run("<b>&", 1, 0.8), metrics={"auc": 0.8, "eps": 50.0, "auc/day 0": 0.7, "auc/day 1": 0.8})
    text = page(compare([alone]), {})
    assert "&lt;b&gt;&amp;: AUC 0.80000, EPS 50." in text and "<b>" not in text
    assert "No run has figures that can be compared." in page(compare([run("gba", 1, None)]), {})
    assert "Days and epochs" in text and ">day 1</td>" in text and "<figure" not in text


def test_cells_average_what_lies_in_them() -> None:
    points = [(1.0, 2.0, 1.0), (2.0, None, 1.0), (4.0, 6.0, 3.0)]
    assert binned(points, [0.0, 0.5, 1.0, 4.0, 5.0])[:3] == [2.0, 2.0, 6.0]
    assert math.isnan(binned(points, [0.0, 4.0, 5.0])[1]) and math.isnan(binned([], [0.0, 1.0])[0])
    assert binned(points, [0.0, 4.0]) == [5.0]


@pytest.mark.parametrize(
    ("present", "grey"),
    [
        (lambda n: True, (0, 0)), (lambda n: n < 20 or n >= 35, (4, 20 / 3)), (lambda n: n > 15, (0, 3)),
        (lambda n: n < 25, (5, 10)), (lambda n: n % 3 == 2, (0, 0)),
    ],
    ids=["always there", "died and was replaced", "joined late", "died", "a batch takes three points"],
)  # fmt: skip
def test_a_worker_has_no_speed_while_it_finishes_no_batch(
    present: Callable[[int], bool], grey: tuple[float, float]
) -> None:
    """A point is .2 s, and a cell a third of a second."""
    found = result("gba", 0.8)
    for n, point in enumerate(found["curve"], 1):
        point["speeds"] = {"W0": 100.0, **({"W1": 100.0} if present(n) else {})}
    report = compare([run("gba", 1, 0.8)])
    rows = specs_of(page(report, {report.groups[0].key: [curves_of("1", found)]}))["gba, seed 1"]["data"]["values"]
    without = [(row["begin"], row["until"]) for row in rows if row["process"] == "W1" and "speed" not in row]
    assert (without[0][0], without[-1][1]) == pytest.approx(grey, abs=1e-5) if any(grey) else not without
    assert len(without) == round(3 * (grey[1] - grey[0])) and len(rows) == 60
    assert all(row.get("speed", 1.0) == 1.0 for row in rows)


def test_incidents_are_placed_by_seconds_of_training() -> None:
    curves: Curves = curves_of("1", result("gba", 0.8))
    failed, slowed = curves.incidents
    assert (failed.process, failed.begin, failed.end) == ("S0", pytest.approx(2.0), pytest.approx(3.0))
    assert (slowed.begin, slowed.end, slowed.factor) == (0.0, pytest.approx(5.0), 5.0)
    assert len(curves.training) == 50


def test_runs_that_differ_in_their_seed_are_one_sweep() -> None:
    def typed(text: str, seed: int) -> Run:
        return replace(run("gba", seed, 0.8), tags={COMMAND: text})

    several = [typed(f"gbactl train mode=gba seed={seed} 'a=[1, 2]'", seed) for seed in (10, 9)]
    assert rerun_commands([*several, typed("gbactl train mode=sync", 0), run("gba", 1, 0.8)]) == [
        "gbactl train -m mode=gba 'a=[1, 2]' seed=9,10", "gbactl train mode=sync seed=0",
    ]  # fmt: skip
