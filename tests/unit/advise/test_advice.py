"""From simulated outcomes to a ranking, a mode and a sentence that claims no more than they show."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gbactl.advise.advice import Advice, advice_of, modes_needing_seeds, plain, sentence
from gbactl.advise.simulation_jobs import Outcome, SimulationSeconds
from gbactl.errors import DivergedError
from gbactl.report.text_formats import render

TOOK = SimulationSeconds(0.1, 0.1, 1.0)
SEEDS = 5
NOISE = (0.0, 0.1, -0.1, 0.05, -0.05)  # of an AUC, between seeds


def outcomes(mode: str, eps: float, gain: float = 0.0, noise: float = 0.0, seeds: int = SEEDS) -> list[Outcome]:
    """`gain`: AUC less sync's; `noise`: how much this varies between seeds."""
    made = []
    for seed in range(seeds):
        auc = 0.8 + 0.01 * seed + gain + noise * NOISE[seed]
        parts = tuple({"samples": 100, "auc": auc - less} for less in (0.02, 0.01, 0.0))
        made.append(Outcome(mode, seed, eps * (1 + 0.01 * seed), TOOK, {"auc": auc}, parts))
    return made


SYNC = outcomes("sync", 1000)
MORE = "type a larger --minutes"  # what to do where there were few global batches
ASYNC = outcomes("async", 2500, -0.02, 0.01)


def advice(*others: list[Outcome], **rates: float) -> Advice:
    found = advice_of([*SYNC, *(each for other in others for each in other)], None)
    return replace(found, rates={float(name.removeprefix("x").replace("_", ".")): r for name, r in rates.items()})


def test_the_fastest_mode_with_the_same_auc() -> None:
    found = advice(ASYNC, outcomes("gba", 2300, 0.0001, 0.0005), outcomes("hop_bw", 1500), x1=0.9, x1_2=1.0, x1_3=1.2)
    assert found.mode == found.beside == "gba"
    assert [each.mode for each in found.standings] == ["gba", "hop_bw", "sync", "async"]
    assert found.for_mode("async").auc == "worse" and found.for_mode("gba").auc == "same"
    assert sentence(found, 16, 3, 200, 150, MORE) == (
        "Run gba with 16 workers: expect 2.3 times sync's rate and the same AUC (margin 0.0005); up to a 1.2x "
        "slow-down of one worker stay with sync."
    )


def test_a_mode_is_not_named_whose_auc_is_undecided() -> None:
    found = advice(outcomes("gba", 2300, -0.0003, 0.005), outcomes("bsp", 1400, 0, 0.0005), x1=1.4, x4=3.0)
    assert (found.mode, found.beside, found.for_mode("gba").auc) == ("bsp", "bsp", "undecided")
    found = advice(outcomes("gba", 2300, -0.0003, 0.005))
    assert (found.mode, found.beside) == ("sync", "")
    assert sentence(found, 4, 3, 200, 150, MORE) == (
        "Stay with sync with 4 workers: gba has 2.3 times its rate, but its AUC may be worse (-0.00030 ±0.00049, "
        "about 15 seeds needed: --minutes 9 may tell)."
    )


def test_a_better_auc_does_not_count_where_a_mode_takes_more_steps() -> None:
    ahead = [replace(each, global_step=False) for each in outcomes("async", 2500, 0.01, 0.001)]
    found = advice(ahead)
    assert (found.mode, found.for_mode("async").auc) == ("sync", "better")
    told = sentence(found, 4, 3, 200, 150, MORE)
    assert "but its AUC is better only in a short training (0.01000 ±" in told and "for it takes more steps" in told
    assert advice(ahead, outcomes("gba", 2000)).mode == "gba"


def test_an_auc_that_may_lose_much_is_not_counted_on() -> None:
    for other in (outcomes("bsp", 2300, 0.001, 0.1), outcomes("bsp", 2300, -0.0016, 0.005), ASYNC):
        found = advice(other)
        assert (found.mode, found.beside) == ("sync", "")
    assert sentence(advice(ASYNC), 4, 3, 200, 150, MORE) == (
        "Stay with sync with 4 workers: async has 2.5 times its rate, but its AUC is worse (-0.02000 ±0.00098)."
    )
    undecided = advice(outcomes("bsp", 2300, 0, 0.03))
    told = sentence(undecided, 4, 3, 200, 150, MORE)
    assert "but its AUC may be worse (0.00000 ±0.00294, about " in told and ": --minutes 30 may tell)." in told
    assert " seeds needed: --seeds " in sentence(undecided, 4, None, 200, 150, MORE), "their number was typed"


def test_more_seeds_are_for_modes_that_may_turn_out_to_be_worthwhile() -> None:
    def found(*others: list[Outcome]) -> list[str]:
        return modes_needing_seeds([*SYNC, *(each for other in others for each in other)], None)

    near, far = outcomes("gba", 2300, -0.001, 0.03), outcomes("hop_bw", 1500, 0, 0.03)
    assert found(near, far, ASYNC) == ["sync", "gba"]
    assert found(near, outcomes("bsp", 2250, 0, 0.03)) == ["sync", "gba", "bsp"]
    assert found(far, ASYNC) == ["sync", "hop_bw"]
    assert found([*near, replace(near[0], seed=9)]) == ["sync", "gba"], "that of sync is not there yet"
    assert found(outcomes("gba", 1040), outcomes("bsp", 2300, -0.003, 0.1)) == []
    assert found(outcomes("gba", 2300, -0.001, 0.001)) == [], "it is shown to be worse, if by less than UNSURE margins"


