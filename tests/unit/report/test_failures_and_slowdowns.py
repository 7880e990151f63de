"""Failures and slow-downs: injected beside observed in every format; shares of time, and the slowest worker."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from time import localtime, strftime
from typing import Any

import pytest

from gbactl.report.charts import heat_map
from gbactl.report.compare import Report, compare
from gbactl.report.failures_and_slowdowns import MOST_LINES, activity_shares, slow_sentence, slowdowns
from gbactl.report.text_formats import FORMATS, render, stderr_sentences
from gbactl.tracking.metrics_and_tags import SLOW_WORKER
from gbactl.tracking.mlflow_store import Run
from tests.support.report_examples import run


def faulty(one: Run, **workers: tuple[float | None, float | None]) -> Run:
    """`workers`: injected and observed of each."""
    metrics = dict(one.metrics)
    for worker, pair in workers.items():
        for kind, value in zip(("injected", "observed"), pair, strict=True):
            if value is not None:
                metrics[f"fault_{kind}/{worker}"] = value
    return replace(one, metrics=metrics)


def report() -> Report:
    return compare(
        [
            run("sync", 1, 0.80),
            faulty(run("gba", 1, 0.79), W1=(4.0, 4.1), W10=(2.0, 2.0), W2=(None, 1.5)),
            faulty(run("gba", 2, 0.80), W1=(4.0, 4.3)),
        ]
    )


def test_a_line_a_worker_in_numeric_order_with_means_over_runs() -> None:
    lines = report().slowdowns
    assert [(line.key, line.workers, line.n) for line in lines] == [
        (("gba",), "W1", 2), (("gba",), "W2", 1), (("gba",), "W10", 1),
    ]  # fmt: skip
    assert lines[0].observed is not None and lines[0].observed.mean == pytest.approx(4.2)
    assert lines[0].error == pytest.approx(5.0)
    assert lines[1].injected is None and lines[1].error is None
    assert lines[2].error == 0.0


def test_servers_have_lines_of_their_own_after_the_workers() -> None:
    lines = slowdowns(("gba",), [faulty(run("gba", 1, 0.8), S0=(3.0, 3.1), W11=(4.0, 4.1))])
    assert [line.workers for line in lines] == ["W11", "S0"]


def test_many_workers_share_a_line() -> None:
    workers = {f"W{i}": (2.0 + i % 2, 3.0) for i in range(MOST_LINES + 2)}
    (line,) = slowdowns(("gba",), [faulty(run("gba", 1, 0.8), **workers)])
    assert (line.workers, line.n) == (f"{MOST_LINES + 2} workers", 1)
    assert line.injected is not None and line.injected.mean == 2.5
    assert line.error == pytest.approx(20.0)


def test_runs_without_faults_have_no_second_table() -> None:
    plain = compare([run("sync", 1, 0.8)])
    assert plain.slowdowns == ()
    assert all("slowed" not in render(plain, form) for form in FORMATS if form != "json")


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_shows_it(form: str) -> None:
    text = render(report(), form)
    assert "injected" in text and "observed" in text and "W10" in text


def test_table() -> None:
    text = render(report(), "table")
    rows = [line.split() for line in text.splitlines()]
    assert ["mode", "slowed", "n", "injected", "observed", "%"] in rows  # error stands above %
    assert ["gba", "W1", "2", "4.00", "4.20", "+5.0"] in rows
    assert ["gba", "W2", "1", "-", "1.50", "-"] in rows
    assert "slowed: how many times slower" in text


def test_markdown_has_two_tables() -> None:
    lines = render(report(), "md").splitlines()
    assert "| mode | slowed | n | injected | observed | error % |" in lines
    assert "| --- | --- | ---: | ---: | ---: | ---: |" in lines
    assert "| gba | W10 | 1 | 2.00 | 2.00 | +0.0 |" in lines
    assert sum(line.startswith("| --- |") for line in lines) == 2


def test_tex_has_two_tables() -> None:
    assert render(report(), "tex").count(r"\begin{tabular}") == 2
    assert "llrrrr" in render(report(), "tex")


def test_csv_has_a_second_block() -> None:
    first, second = render(report(), "csv").split("\n\n")
    assert first.startswith("mode,n,")
    rows = list(csv.DictReader(second.splitlines()))
    assert [row["slowed"] for row in rows] == ["W1", "W2", "W10"]
    assert float(rows[0]["observed_mean"]) == pytest.approx(4.2) and rows[1]["injected_mean"] == ""


def test_json_holds_them() -> None:
    lines = json.loads(render(report(), "json"))["slowdowns"]
    assert [line["workers"] for line in lines] == ["W1", "W2", "W10"]
    assert lines[0]["injected"]["mean"] == 4.0


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_sentence_on_the_slow_worker_of_a_lines_first_slow_run(form: str) -> None:
    runs = [
        replace(run("sync", seed, 0.8), tags={SLOW_WORKER: f"W{seed}'s compute"} if seed else {}) for seed in (0, 1, 2)
    ]
    made = compare([*runs, run("gba", 1, 0.8)])
    text = "\n".join([render(made, form), *stderr_sentences(made, form)])
    assert "sync, seed 1: W1's compute." in text and "W2" not in text and "gba, seed" not in text


def workers(slowest: float) -> dict[str, dict[str, float]]:
    return {f"W{n}": {"batches": 10, "compute": slowest if n == 3 else 1.0, "all_reduce": 3.0} for n in range(4)}


def test_shares_and_their_picture() -> None:
    found = activity_shares({"processes": workers(1.0)})
    assert found["W3"] == {"compute": 0.25, "all_reduce": 0.75}
    assert activity_shares({}) == {}
    rows = heat_map("sync", found)["data"]["values"]
    assert rows[-1] == {"process": "W3", "activity": "all_reduce", "share": 0.75} and len(rows) == 8


def test_the_sentence_names_the_slowest_worker_and_since_when() -> None:
    time: dict[str, Any] = {"processes": workers(4.0), "first_second": 2.0, "bin_seconds": 8.0}
    time["bins_by_mode"] = [{"sync": workers(4.0)}, {"sync": workers(1.0)}, {}, {"sync": workers(5.0)}]
    time["bins_by_mode"][3]["gba"] = workers(6.0)  # switched within the bin
    assert slow_sentence(time).startswith("W3's compute takes 4.0 times the median since second 26 of the run; sync")
    found = slow_sentence({**time, "began_at": 1e9})
    assert strftime(" since %H:%M:%S; sync loses ", localtime(1e9 + 26.0)) in found
    assert found.endswith("; sync loses 38% to it, gba 42%")  # the others wait 3 of 4 s, W3 3 of 8 and 3 of 9
    assert slow_sentence({**time, "bins_by_mode": []}) == "W3's compute takes 4.0 times the median"
    assert slow_sentence({"processes": workers(1.0)}) == slow_sentence({}) == ""
