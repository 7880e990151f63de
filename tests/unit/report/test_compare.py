"""Which runs count, how they pair, and the interval, against a hand computation."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gbactl.config import flatten, to_dict
from gbactl.data.dataset import DAYS_BY_ROWS
from gbactl.errors import UsageError
from gbactl.launch.hydra_config import compose
from gbactl.report.compare import compare
from gbactl.report.configuration_differences import settings, value_of
from gbactl.report.paired_statistics import Difference, Stat, paired, paired_ratio, stat
from gbactl.report.text_formats import render
from gbactl.tracking.metrics_and_tags import DAYS_TAG, logged_name
from gbactl.tracking.mlflow_store import Run, _run
from gbactl.tracking.run_description import CONFIG_TAG, LONGEST, config_tag, short
from tests.support.report_examples import group, run, three

SLOW = "[{'kind': 'constant', 'workers': [1], 'factor': 4}]"


def test_paired_interval_by_hand() -> None:
    # d = -1, +1, -1 (hundredths): mean -1/3, squares of deviations 4/9 + 16/9 + 4/9 = 8/3, variance 4/3,
    # standard error sqrt(4/9) = 2/3; Student's t for 2 degrees of freedom at .975 is 4.302653.
    found = paired([(0.80, 0.79), (0.81, 0.82), (0.82, 0.81)])
    assert found is not None
    assert found.mean == pytest.approx(-0.01 / 3)
    assert found.half == pytest.approx(0.01 * 4.302653 * 2 / 3, rel=1e-6)
    assert found.n == 3


def test_paired_interval_of_few() -> None:
    assert paired([]) is None
    assert paired([(0.5, 0.75)]) == Difference(0.25, None, 1)
    two = paired([(0.0, 0.1), (0.0, 0.3)])  # mean .2, sd .1 sqrt 2, error .1, t(1) = 12.7062
    assert two is not None
    assert (two.mean, two.half) == (pytest.approx(0.2), pytest.approx(1.27062, rel=1e-5))


def test_stat_by_hand() -> None:
    assert stat([]) is None
    assert stat([3.0]) == Stat(3.0, None, 1)
    two = stat([1.0, 3.0])
    assert two is not None
    assert (two.mean, two.sd, two.n) == (2.0, pytest.approx(math.sqrt(2)), 2)


def test_groups_baseline_and_difference() -> None:
    report = compare(three())
    assert [each.key for each in report.groups] == [("sync",), ("gba",)]
    assert report.baseline == "sync"
    assert report.left_out == ()
    assert report.notes == ()
    gba = group(report, "gba")
    assert (gba.n, gba.seeds) == (3, ("1", "2", "3"))
    assert gba.stats["auc"].mean == pytest.approx(0.80667, abs=1e-5)
    assert gba.stats["decayed_percent"] == Stat(1.5, 0.0, 3)
    assert gba.difference.mean == pytest.approx(-0.01 / 3)
    assert group(report, "sync").difference is None


def test_gauc_has_a_column_where_runs_have_it() -> None:
    runs = [replace(each, metrics={**each.metrics, "gauc": 0.7}) for each in three()]
    assert "gAUC" not in [column.title for column in compare(three()).columns]
    assert "gAUC" in [column.title for column in compare(runs).columns]
    assert group(compare(runs), "gba").stats["gauc"] == Stat(pytest.approx(0.7), pytest.approx(0.0), 3)


def test_the_user_field_does_not_tell_runs_apart() -> None:
    older, newer = run("sync", 1, 0.8), run("gba", 1, 0.7, data__user_field="0")
    assert group(compare([older, newer]), "gba").difference is not None


def test_pairs_are_by_seed_not_by_order() -> None:
    runs = three()
    assert group(compare(runs[::-1]), "gba").difference == group(compare(runs), "gba").difference


def test_left_out_and_why() -> None:
    runs = [
        *three(),
        run("gba", 4, 0.8, status="FAILED"),
        run("gba", 5, 0.8, status="RUNNING"),
        run("gba", 6, None),
        run("gba", 7, math.nan),
        run("gba", 1, 0.70, at=9, mode__iota="3"),
    ]
    report = compare(runs)
    assert {each.run.split()[0]: each.reason for each in report.left_out} == {
        "gba-s4": "FAILED",
        "gba-s5": "RUNNING",
        "gba-s6": "no AUC",
        "gba-s7": "no AUC",
        "gba-s1": "repeated by gba-s1 (gba19000), which is newer",
    }
    assert group(report, "gba").stats["auc"].mean == pytest.approx((0.70 + 0.82 + 0.81) / 3)


def test_a_seed_without_partner_is_not_in_a_mean_beside_a_difference() -> None:
    report = compare([*three(), run("gba", 9, 0.9, mode__iota="3"), run("gba", 10, 0.9, mode__iota="3")])
    gba, sync = group(report, "gba"), group(report, "sync")
    assert (gba.n, gba.seeds, gba.difference.n) == (3, ("1", "2", "3"), 3)
    assert gba.stats["auc"].mean - sync.stats["auc"].mean == pytest.approx(gba.difference.mean)
    assert [(each.run.split()[0], each.reason) for each in report.left_out] == [
        ("gba-s9", "no partner in sync (seed 9, 10)"), ("gba-s10", "no partner in sync (seed 9, 10)"),
    ]  # fmt: skip
    assert report.notes == ()


def test_each_run_without_a_partner_has_its_own_reason() -> None:
    sync = [run("sync", seed, 0.8, optim__lr=".1") for seed in (1, 2, 3)]
    alone = [run("gba", 4, 0.8, optim__lr=".1"), run("gba", 1, 0.7, at=5, optim__lr=".2")]
    missing, differs = "no partner in sync (seed 4)", "no partner in sync (they differ in optim.lr)"
    report = compare([*sync, *(run("gba", seed, 0.8, optim__lr=".1") for seed in (1, 2, 3)), *alone], by=["mode"])
    assert [(each.run, each.reason) for each in report.left_out] == [
        (alone[0].label, missing), (alone[1].label, differs),
    ]  # fmt: skip
    notes = compare([*sync, *alone, run("gba", 2, 0.7, at=6, optim__lr=".3")], by=["mode"]).notes
    assert notes[1:] == (f"gba: 1 of 3 runs have {missing}.", f"gba: 2 of 3 runs have {differs}.")


def test_a_line_that_differs_in_no_key_that_it_has_is_named_by_its_mode() -> None:
    older = [run("gba", 1, 0.8), run("gba", 9, 0.8)]
    report = compare([*three()[:3], *older, *(run("gba", 1, 0.7, mode__iota=iota) for iota in "45")])
    assert sorted(each.key[1] for each in report.groups) == ["", "", "mode.iota=4", "mode.iota=5"]
    assert [(each.run, each.reason) for each in report.left_out] == [(older[1].label, "no partner in sync (seed 9)")]


def test_a_baseline_of_which_a_line_has_a_part_is_told_for_that_part() -> None:
    report = compare([r for r in three() if (value_of(r, "mode"), r.seed) != ("gba", "3")])
    assert group(report, "sync").n == 3
    assert group(report, "gba").stats["auc"].mean - 0.805 == pytest.approx(group(report, "gba").difference.mean)
    assert report.notes == ("gba: compared with 2 of 3 runs of sync, whose AUC is 0.80500.",)


def test_another_configuration_does_not_pair() -> None:
    runs = [run("sync", 1, 0.8), run("gba", 1, 0.7, train__global_batch="4096")]
    report = compare(runs)
    assert group(report, "gba", "train.global_batch=4096").difference is None
    assert compare(runs, by=["mode"]).notes == (
        "gba: 1 of 1 runs have no partner in sync (they differ in train.global_batch).",
    )


def of_cell(found: Run, data: str, code: str = "c0de") -> Run:
    return replace(found, tags={"gbactl.cell": f"0000-{data}-{code}" if data else ""})


@pytest.mark.parametrize(
    ("sync", "gba", "by", "paired"),
    [
        ("da7a", "da7a", None, True), ("da7a", "beef", None, False), ("da7a", "", None, True),
        ("da7a", "beef", ["mode"], False), ("da7a", "beef", ["mode", "data.path"], True),
    ],
)  # fmt: skip
def test_runs_on_data_of_other_content_do_not_pair_unless_data_are_compared(
    sync: str, gba: str, by: list[str] | None, paired: bool
) -> None:
    """As where a file was changed, and some of the runs were repeated."""
    runs = [
        of_cell(run(mode, 1, 0.8, data__path="a.csv"), data)
        for mode, data in (("sync", sync), ("gba", gba), ("bsp", sync))
    ]
    report = compare(runs, by=by)
    differences = {each.key[0]: each.difference is not None for each in report.groups}
    assert differences == {"sync": False, "gba": paired, "bsp": True}
    told = "gba: 1 of 1 runs have no partner in sync (they differ in the content of their data)."
    assert report.notes == (() if paired else (told,))


def test_pairs_of_several_code_versions_are_told() -> None:
    runs = [
        of_cell(run(mode, seed, 0.8), "da7a", "new" if mode == "gba" and seed > 1 else "old")
        for mode in ("sync", "gba", "bsp") for seed in (1, 2, 3)
    ]  # fmt: skip
    assert compare(runs).notes == ("gba: 2 of 3 pairs are of runs of different code versions (new, old).",)


def test_a_model_is_not_part_of_the_mode() -> None:
    runs = [run("sync", 1, 0.8), run("gba", 1, 0.7, model__name="wide_deep")]
    assert group(compare(runs), "gba", "model=wide_deep").difference is None


def test_mode_keys_collective_and_places_may_differ() -> None:
    runs = [run("sync", 1, 0.8, collective__name="gloo"), run("gba", 1, 0.7, at=5, mode__prefetch="1")]
    assert group(compare(runs), "gba").difference.n == 1


def test_what_differs_beyond_the_seed_splits_the_lines() -> None:
    runs = [
        run(mode, seed, auc + seed / 100, cluster__workers=workers, faults__plans=plans, faults__name=name)
        for mode, auc in (("sync", 0.7), ("gba", 0.8))
        for seed in (1, 2)
        for workers, plans, name in (("4", "[]", "none"), ("16", "[]", "none"), ("4", SLOW, "one_slow"))
    ]
    report = compare(runs)
    assert report.by == ("mode", "what differs")
    assert [each.key for each in report.groups] == [
        (mode, differs)
        for differs in (
            "faults=none, cluster.workers=4", "faults=one_slow, cluster.workers=4", "faults=none, cluster.workers=16",
        )
        for mode in ("sync", "gba")
    ]  # fmt: skip
    assert all(each.n == 2 for each in report.groups)
    assert [each.difference.mean for each in report.groups if each.difference] == [pytest.approx(0.1)] * 3
    assert report.notes == ()


@pytest.mark.parametrize("key", ["data__seed", "faults__seed"])
def test_a_seed_that_follows_the_runs_seed_splits_nothing_and_pairs_have_it_in_common(key: str) -> None:
    """As data.seed=${seed}, which is written as each run's number; where one run has another one, it splits."""
    aucs = {"sync": (0.80, 0.81, 0.82), "gba": (0.79, 0.82, 0.81)}
    plans = {"faults__plans": SLOW}
    runs = [run(mode, seed, auc, **{key: str(seed)}, **plans) for mode in aucs for seed, auc in enumerate(aucs[mode])]
    assert [each.key for each in compare(runs).groups] == [("sync",), ("gba",)]
    assert compare(runs, by=["mode"]).notes == ()
    difference = group(compare(runs), "gba").difference
    assert (difference.n, difference.mean) == (3, pytest.approx(-0.01 / 3))
    other = [*runs, run("gba", 3, 0.8, **{key: "0"}, **plans)]
    name = key.replace("__", ".")
    assert {each.key[1] for each in compare(other).groups} == {f"{name}={seed}" for seed in range(3)}


