"""Verdicts on lines against the baseline: each one by hand-made runs, and the tests against scipy's."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, ttest_1samp, ttest_rel  # type: ignore[import-untyped]

from gbactl.errors import UsageError
from gbactl.report.columns import AUC, column_of
from gbactl.report.compare import compare
from gbactl.report.equivalence_tests import (
    AUC_MARGIN,
    LEVEL,
    MOST_SEEDS,
    POWER,
    SAME,
    UNDECIDED,
    Verdict,
    holm,
    p_of,
    p_same_of,
    planned_deviation,
    power_of,
    scale_of,
    seeds_needed,
    seeds_to_detect,
    verdicts,
)  # fmt: skip
from gbactl.report.paired_statistics import Difference, Stat, interval_of, paired
from gbactl.report.text_formats import FORMATS, render, sentences, stderr_sentences
from gbactl.tracking.mlflow_store import Run
from tests.support.report_examples import run

SYNC = (0.80, 0.81, 0.82, 0.83)


def runs(**differences: tuple[float, ...]) -> list[Run]:
    """Four seeds of sync, and of each mode with the given differences to sync."""
    made = [run("sync", seed, auc) for seed, auc in enumerate(SYNC)]
    for mode, found in differences.items():
        made += [run(mode, seed, auc + d) for seed, (auc, d) in enumerate(zip(SYNC, found, strict=False))]
    return made


def judged(found: list[Run], mode: str, **options: object) -> Verdict | None:
    report = compare(found, **options)  # type: ignore[arg-type]
    return next(group.verdict for group in report.groups if group.key[0] == mode)


def test_the_same_within_the_margin() -> None:
    found = judged(runs(gba=(-0.0001, 0.0001, -0.0002, 0.0)), "gba")
    assert found is not None and found.p_same is not None and found.p_same < LEVEL
    assert found.words == "same as sync (AUC -0.00005 ±0.00021, margin 0.0005)"


def test_a_significant_difference_within_the_margin_is_the_same() -> None:
    found = judged(runs(gba=(-0.00020, -0.00021, -0.00019, -0.00020)), "gba")
    assert found is not None and found.p_holm is not None and found.p_holm < LEVEL
    assert found.words.startswith("same as sync (AUC -0.00020 ")
    smaller = judged(runs(gba=(-0.00020, -0.00021, -0.00019, -0.00020)), "gba", margin=0.0002)
    assert smaller is not None and smaller.words.startswith("worse by 0.00020 ")


@pytest.mark.parametrize(("sign", "word"), [(-1, "worse"), (1, "better")])
def test_a_difference_and_its_direction(sign: int, word: str) -> None:
    found = judged(runs(gba=tuple(sign * d for d in (0.010, 0.011, 0.009, 0.010))), "gba")
    assert found is not None and found.words == f"{word} by 0.01000 ±0.00130 (AUC, p 0.00015)"
    assert found.p_same is not None and found.p_same > 0.99


def test_undecided_names_the_seeds_that_would_decide() -> None:
    found = judged(runs(gba=(0.0006, -0.0006, 0.0004, -0.0004)), "gba")
    observed = Difference(0.0, None, 4, np.std([6, -6, 4, -4], ddof=1) * 1e-4)
    assert found is not None and found.seeds == seeds_needed(planned_deviation(observed), AUC_MARGIN)
    assert found.words == f"cannot tell, about {found.seeds} seeds needed (AUC +0.00000 ±0.00094, margin 0.0005)"


def test_undecided_with_as_many_seeds_as_were_planned() -> None:
    """So many would do if there were no difference; the observed one lies between none and a significant one."""
    made = paired([(0.8, 0.8 + d) for d in (0.00049, -0.00105) * 15])
    assert made is not None and seeds_needed(planned_deviation(made), AUC_MARGIN) == 29
    found = verdicts([made], scale_of(AUC, None), "sync")[0]
    assert found is not None and found.seeds is None and found.p_same is not None
    assert found.words == "cannot tell, more than 30 seeds needed (AUC -0.00028 ±0.00029, margin 0.0005)"


def test_undecided_beyond_any_number_of_seeds() -> None:
    found = judged(runs(gba=(0.1, -0.1, 0.05, -0.0502)), "gba")
    assert found is not None and found.seeds is None
    assert found.words.startswith("cannot tell, more than 1,000 seeds needed (AUC ")


def test_undecided_above_the_margin_names_the_seeds_that_would_show_the_difference() -> None:
    """A table of two lines, three seeds: not significant with Holm's correction, for which some more would do."""
    found = judged(runs(gba=(0.0, 1e-5, -1e-5), async_=(-0.0178, -0.0312, -0.0321)), "async_")
    assert found is not None and found.kind == UNDECIDED and found.p is not None and found.p < LEVEL
    assert found.words == "cannot tell, about 7 seeds needed (AUC -0.02703 ±0.01990, margin 0.0005)"
    two = judged(runs(gba=(0.0, 1e-5, -1e-5), async_=(-0.010, -0.030, -0.025)), "async_")
    assert two is not None and two.seeds == 13  # of three lines it would be 14: the baseline is none of them


