"""Groups made by a tag, and comparisons of another metric than AUC."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from gbactl.errors import UsageError
from gbactl.report.columns import column_of
from gbactl.report.compare import compare
from gbactl.report.text_formats import FORMATS, render
from gbactl.tracking.mlflow_store import Run
from tests.support.report_examples import group, run


def tagged(one: Run, name: str, **metrics: float) -> Run:
    return replace(one, tags={"takes_over": name}, metrics={**one.metrics, **metrics})


def switched(name: str, seed: int, auc: float, **more: str) -> Run:
    """All runs begin in sync; `name` takes over on day 2."""
    schedule = str([{"at": {"day": 2}, "to": name}])
    return tagged(run("sync", seed, auc, switch__schedule=schedule, **more), name, **{"auc/day 3": auc - 0.1})


def runs() -> list[Run]:
    aucs = {"sync": (0.80, 0.81), "gba": (0.79, 0.82), "async": (0.70, 0.71)}
    return [switched(name, seed, auc) for name, pair in aucs.items() for seed, auc in enumerate(pair)]


def test_a_tag_makes_groups_and_pairs_go_by_seed() -> None:
    report = compare(runs(), by=["tags.takes_over"])
    assert [each.key for each in report.groups] == [("sync",), ("async",), ("gba",)]
    assert group(report, "async").difference.n == 2
    assert group(report, "async").difference.mean == pytest.approx(-0.10)
    assert group(report, "gba").difference.mean == pytest.approx(0.0)
    assert report.notes == ()
    assert report.varied == ("mode.*", "switch.*", "collective.*")


def test_pairs_may_differ_in_what_has_one_value_in_each_group_and_this_is_said() -> None:
    slower = [switched("sync", seed, 0.8, optim__lr="0.001") for seed in (0, 1)]
    faster = [switched("hop_bs", seed, 0.7, optim__lr="0.002") for seed in (0, 1)]
    report = compare(slower + faster, by=["tags.takes_over"])
    assert group(report, "hop_bs").difference.n == 2
    assert report.varied == ("mode.*", "switch.*", "collective.*", "optim.lr")
    assert "but for mode.*, switch.*, collective.*, optim.lr." in " ".join(render(report, "table").split())


def test_what_a_group_itself_mixes_has_to_agree_in_a_pair() -> None:
    mixed = [switched("sync", 0, 0.8, faults__plans="[]"), switched("sync", 0, 0.7, faults__plans="[one]")]
    other = [switched("gba", 0, 0.85, faults__plans="[]"), switched("gba", 0, 0.85, faults__plans="[two]")]
    report = compare(mixed + other, by=["tags.takes_over"])
    assert group(report, "gba").difference.n == 1
    assert group(report, "gba").difference.mean == pytest.approx(0.05)
    why = "no partner in sync (they differ in faults.plans)"
    assert [(each.run, each.reason) for each in report.left_out] == [(other[1].label, why)]
    assert "gba: compared with 1 of 2 runs of sync, whose AUC is 0.80000." in report.notes


def test_a_seed_never_pairs_with_another() -> None:
    report = compare([switched("sync", 0, 0.8), switched("gba", 1, 0.7)], by=["tags.takes_over"])
    assert group(report, "gba").difference is None
    assert any("seed 1" in note for note in report.notes)


def test_parameters_do_not_free_what_a_tag_does() -> None:
    report = compare([run("sync", 1, 0.8), run("gba", 1, 0.7, optim__lr="0.002")])
    assert group(report, "gba", "optim.lr=0.002").difference is None
    assert report.varied == ()


def test_a_tag_beside_a_parameter() -> None:
    both = [
        switched(name, 0, auc, cluster__workers=workers)
        for name, auc, workers in (("sync", 0.8, "4"), ("sync", 0.7, "16"), ("gba", 0.81, "4"), ("gba", 0.75, "16"))
    ]
    report = compare(both, by=["tags.takes_over", "cluster.workers"])
    assert group(report, "gba", "4").difference.mean == pytest.approx(0.01)
    assert group(report, "gba", "16").difference.mean == pytest.approx(0.05)


def test_runs_that_differ_in_the_tag_alone_do_not_repeat_each_other() -> None:
    runs = [tagged(run("sync", seed, 0.8), name) for name in "ab" for seed in (1, 2)]
    report = compare(runs, by=["tags.takes_over"], baseline="a")
    assert [(each.key, len(each.runs)) for each in report.groups] == [(("a",), 2), (("b",), 2)] and not report.left_out


def test_an_unknown_tag_says_which_there_are() -> None:
    with pytest.raises(UsageError, match=r"No run has the tag nope\. Type --by with some of: tags\.takes_over$"):
        compare(runs(), by=["tags.nope"])


def test_another_metric_is_compared_and_comes_first() -> None:
    report = compare(runs(), by=["tags.takes_over"], on="auc/day 3", metrics=["auc/day 3", "eps"])
    assert [column.title for column in report.columns][:2] == ["auc/day 3", "AUC"]
    assert sum(column.metrics == ("auc/day 3",) for column in report.columns) == 1
    assert group(report, "async").stats["auc/day 3"].mean == pytest.approx(0.605)
    assert group(report, "async").difference.mean == pytest.approx(-0.10)
    assert "vs sync: auc/day 3 minus sync's" in " ".join(render(report, "md").split())


def test_runs_without_the_metric_are_left_out() -> None:
    report = compare([*runs(), run("gba", 9, 0.8)], by=["tags.takes_over"], on="auc/day 3")
    assert [each.reason for each in report.left_out] == ["no auc/day 3"]


def test_a_run_without_auc_counts_where_another_metric_is_compared() -> None:
    report = compare([run("sync", 1, None), run("gba", 1, None)], on="eps")
    assert group(report, "gba").difference.mean == 0.0
    rows = list(csv.DictReader(render(report, "csv").splitlines()))
    assert rows[1]["eps_difference"] == "0.0"


def test_differences_are_written_in_the_metrics_digits() -> None:
    fast = replace(run("gba", 1, 0.8), metrics={**run("gba", 1, 0.8).metrics, "eps": 61234.0})
    text = render(compare([run("sync", 1, 0.8), fast], on="eps"), "md")
    assert "+40,234" in text
    slow = replace(fast, metrics={**fast.metrics, "eps": 1000.25})
    assert "| -20,000 |" in render(compare([run("sync", 1, 0.8), slow], on="eps"), "md")


def test_columns_of_a_day_are_written_like_the_whole() -> None:
    assert column_of("auc/day 3").write(0.5) == "0.50000"
    assert [column_of("auc").write(value, "+") for value in (-1e-7, 0.5)] == ["+0.00000", "+0.50000"], "no minus zero"
    assert column_of("eps/day 3").write(1234.5) == "1,234"
    assert column_of("eps").write(-1234.5, "+") == "-1,234"
    assert column_of("norm").write(0.123456789) == "0.123457"


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_shows_the_metric(form: str) -> None:
    text = render(compare(runs(), by=["tags.takes_over"], on="auc/day 3"), form)
    assert "auc/day" in text