def test_runs_of_before_faults_had_names_are_told_by_their_plans() -> None:
    old = [run("sync", 1, 0.8, faults__plans="[]"), run("sync", 1, 0.7, faults__plans=SLOW)]
    new = [run("sync", 2, 0.8, faults__plans="[]", faults__name="none")]
    typed = run("sync", 3, 0.8, faults__plans=SLOW, faults__name="none")
    report = compare([*old, *new, typed])
    assert {each.key[1]: each.n for each in report.groups} == {
        "faults=none": 2, "faults.plans=constant W1 x4": 2,
    }  # fmt: skip


def test_what_cannot_change_a_result_splits_nothing() -> None:
    runs = [
        run("gba", 1, 0.8, cost__name="busy", cost__cores="16", collective__name="shm", cluster__bind="auto"),
        run("gba", 2, 0.7, cost__name="laptop", cost__cores="2", collective__name="gloo", checkpoint__keep="9"),
        run("gba", 3, 0.7, transport__wire_dtype="fp32", optim__lr="0.001"),  # others have the default
    ]
    assert [each.key for each in compare(runs).groups] == [("gba",)]
    virtual = [replace(each, params={**each.params, "cluster.name": "virtual"}) for each in runs[:2]]
    assert [each.key[1] for each in compare(virtual).groups] == ["cost=laptop", "cost=busy"]