@pytest.mark.parametrize("pilot", [3, 5, 10])
def test_the_named_seeds_are_enough_in_four_of_five_cases(pilot: int) -> None:
    """Whatever deviation the first seeds happen to show; computed from that alone they are so in less than half."""
    sd, shares = 0.001, (np.arange(20) + 0.5) / 20
    pilots = [Difference(0.0, None, pilot, s) for s in sd * np.sqrt(chi2.ppf(shares, pilot - 1) / (pilot - 1))]

    def powers(deviations: list[float]) -> list[float]:
        return [power_of(seeds_needed(each, AUC_MARGIN) or MOST_SEEDS, sd, AUC_MARGIN) for each in deviations]

    planned = powers([planned_deviation(each) for each in pilots])
    assert np.mean([power >= POWER for power in planned]) == pytest.approx(0.8, abs=0.051) and np.mean(planned) > POWER
    observed = powers([each.sd or 0.0 for each in pilots])
    assert np.mean([power >= POWER for power in observed]) < 0.5 and np.mean(observed) < 0.75


@pytest.mark.parametrize(("mean", "lines"), [(0.0005, 1), (0.001, 2), (0.004, 3)])
def test_seeds_to_differ_by_simulation(mean: float, lines: int) -> None:
    seeds = seeds_to_detect(mean, 0.001, lines)
    assert seeds is not None
    drawn = np.random.default_rng(0).normal(mean, 0.001, (20_000, seeds))
    shown = np.mean(ttest_1samp(drawn, 0.0, axis=1).pvalue < LEVEL / lines)
    assert POWER - 0.01 <= shown < (1.0 if seeds < 6 else POWER + 0.05)


def test_one_seed_decides_nothing() -> None:
    one = [run("sync", 1, 0.8), run("gba", 1, 0.7), run("async", 1, 0.6)]
    assert judged(one, "gba") == Verdict(UNDECIDED, "cannot tell, one seed")
    assert judged(one, "sync") is None
    assert "Cannot tell, one seed: async; gba." in sentences(compare(one))
    assert not any("paired t test" in sentence for sentence in sentences(compare(one)))


def test_differences_without_deviation() -> None:
    """Of equal runs, as in virtual time, and of runs that differ by a constant."""
    equal = judged(runs(gba=(0.0, 0.0, 0.0)), "gba")
    assert equal == Verdict(SAME, "same as sync (AUC +0.00000 ±0.00000, margin 0.0005)", 1.0, 1.0, 0.0)
    shifted = Difference(-0.25, 0.0, 3, 0.0)
    assert (p_of(shifted), p_same_of(shifted, 0.3), p_same_of(shifted, 0.25)) == (0.0, 0.0, 1.0)
    found = verdicts([shifted], scale_of(AUC, None), "sync")[0]
    assert found is not None and found.words == "worse by 0.25000 ±0.00000 (AUC, p below 0.0001)"


