"""The HTML page: one file that needs no network, with the answer, table, charts and commands; means of curves."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from gbactl.errors import GbactlError
from gbactl.report.command import with_times
from gbactl.report.compare import compare
from gbactl.report.html_report import again, binned, page, write_figures
from gbactl.report.run_curves import Curves, curves_of
from gbactl.tracking.mlflow_connection import COMMAND, Run
from tests.support.report_examples import run, three


def result(mode: str, auc: float) -> dict[str, Any]:
    phases = [
        {"mode": mode, "samples": 500, "seconds": 5.0, "closing_seconds": 0.0, "auc": auc + day / 100} for day in (0, 1)
    ]
    curve = [
        {"samples": 20 * n, "seconds": 0.3 * n, "training_seconds": 0.2 * n, "loss": 1 / n, "auc": 0.5 + n / 200,
         "speeds": {"W0": 100.0, "W1": 20.0 if n < 25 else 100.0}} for n in range(1, 51)
    ]  # fmt: skip
    acted = [{"plan": 0, "process": "W1", "from_s": 0.0, "until_s": 7.5, "factor": 5.0}]
    recovery = [{"process": "S0", "failure": "kill", "at_s": 3.0, "useful_s": 1.5}]
    wire = {"bytes": {"dense": 2e6, "rows": 1e6}, "shared_memory": 0}
    return {
        "eps": 100.0, "phases": phases, "curve": curve, "staleness_histogram": {"0": 5, "2": 3}, "wire": wire,
        "samples": {"trained": 1000},
        "faults": {"plans": [{"kind": "constant"}], "acted": acted}, "recovery": recovery,
    }  # fmt: skip


def written(*more: Run) -> str:
    report = compare([*three(), *more])
    curves = {g.key: [curves_of(g.key[0], seed, result(g.key[0], 0.8)) for seed in g.seeds] for g in report.groups}
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


def test_the_page_is_one_well_formed_file_without_addresses() -> None:
    text = written()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == [] and text.isascii()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert "prefers-color-scheme: dark" in text and "@media print" in text
    assert "<title>Which &lt;mode&gt;?</title>" in text and "nan" not in re.findall(r'd="[^"]*"', text)


def test_it_has_the_answer_the_verdicts_and_every_chart() -> None:
    text = written(run("gba", 4, None, status="FAILED"))
    assert '<p class="answer">Against sync: gba: cannot tell' in text
    assert text.count('class="interval"') == 2 and 'class="verdict unknown"' in text
    for title in (
        "AUC over samples", "AUC over seconds", "Training loss", "Samples per second", "Seconds of training to sync",
        "Staleness of the gradients", "Bytes sent per sample", "Who was slow, and when",
    ):  # fmt: skip
        assert title in text, title
    assert "<title>S0 kill at 2 s (seed 1)</title>" in text and "W1 up to 5x slower, 0 to 5 s (seed 1)" in text
    assert "Left out, FAILED: gba-s4 (gba40000)." in text
    assert "gbactl train -m mode=gba seed=1,2,3" in text


def test_charts_are_files_that_stand_alone(tmp_path: Path) -> None:
    report = compare(three())
    phases = [{**phase, "mode": mode} for phase, mode in zip(result("", 0.8)["phases"], ("sync", "gba"), strict=True)]
    switched = {**result("gba", 0.8), "phases": phases}
    curves = {g.key: [curves_of(g.key[0], seed, switched) for seed in g.seeds] for g in report.groups}
    found = {path.name: path.read_text() for path in write_figures(report, curves, tmp_path / "new")}
    assert {"auc-over-samples.svg", "auc-over-seconds.svg", "staleness-of-the-gradients.svg"} <= set(found)
    for text in found.values():
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg" and ".c0 { color" in text
    texts = [each.text for each in ElementTree.fromstring(found["auc-over-samples.svg"]).iter() if each.text]
    names = [", ".join(filter(None, g.key)) for g in report.groups]
    assert texts.count("to gba") == 2 * len(names), "the mark of each line's switch, and its hover"
    assert set(names) <= set(texts) and "AUC over samples" in texts
    (tmp_path / "file").touch()
    with pytest.raises(GbactlError, match=r"File exists.*; type --plots"):
        write_figures(report, curves, tmp_path / "file")


def test_more_lines_than_colours_are_told_apart_by_dashes() -> None:
    report = compare([run(f"mode{n:02}", 1, 0.8) for n in range(12)])
    curves = {g.key: [curves_of(g.key[0], 1, result(g.key[0], 0.8))] for g in report.groups}
    text = page(report, curves)
    assert len(set(re.findall(r'data-colour="(c\d+)"', text))) == 12
    assert re.search(r":is\([^)]*\.c11\b[^)]*\) \.line \{ stroke-dasharray", text)


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


def test_incidents_are_placed_by_seconds_of_training() -> None:
    curves: Curves = curves_of("gba", "1", result("gba", 0.8))
    failed, slowed = curves.incidents
    assert (failed.process, failed.begin, failed.end) == ("S0", pytest.approx(2.0), pytest.approx(3.0))
    assert (slowed.begin, slowed.end, slowed.factor) == (0.0, pytest.approx(5.0), 5.0)
    assert len(curves.training) == 50


def test_runs_that_differ_in_their_seed_are_one_sweep() -> None:
    def typed(text: str, seed: int) -> Run:
        return replace(run("gba", seed, 0.8), tags={COMMAND: text})

    several = [typed(f"gbactl train mode=gba seed={seed} 'a=[1, 2]'", seed) for seed in (10, 9)]
    assert again([*several, typed("gbactl train mode=sync", 0), run("gba", 1, 0.8)]) == [
        "gbactl train -m mode=gba 'a=[1, 2]' seed=9,10", "gbactl train mode=sync seed=0",
    ]  # fmt: skip