def test_a_modes_own_keys_split_that_mode_alone_and_the_nearest_baseline_is_compared_with() -> None:
    runs = [
        run("sync", 1, 0.80, collective__name="horovod"),
        run("sync", 1, 0.82, collective__name="shm"),
        run("gba", 1, 0.79, mode__iota="3", collective__name="shm"),
        run("gba", 1, 0.78, mode__iota="10", collective__name="shm"),
    ]
    report = compare(runs)
    assert [each.key for each in report.groups] == [
        ("sync", "collective=horovod"), ("sync", "collective=shm"), ("gba", "mode.iota=3"), ("gba", "mode.iota=10"),
    ]  # fmt: skip
    assert group(report, "gba", "mode.iota=3").difference.mean == pytest.approx(-0.03)
    assert group(report, "gba", "mode.iota=10").difference.mean == pytest.approx(-0.04)
    assert report.notes[0] == (
        "gba, mode.iota=3: compared with 1 of 1 runs of sync, collective=shm, whose AUC is 0.82000."
    )


def test_a_mixture_is_called_one() -> None:
    runs = [run("gba", 1, 0.7, mode__iota="3"), run("gba", 1, 0.8, mode__iota="10")]
    report = compare(runs, by=["mode"])
    assert group(report, "gba").n == 2
    assert report.baseline is None
    assert report.notes == (
        "Means over mode.iota where a row has several, within a seed first; to tell them apart: --by mode,mode.iota.",
    )