def test_holm_decides_over_all_lines() -> None:
    one = {"gba": (-0.004, -0.001, -0.003, -0.002)}  # p .030 by itself
    assert (alone := judged(runs(**one), "gba")) is not None and alone.words.startswith("worse by 0.00250")
    several = runs(**one, bsp=(0.002, -0.003, 0.001, 0.0), hop_bs=(0.1, -0.1, 0.0, 0.1))
    found = judged(several, "gba")
    assert found is not None and found.p is not None and found.p_holm == pytest.approx(3 * found.p)
    assert found.words.startswith("cannot tell")
    last = sentences(compare(several))[-1]
    assert last == "same: TOST at 5 %; a difference: paired t test at 5 % with Holm's correction over 3 rows."


def test_holm_by_hand() -> None:
    # sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04, the last at least .06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_rejects_until_the_first_that_is_too_large(p_values: list[float]) -> None:
    adjusted, k = holm(p_values), len(p_values)
    by_raw = [a for _, a in sorted(zip(p_values, adjusted, strict=True))]
    assert by_raw == sorted(by_raw)
    assert all(p <= a for p, a in zip(p_values, adjusted, strict=True))
    assert min(adjusted) == min(1.0, k * min(p_values))
    first = next((i for i, p in enumerate(sorted(p_values)) if (k - i) * p > LEVEL), k)
    assert sum(a <= LEVEL for a in adjusted) == first  # Holm stops at the first p value above its level


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), min_size=2, max_size=9), st.integers(1, 400))
def test_p_values_are_scipys(whole: list[tuple[int, int]], margin_in: int) -> None:
    pairs, margin = [(a / 1000, b / 1000) for a, b in whole], margin_in / 1000
    differences = [b - a for a, b in pairs]
    if len({b - a for a, b in whole}) == 1:
        return
    found = paired(pairs)
    assert found is not None
    assert p_of(found) == pytest.approx(ttest_rel([b for _, b in pairs], [a for a, _ in pairs]).pvalue)
    sides = (
        ttest_1samp(differences, -margin, alternative="greater"),
        ttest_1samp(differences, margin, alternative="less"),
    )
    assert p_same_of(found, margin) == pytest.approx(max(side.pvalue for side in sides))
    half = interval_of(Stat(found.mean, found.sd, found.n), 1 - 2 * LEVEL)
    assert half is not None
    if abs(abs(found.mean) + half - margin) > 1e-9:
        assert (p_same_of(found, margin) < LEVEL) == (abs(found.mean) + half < margin)


@pytest.mark.parametrize("sd", [0.0002, 0.0005, 0.001])
def test_seeds_needed_by_simulation(sd: float) -> None:
    seeds = seeds_needed(sd, AUC_MARGIN)
    assert seeds is not None
    drawn = np.random.default_rng(0).normal(0.0, sd, (20_000, seeds))
    halves = ttest_1samp(drawn, 0.0, axis=1).confidence_interval(0.9)
    shown = np.mean((halves.low > -AUC_MARGIN) & (halves.high < AUC_MARGIN))
    assert shown == pytest.approx(power_of(seeds, sd, AUC_MARGIN), abs=0.01)
    assert power_of(seeds, sd, AUC_MARGIN) >= POWER > power_of(seeds - 1, sd, AUC_MARGIN)


def test_seeds_needed_at_the_ends() -> None:
    assert seeds_needed(1e-9, AUC_MARGIN) == 2
    assert seeds_needed(1.0, AUC_MARGIN) is None
    assert seeds_needed(0.005, AUC_MARGIN) == 858 < MOST_SEEDS  # (1.645 + 1.282)^2 100 = 856.8 for a known deviation


def with_metric(found: list[Run], metric: str, factor: float, noise: float) -> list[Run]:
    """Runs with a metric of 100, and of `factor` times as much with some noise where the mode is not sync."""
    values = [100.0 if each.name.startswith("sync") else factor * (100 + noise * int(each.seed)) for each in found]
    return [replace(each, metrics={**each.metrics, metric: v}) for each, v in zip(found, values, strict=True)]


def test_less_log_loss_is_better() -> None:
    found = with_metric(runs(gba=(0.0,) * 4), "logloss", 0.9, 0.1)
    verdict = judged(found, "gba", on="logloss")
    assert verdict is not None and verdict.words.startswith("better by 9.86500 ")
    more = judged(with_metric(found, "ne", 1.1, 0.1), "gba", on="ne")
    assert more is not None and more.words.startswith("worse by 10.1650 ")


