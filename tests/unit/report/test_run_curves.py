"""Curves of a run from its result.json; time and samples until an AUC is reached, with runs that never reach it."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gbactl.errors import UsageError
from gbactl.report.compare import Report, compare
from gbactl.report.report_command import read_curves, with_times
from gbactl.report.run_curves import (
    CensoredMedian,
    Curves,
    SwitchPoint,
    TimeLine,
    censored_median,
    curves_of,
    shares,
    times_to_auc,
)
from gbactl.report.text_formats import FORMATS, render, sentences
from tests.support.report_examples import run


def curve(mode: str, seed: int, *auc: float, pace: float = 1.0) -> Curves:
    """A run that is evaluated every 100 samples, which take 10 s / `pace`."""
    phases = [{"samples": 100, "seconds": 9 / pace, "closing_seconds": 1 / pace, "auc": each} for each in auc]
    return curves_of(str(seed), {"phases": phases})


CURVES = {
    ("sync",): [curve("sync", 1, 0.70, 0.72, 0.74), curve("sync", 2, 0.70, 0.73, 0.75)],
    ("gba",): [curve("gba", 1, 0.69, 0.74, 0.75, pace=2), curve("gba", 2, 0.69, 0.72, 0.749, pace=2)],
    ("async",): [curve("async", 1, 0.60, 0.61, 0.62, pace=4), curve("async", 2, 0.60, 0.61, 0.62, pace=4)],
}


def report(wanted: str) -> Report:
    runs = [run(mode, seed, each.auc[-1]) for (mode,), found in CURVES.items() for seed, each in enumerate(found, 1)]
    return with_times(compare(runs), CURVES, wanted)


def test_the_first_evaluation_with_the_auc() -> None:
    lines = {line.key[0]: line for line in report("0.72").times}
    assert lines["sync"] == TimeLine(("sync",), 2, 2, 0.72, CensoredMedian(20.0, False), CensoredMedian(200.0, False))
    assert lines["gba"].seconds == CensoredMedian(10.0, False)
    assert lines["async"] == TimeLine(("async",), 2, 0, 0.72, CensoredMedian(7.5, True), CensoredMedian(300.0, True))


def test_the_last_auc_of_the_baselines_run_with_the_same_seed() -> None:
    lines = {line.key[0]: line for line in report("baseline").times}
    assert lines["sync"].reached == 2 and lines["sync"].seconds == CensoredMedian(30.0, False)
    gba = lines["gba"]  # seed 1 had .74 after 10 s; seed 2 never had .75
    assert (gba.n, gba.reached, gba.auc) == (2, 1, pytest.approx(0.745))
    assert gba.seconds == CensoredMedian(12.5, True)
    less = times_to_auc({("gba",): ("sync",)}, CURVES, None, 0.002)[0]  # of seed 2 .749 will do
    assert (less.reached, less.auc) == (2, pytest.approx(0.743))


def test_of_several_configurations_in_a_line_each_has_the_target_of_its_own_pair() -> None:
    last = {("sync", "4"): 0.74, ("sync", "8"): 0.80, ("gba", "4"): 0.75, ("gba", "8"): 0.79}
    runs = [run(mode, 1, auc, at=int(n), cluster__workers=n) for (mode, n), auc in last.items()]
    results = {each.run_id: {"phases": [{"samples": 100, "auc": each.metrics["auc"]}]} for each in runs}
    made = compare(runs, by=["mode"])
    lines = with_times(made, read_curves("", runs, made, results)[0], "baseline").times
    assert [(line.key[0], line.reached, line.n) for line in lines] == [("sync", 2, 2), ("gba", 1, 2)]


def test_times_below_a_second_are_written_with_two_digits() -> None:
    made = with_times(compare([run("sync", 1, 0.7)]), {("sync",): [curve("sync", 1, 0.7, pace=300)]}, "0.7")
    assert ["sync", "1", "of", "1", "0.033", "100"] in [line.split() for line in render(made, "table").splitlines()]


def test_a_run_without_a_target_or_an_evaluation_has_no_line() -> None:
    curves = {("sync",): [curve("sync", 1, 0.7)], ("gba",): [curve("gba", 2, 0.7)], ("bsp",): [curve("bsp", 1)]}
    against = {("sync",): ("sync",), ("gba",): ("sync",), ("bsp",): ("sync",), ("lone",): None}
    assert [line.key for line in times_to_auc(against, curves, None)] == [("sync",)]
    assert [line.key for line in times_to_auc(against, curves, 0.5)] == [("sync",), ("gba",)]


def test_medians_by_hand() -> None:
    assert censored_median([(3.0, True), (1.0, True), (9.0, False)]) == CensoredMedian(3.0, False)
    assert censored_median([(3.0, True), (1.0, False), (9.0, False)]) == CensoredMedian(3.0, True)
    assert censored_median([(3.0, True), (1.0, False)]) == CensoredMedian(2.0, True)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=9))
def test_the_median_of_what_was_censored_is_told_or_bounded(times: list[tuple[float, float]]) -> None:
    """Each run would take the first time, and ended at the second one."""
    longest = max(max(end for _, end in times), max(taken for taken, _ in times))
    seen = [(taken, True) if taken <= end else (end, False) for taken, end in times]
    found = censored_median(seen)
    truth = median(taken if reached else math.inf for (taken, _), (_, reached) in zip(times, seen, strict=True))
    if found.bound:
        assert found.value <= median(taken for taken, _ in times) <= longest
    else:
        assert found.value == truth


@pytest.mark.parametrize("wanted", ["1.2", "soon", "0", "nan"])
def test_what_is_no_auc_is_explained(wanted: str) -> None:
    with pytest.raises(UsageError, match="type a number between 0 and 1, or: baseline"):
        report(wanted)


def test_without_a_baseline_there_is_none_to_reach() -> None:
    with pytest.raises(UsageError, match="--baseline"):
        with_times(compare([run("gba", 1, 0.8)]), {}, "baseline")


@pytest.mark.parametrize("form", [form for form in FORMATS if form not in ("csv", "json")])
def test_formats_show_who_reached_it(form: str) -> None:
    text = " ".join(render(report("baseline"), form).split())
    assert "1 of 2" in text and {"tex": r"\textgreater{}12.5"}.get(form, ">12.5") in text
    assert "A run that never reached it counts as longer" in text


def test_the_table_fits_and_numbers_are_in_full_elsewhere() -> None:
    text = render(report("0.72"), "table")
    assert max(map(len, text.splitlines())) <= 80
    assert [line.split() for line in text.splitlines() if " of 2" in line] == [
        ["sync", "2", "of", "2", "20.0", "200"],
        ["async", "0", "of", "2", ">7.5", ">300"],
        ["gba", "2", "of", "2", "10.0", "200"],
    ]
    rows = list(csv.DictReader(io.StringIO(render(report("0.72"), "csv").split("\n\n")[1])))
    assert (rows[1]["reached"], rows[1]["seconds"], rows[1]["seconds_bound"]) == ("0", "7.5", "1")
    assert json.loads(render(report("0.72"), "json"))["times"][1]["seconds"] == {
        "value": 7.5, "bound": True, "range": [7.5, 7.5],
    }  # fmt: skip
    assert not any("never reached" in sentence for sentence in sentences(compare([run("gba", 1, 0.8)])))


RESULT = {
    "eps": 100.0,
    "phases": [
        {"samples": 10, "seconds": 2.0, "drain_seconds": 0.5, "auc": 0.6},
        {"samples": 7, "decayed": 2, "lost": 1, "seconds": 1.0, "drain_seconds": None, "auc": None},
        {"samples": 20, "seconds": 3.0, "closing_seconds": 0.5, "auc": 0.7},
    ],
    "staleness_histogram": {"0": 1, "2": 3},
}


def test_phases_add_up() -> None:
    curves = curves_of("1", RESULT)
    assert curves.samples == (10, 40)
    assert curves.seconds == (2.5, 7.0)
    assert curves.auc == (0.6, 0.7)
    assert curves.staleness == {0: 1, 2: 3}


FORKED = {
    "phases": [
        {"day": "day 0", "first_step": 0, "samples": 600, "staleness_histogram": {"0": 6}},
        {"day": "day 1", "first_step": 6, "samples": 200, "staleness_histogram": {"0": 2}},
        {"day": "day 1", "first_step": 8, "samples": 100, "staleness_histogram": {"1": 3}},
        {"day": "day 2", "first_step": 9, "samples": 100, "staleness_histogram": {"1": 1, "4": 2}},
    ],
    "rounds": [
        {"day": "day 1", "staleness_histogram": {"0": 2, "1": 3}},
        {"day": "day 2", "staleness_histogram": {"1": 1, "4": 2}},
    ],
    "staleness_histogram": {"0": 8, "1": 4, "4": 2}, "samples": {"trained": 1000},
    "wire": {"bytes": {"dense": 2000, "rows": 0}, "shared_memory": 400}, "checkpoint": {"resumed_at": 8},
}  # fmt: skip


@pytest.mark.parametrize(
    ("since", "label", "staleness"),
    [
        (7.5, None, {1: 4, 4: 2}), (None, None, {1: 4, 4: 2}), (0.0, None, {0: 8, 1: 4, 4: 2}),
        (7.5, "day 1", {0: 2, 1: 3}), (7.5, "day 2", {1: 1, 4: 2}), (7.5, "day 9", {1: 4, 4: 2}),
    ],
    ids=["another run's", "older", "in its own directory", "round of both", "own round", "unknown round"],
)  # fmt: skip
def test_a_resumed_run_has_staleness_of_its_own_gradients_or_a_rounds_and_bytes_since_then(
    since: float | None, label: str | None, staleness: dict[int, int]
) -> None:
    """Bytes sent before a resume are not in a result, also where the run resumed in its own directory."""
    result = {**FORKED, "time": {} if since is None else {"since_second": since}}
    found = curves_of("1", result, label=label)
    assert found.staleness == staleness
    assert found.bytes_per_sample == {"dense": 10.0, "shared memory": 2.0}


def test_a_report_of_one_round_has_the_staleness_of_that_round() -> None:
    runs = [replace(each, metrics={**each.metrics, "auc/day 1": 0.7}) for each in (run("sync", 1, 0.7),)]
    made = compare(runs, label="day 1")
    curves, _ = read_curves("", runs, made, {runs[0].run_id: FORKED})
    assert curves[("sync",)][0].staleness == {0: 2, 1: 3}


def test_shares_are_over_all_runs_of_a_group() -> None:
    other = curves_of("2", {"staleness_histogram": {"0": 4}})
    assert shares([curves_of("1", RESULT), other]) == {0: 62.5, 2: 37.5}
    assert shares([]) == {}


def switching(*modes: str) -> dict[str, object]:
    phases = [{**phase, "mode": mode} for phase, mode in zip(RESULT["phases"], modes, strict=True)]  # type: ignore[call-overload]
    return {**RESULT, "phases": phases}


def test_switches_of_the_mode() -> None:
    assert curves_of("1", switching("sync", "sync", "gba")).switches == (SwitchPoint("gba", 20, 3.5),)
    assert curves_of("1", switching("gba", "gba", "gba")).switches == ()