def test_pairs_of_several_configurations_are_averaged_within_a_seed() -> None:
    aucs = {("sync", 1): (0.70, 0.90), ("sync", 2): (0.72, 0.92), ("gba", 1): (0.71, 0.95), ("gba", 2): (0.74, 0.94)}
    runs = [
        run(mode, seed, auc, cluster__workers=workers)
        for (mode, seed), pair in aucs.items()
        for workers, auc in zip(("4", "8"), pair, strict=True)
    ]
    gba = group(compare(runs, by=["mode"]), "gba")
    assert (gba.n, gba.difference.n) == (4, 2)
    by_hand = paired([(0.80, 0.83), (0.82, 0.84)])
    assert by_hand is not None
    assert (gba.difference.mean, gba.difference.half) == (pytest.approx(by_hand.mean), pytest.approx(by_hand.half))
    assert (gba.stats["auc"].mean, gba.stats["auc"].n) == (pytest.approx(0.835), 2)


def test_another_key_never_averages_two_modes() -> None:
    report = compare(three(), by=["seed"])
    assert report.by == ("seed", "mode")
    assert [each.key for each in report.groups][:2] == [("1", "gba"), ("1", "sync")]
    assert compare([r for r in three() if r.params["mode"] == "gba"], by=["seed"]).by == ("seed",)


def test_a_rate_over_little_time_is_marked_and_one_over_none_is_missing() -> None:
    def timed(mode: str, eps: float, trained: float) -> Run:
        one = run(mode, 1, 0.8)
        return replace(one, metrics={**one.metrics, "eps": eps, "samples_trained": trained})

    report = compare([timed("sync", 100.0, 499.0), timed("gba", 100.0, 500.0), timed("async", 0.0, 0.0)])
    assert {each.key[0]: each.marks for each in report.groups} == {"sync": "*", "gba": "", "async": ""}
    assert group(report, "async").stats["eps"] is None
    text = render(report, "md")
    assert "| 100* |" in text and "| 100 |" in text and text.count("EPS*: over less than 5 s of training.") == 1