def test_throughputs_differ_by_a_share() -> None:
    verdict = judged(with_metric(runs(gba=(0.0,) * 4), "eps", 2.0, 0.1), "gba", on="eps")
    assert verdict is not None and verdict.words == "better by 100.3 % ±0.4 % (eps, p below 0.0001)"
    same = judged(with_metric(runs(gba=(0.0,) * 4), "eps", 1.0, 0.2), "gba", on="eps", margin=0.02)
    assert same is not None and same.words == "same as sync (eps +0.3 % ±0.4 %, margin 2 %)"


def test_sameness_of_other_metrics_needs_a_margin() -> None:
    found = with_metric(runs(gba=(0.0,) * 4), "logloss", 1.0, 0.0)
    verdict = judged(found, "gba", on="logloss")
    assert verdict is not None and verdict.p_same is None
    assert verdict.words == "cannot tell without --margin (logloss +0.00000 ±0.00000)"
    given_one = judged(found, "gba", on="logloss", margin=0.001)
    assert given_one is not None and given_one.words.startswith("same as sync (logloss ")
    neither = judged(with_metric(found, "staleness_mean", 2.0, 0.1), "gba", on="staleness_mean")
    assert neither is not None and neither.words.startswith("higher by 100.3 ")


@pytest.mark.parametrize("metric", ["auc", "auc/day 3", "test_auc", "gauc"])
def test_every_auc_has_the_margin_of_auc(metric: str) -> None:
    scale = scale_of(column_of(metric), None)
    assert (scale.better, scale.relative, scale.margin) == (1, False, AUC_MARGIN)


def test_switched_runs_pair_with_those_that_stayed() -> None:
    made = runs(gba=(-0.0001, 0.0001, -0.0002, 0.0), slow=(-0.010, -0.011, -0.009, -0.010))
    switched = {"gba": "sync>gba@day2", "slow": "sync>async@day2"}
    found = [
        replace(
            each,
            params={**each.params, "mode": "sync", "mode.name": "sync", "switch.schedule": f"[{mode}]"},
            tags={"gbactl.mode": switched[mode]},
        )
        if (mode := each.name.partition("-")[0]) in switched
        else each
        for each in made
    ]
    said = sentences(compare(found))
    same = "sync>gba@day2: same as sync (AUC -0.00005 ±0.00021, margin 0.0005)"
    assert f"{same}; EPS 1.00 ±0.00 times sync's." in said
    assert "sync>async@day2: worse by 0.01000 ±0.00130 (AUC, p 0.0003); EPS 1.00 ±0.00 times sync's." in said


@pytest.mark.parametrize("margin", [0.0, -0.001, float("nan"), float("inf")])
def test_a_margin_is_a_finite_number_above_0(margin: float) -> None:
    with pytest.raises(UsageError, match=r"is not a finite number above 0; give one, such as 0\.0005"):
        scale_of(AUC, margin)


def example():  # type: ignore[no-untyped-def]
    return compare(runs(gba=(-0.0001, 0.0001, -0.0002, 0.0), slow=(-0.010, -0.011, -0.009, -0.010)))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_has_the_words(form: str) -> None:
    text = " ".join(render(example(), form).split()).replace("\\u00b1", "±")
    assert "same as sync (AUC -0.00005 ±0.00021, margin 0.0005)" in text
    assert "worse by 0.01000 ±0.00130" in text


def test_csv_and_json_have_the_p_values() -> None:
    _, gba, slow = csv.DictReader(io.StringIO(render(example(), "csv")))
    assert float(gba["p_same"]) < LEVEL < float(gba["p_holm"]) and float(slow["p_holm"]) < LEVEL < float(slow["p_same"])
    data = json.loads(render(example(), "json"))
    assert [group["verdict"] and group["verdict"]["p_same"] for group in data["groups"]] == [
        None, pytest.approx(float(gba["p_same"])), pytest.approx(float(slow["p_same"])),
    ]  # fmt: skip
    assert data["margin"] == AUC_MARGIN and data["groups"][1]["against"] == ["sync"]
    assert any(sentence.startswith("gba: same as sync") for sentence in stderr_sentences(example(), "csv"))