def test_modes_with_fewer_seeds_are_compared_over_their_own() -> None:
    few = [each for each in ASYNC if each.seed < 3]
    found = advice(few, outcomes("gba", 2300))
    assert (found.for_mode("async").group.n, found.for_mode("gba").group.n, found.mode) == (3, SEEDS, "gba")
    assert any("async: compared with 3 of 5 runs of sync" in note for note in found.report.notes), found.report.notes


def test_a_gain_within_the_error_of_a_prediction_is_none() -> None:
    found = advice(outcomes("gba", 1040), x1=0.9, x1_5=1.04, x1_75=1.2)
    assert (found.mode, found.beside) == ("sync", "gba")
    assert sentence(found, 4, 3, 200, 150, MORE) == (
        "Stay with sync with 4 workers: no other mode is faster by more than 5 %; from one worker 1.75x slower on, gba "
        "would have 1.2 times its rate."
    )
    uneven = sentence(replace(found, rates={1.0: 0.9, 1.1: 1.06, 1.2: 1.04, 1.5: 1.2}), 4, 3, 200, 150, MORE)
    assert "; from one worker 1.5x slower on, gba would have 1.2 times its rate" in uneven
    assert sentence(replace(found, rates={1.0: 0.9, 4.0: 1.0}), 4, 3, 200, 150, MORE).endswith(
        "; nor does gba gain with one worker 4x slower."
    )


def test_of_modes_about_as_fast_the_one_whose_auc_is_best_shown() -> None:
    assert advice(outcomes("bsp", 2300, 0, 0.003), outcomes("gba", 2250, 0, 0.0005)).mode == "gba"
    assert advice(outcomes("bsp", 2300, 0, 0.003), outcomes("gba", 2000, 0, 0.0005)).mode == "bsp"
    better = advice(outcomes("gba", 2250, 0, 0.0005), outcomes("hop_bw", 2300, 0.01, 0.001))
    assert better.mode == "hop_bw" and "and a better AUC (0.01000 ±" in sentence(better, 4, 3, 200, 150, MORE)


def test_a_mode_that_diverges_is_left_out_and_sync_must_not() -> None:
    lost = [replace(ASYNC[0], diverged="The loss is NaN.", result={}), *ASYNC[1:]]
    found = advice(lost, outcomes("gba", 2300))
    assert [each.mode for each in found.standings] == ["gba", "sync"]
    assert sentence(advice(lost), 4, 3, 200, 150, MORE) == "Stay with sync with 4 workers: all other modes diverge."
    assert "async diverged with seed 0, and is left out: The loss is NaN." in found.report.notes
    with pytest.raises(DivergedError, match="sync itself diverges, so no mode can be compared with it: The loss"):
        advice_of([replace(SYNC[0], diverged="The loss is NaN.")], None)


def test_times_to_the_auc_of_sync_are_those_of_the_predicted_rate() -> None:
    found = advice(outcomes("gba", 2000, 0.0101))
    times = {line.key[0]: line for line in found.report.times}
    assert times["sync"].seconds.value == pytest.approx(300 / 1020) and times["sync"].reached == SEEDS
    assert times["gba"].seconds.value == pytest.approx(200 / 2040)


def test_the_range_of_the_rate_and_of_the_ratio() -> None:
    fast = [replace(each, eps=each.eps * (1 + 0.1 * each.seed)) for each in outcomes("gba", 2000)]
    found = advice(fast)
    assert "expect 2.4 (2.0 to 2.8) times sync's rate" in sentence(found, 4, 3, 200, 150, MORE)
    assert any("gba 2,000 to 2,912; sync 1,000 to 1,040" in note for note in found.report.notes)
    same = [replace(each, eps=1.0) for each in SYNC]
    assert "nothing is random" in advice_of(same, None).report.notes[-1]


def test_a_cost_model_that_nobody_measured_is_named() -> None:
    told = sentence(advice(ASYNC), 4, 3, 200, 150, MORE, "laptop")
    assert told.endswith("; cost=laptop is no measurement of your cluster, gbactl calibrate makes one.")


def test_it_is_rendered_and_plain() -> None:
    found = advice(ASYNC, outcomes("gba", 2300), x1=0.9)
    table = render(found.report, "table")
    assert "EPS" in table and "vs sync" in table and "sync's AUC less 0.0005" in " ".join(table.split())
    told = json.loads(json.dumps(plain(found)))
    assert [each["rank"] for each in told["modes"]] == [1, 2, 3] and told["mode"] == "gba"
    assert told["modes"][0]["eps_ratio"] == pytest.approx(2.3) and told["modes"][2]["verdict"] == "worse"
    assert told["one_worker_slower"] == [{"factor": 1.0, "mode": "gba", "eps_ratio": 0.9}]


def test_one_seed_decides_nothing() -> None:
    one = [each for each in (*SYNC, *outcomes("gba", 2300)) if each.seed == 0]
    assert not any(note.startswith("EPS ") for note in advice_of(one, None).report.notes), "it says nothing of a range"
    assert advice_of(one, None).for_mode("gba").auc == "undecided"
    assert "but its AUC may be worse (0.00000)" in sentence(advice_of(one, None), 4, 3, 200, 150, MORE)


@pytest.mark.parametrize(("base", "steps"), [(200, 99), (99, 100)])
def test_few_steps_are_told(base: int, steps: int) -> None:
    told = sentence(advice(outcomes("gba", 2300)), 4, 3, base, steps, MORE)
    few = f"{base} global batches of sync and {steps} in each mode are few to go by"
    assert told.endswith(f"; {few}, {MORE}.")