@pytest.mark.parametrize(
    ("label", "own", "marks"), [(None, 499.0, "*"), (None, 500.0, ""), ("day 2", 499.0, ""), (None, None, "")]
)
def test_the_mark_of_a_rate_is_by_the_samples_that_it_counts(label: str | None, own: float | None, marks: str) -> None:
    """A run from another run's checkpoint counts its own samples; a round counts all of its own."""
    one = run("gba", 1, 0.8)
    more = {"eps": 100.0, "samples_trained": 9000.0, **({} if own is None else {"samples_own": own})}
    of_day = {"auc/day 2": 0.8, "eps/day 2": 100.0, "samples_trained/day 2": 600.0}
    [found] = compare([replace(one, metrics={**one.metrics, **more, **of_day})], label=label).groups
    assert found.marks == marks


def test_a_model_that_is_worse_than_none_is_marked() -> None:
    bad = [replace(each, metrics={**each.metrics, "ne": 1.25}) for each in three()[:1]]
    report = compare([*bad, *three()[1:]])
    assert {each.key[0]: each.marks for each in report.groups} == {"sync": "!", "gba": ""}
    text = " ".join(render(report, "table").split())
    assert "1.0167!" in text and "NE!: a run's log loss is above that of always predicting the base rate" in text


def test_a_switched_run_of_the_same_configuration_repeats_nothing() -> None:
    switched = replace(run("sync", 1, 0.81, at=9), tags={"gbactl.mode": "sync>gba@step7"})
    report = compare([*three(), switched])
    assert (report.left_out, group(report, "sync").n) == ((), 3)


def test_different_long_values_stay_different() -> None:
    first, second = (str([{"kind": "trace", "points": [[0, 1]] * 99 + [[n, 1]]}]) for n in (1, 2))
    assert short(first) != short(second) and len(short(first)) <= LONGEST
    assert short("[64, 32]") == "[64,32]"


def test_long_numbers_are_rounded_where_they_still_differ() -> None:
    def labels(*rates: str) -> list[str]:
        report = compare([run("gba", 1, 0.8, optim__lr=rate) for rate in rates])
        return [each.key[1] for each in report.groups]

    assert labels("0.0012520612373289", "0.001") == ["optim.lr=0.001", "optim.lr=0.001252"]
    alike = ["0.0012520612373289", "0.0012520712373289"]
    assert labels(*alike) == [f"optim.lr={rate}" for rate in alike]


def test_several_keys_compare_within_the_others() -> None:
    runs = [
        run(mode, 1, auc, cluster__workers=workers)
        for mode, workers, auc in (
            ("sync", "4", 0.80),
            ("sync", "16", 0.70),
            ("gba", "4", 0.81),
            ("gba", "16", 0.75),
            ("gba", "8", 0.9),
        )
    ]
    report = compare(runs, by=["params.mode", "cluster.workers"])
    assert [each.key for each in report.groups][:2] == [("sync", "4"), ("sync", "16")]
    assert group(report, "gba", "4").difference.mean == pytest.approx(0.01)
    assert group(report, "gba", "16").difference.mean == pytest.approx(0.05)
    assert group(report, "gba", "8").difference is None


def test_another_baseline() -> None:
    report = compare(three(), baseline="gba")
    assert [each.key for each in report.groups] == [("gba",), ("sync",)]
    assert group(report, "sync").difference.mean == pytest.approx(0.01 / 3)


def test_unknown_keys_baselines_and_metrics_say_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"parameter nope\. Type --by with some of: .*model\.name"):
        compare(three(), by=["nope"])
    with pytest.raises(UsageError, match=r"parameter model\.nam\. Did you mean model\.name\?"):
        compare(three(), by=["model.nam"])
    with pytest.raises(UsageError, match="--baseline bsp; type one of: gba, sync"):
        compare(three(), baseline="bsp")
    with pytest.raises(UsageError, match=r"No run has the metric aucc\. Did you mean auc"):
        compare(three(), metrics=["eps", "aucc"])
    with pytest.raises(UsageError, match=r"No run has the metric nope\. Type --metric with some of: auc, .*eps"):
        compare(three(), metrics=["nope"])
    with pytest.raises(UsageError, match=r"No run has the metric aucc\. Did you mean auc"):
        compare(three(), on="aucc")
    with pytest.raises(UsageError, match=r"No run has the metric nope\. Type --on with some of: auc, .*eps"):
        compare(three(), on="nope")
    assert compare(three(), on="decayed_percent").groups  # computed from others


def test_nothing_usable_is_no_error_here() -> None:
    report = compare([run("gba", 1, None)])
    assert report.groups == ()
    assert len(report.left_out) == 1


def test_extra_columns_and_the_best_possible_auc() -> None:
    assert DAYS_BY_ROWS not in compare(three()).notes
    counted = [replace(each, tags={**each.tags, DAYS_TAG: "rows"}) for each in three()]
    assert DAYS_BY_ROWS in render(compare(counted), "table", 200)
    runs = [Run(r.run_id, r.name, r.status, 0, r.params, {**r.metrics, "best_possible_auc": 0.85}) for r in three()]
    report = compare(runs, metrics=["logloss"])
    assert report.columns[-1].title == "logloss"
    assert report.notes == ("Best possible AUC on these data: 0.85000.",)


def test_metrics_of_older_runs_have_the_names_of_now() -> None:
    info = SimpleNamespace(run_id="a", run_name="a", status="FINISHED", start_time=0)
    old = {
        "best_auc": 0.85, "worker_eps/W0": 7.0, "recovery_samples_lost/S0.kill": 64.0, "recovery_count/S0.kill": 1.0,
        "recovery_lost_updates/S0.kill": 9.0, "samples_lost": 3.0, "auc": 0.8, "eps/day 0": 5.0,
    }  # fmt: skip
    found = _run(SimpleNamespace(info=info, data=SimpleNamespace(params={"mode": "gba"}, metrics=old, tags={})))
    assert set(found.metrics) - set(old) == {
        "best_possible_auc", "worker_compute_eps/W0", "recovery_samples_undone/S0.kill",
        "recovery_row_updates_undone/S0.kill",
    }  # fmt: skip
    report = compare([found])
    assert "Best possible AUC on these data: 0.85000." in report.notes
    [line] = report.failures
    assert (line.stats["samples_undone"].mean, line.stats["row_updates_undone"].mean) == (64.0, 9.0)  # type: ignore[union-attr]


def test_runs_of_before_and_after_parameters_were_few_pair() -> None:
    """Older runs have every key as a parameter; newer ones have them in a tag, and their metrics in groups."""

    def read(mode: str, seed: int, old: bool) -> Run:
        config = to_dict(compose([f"mode={mode}", f"seed={seed}", "faults=one_slow", "cluster.workers=8"]))
        params = {key: str(value) for key, value in flatten(config).items()} | {"mode": mode} if old else {"mode": mode}
        metrics = {"auc": 0.8, "staleness_mean": 1.5, "ne": 0.9, "auc/day 0": 0.7}
        tags = {} if old else {CONFIG_TAG: config_tag(config)}
        named = metrics if old else {logged_name(name): value for name, value in metrics.items()}
        info = SimpleNamespace(run_id=f"{mode}{seed}{old}", run_name="", status="FINISHED", start_time=int(old))
        return _run(SimpleNamespace(info=info, data=SimpleNamespace(params=params, metrics=named, tags=tags)))

    old, new = read("gba", 1, True), read("gba", 1, False)
    assert settings(old) == settings(new) and old.metrics == new.metrics
    report = compare([read("sync", 1, True), new, read("sync", 2, False), read("gba", 2, True)])
    assert [(each.key, each.n) for each in report.groups] == [(("sync",), 2), (("gba",), 2)]
    assert group(report, "gba").difference.n == 2
    assert compare([old, new]).left_out[0].reason.startswith("repeated by")


def test_the_all_reduce_of_sync_is_named() -> None:
    found = compare([run("sync", 0, 0.8, **{"collective.name": "shm"}), run("gba", 0, 0.8)])
    assert "The all-reduce of sync: shm." in found.notes
    assert not any("all-reduce" in note for note in compare([run("gba", 0, 0.8)]).notes)


def test_what_was_judged_of_replicas_is_said_and_their_gap_shown() -> None:
    more = {"sync_gap_mean": 2.5, "sync_gap_p99": 9.0, "elp": 512.0}
    replicas = [
        Run(r.run_id, r.name, r.status, 0, r.params, {**r.metrics, **more})
        for r in (run("shadow_easgd", 1, 0.8), run("fr_ma", 1, 0.8), run("local_sgd", 1, 0.8))
    ]
    report = compare([*replicas, run("sync", 1, 0.8)])
    assert "Evaluated in shadow_easgd: the centre." in report.notes
    assert "Evaluated in fr_ma, local_sgd: the mean of the replicas." in report.notes
    assert [column.title for column in report.columns if "gap" in column.title] == ["sync gap mean / p99"]
    assert not any("Evaluated" in note or "gap" in note for note in compare(three()).notes)


@pytest.mark.parametrize(
    "tags",
    [{"gbactl.mode": "sync>gba@day2"}, {"gbactl.phases": "sync; gba from day 2, sample 0"}],
    ids=["now", "before"],
)
def test_a_run_that_was_switched_counts_in_no_mean_of_its_first_mode(tags: dict[str, str]) -> None:
    switched = [
        replace(run("sync", seed, auc, at=9, switch__schedule="[{...}]"), tags=tags)
        for seed, auc in ((1, 0.81), (2, 0.82), (3, 0.83))
    ]
    report = compare([*three(), *switched])
    assert [each.key for each in report.groups] == [("sync",), ("gba",), ("sync>gba@day2",)]
    assert group(report, "sync").stats["auc"] == group(compare(three()), "sync").stats["auc"]
    found = group(report, "sync>gba@day2").difference
    assert (found.mean, found.n, report.notes) == (pytest.approx(0.01), 3, ())


def test_ratio_of_throughputs_by_hand() -> None:
    # 2, 3, 4: mean 3, sd 1, error 1 / sqrt 3; t(2) = 4.302653
    found = paired_ratio([(100.0, 200.0), (100.0, 300.0), (200.0, 800.0)])
    assert found is not None
    assert (found.mean, found.half) == (3.0, pytest.approx(4.302653 / math.sqrt(3)))


def test_throughput_is_compared_by_pairs() -> None:
    fast = [replace(each, metrics={**each.metrics, "eps": 3 * each.metrics["eps"]}) for each in three()[3:]]
    rate = group(compare([*three()[:3], *fast]), "gba").rate
    assert rate is not None and (rate.mean, rate.half, rate.n) == (pytest.approx(3.0), pytest.approx(0.0), 3)
    assert "| 3.00 ±0.00 |" in render(compare([*three()[:3], *fast]), "md")
    untimed = [replace(each, metrics={**each.metrics, "eps": 0.0}) for each in fast]
    assert group(compare([*three()[:3], *untimed]), "gba").rate is None


def test_one_round_alone() -> None:
    of_day = {"auc/day 2": 0.7, "eps/day 2": 5.0, "samples_trained/day 2": 60.0, "samples_decayed/day 2": 20.0}
    runs = [replace(each, metrics={**each.metrics, **of_day}) for each in three()]
    report = compare(runs, label="day 2")
    stats = group(report, "gba").stats
    others = "log loss, NE, staleness mean / p50 / p99"
    assert report.notes == (f"All columns are of day 2 alone; of the whole run: {others}.",)
    told = {name: stats[name].mean for name in ("auc", "eps", "decayed_percent") if stats[name]}
    assert told == {"auc": pytest.approx(0.7), "eps": 5.0, "decayed_percent": pytest.approx(25.0)}
    assert stats["logloss"] is not None, "a metric that rounds do not have is that of the run"
    with pytest.raises(UsageError, match="No run has the round day 9; type --round with one of: day 2"):
        compare(runs, label="day 9")


def test_runs_from_a_base_of_their_seed_share_a_line() -> None:
    def resumed(mode: str, seed: int, origin: str) -> Run:
        one = run(mode, seed, 0.8, resume=f"runs/base-{seed}/cut-000001")
        return replace(one, tags={"gbactl.origin": origin})

    report = compare([resumed(mode, seed, "abc@step294") for mode in ("sync", "gba") for seed in (1, 2)])
    assert [(each.key, each.n) for each in report.groups] == [(("sync",), 2), (("gba",), 2)]
    other = compare([resumed("sync", 1, "abc@step294"), resumed("sync", 2, "abc@step147")])
    assert {each.key for each in other.groups} == {("sync", f"resume=abc@step{step}") for step in (294, 147)}
