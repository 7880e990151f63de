"""The study of the advice against real runs: what its settings share, and how predictions are judged."""

from __future__ import annotations

from typing import Any

import pytest
import truth

from gbactl.launch.hydra_config import compose

SYNC, GBA, ASYNC = (1000.0, 0.8), (2000.0, 0.8), (2500.0, 0.7)


@pytest.fixture(scope="module")
def settings(run_script: Any) -> list[Any]:
    found: list[Any] = run_script("advise").settings(False)
    return found


def runs(**modes: tuple[float, float]) -> dict[str, list[dict[str, Any]]]:
    """Real runs with three seeds: EPS and AUC of each mode."""
    return {
        mode: [
            {"seed": seed, "auc": auc + 0.01 * seed, "others": 0.1, "rounds": [{"eps": eps, "samples": 9, "auc": auc}]}
            for seed in range(3)
        ]
        for mode, (eps, auc) in modes.items()
    }


def told(mode: str, **rates: float) -> dict[str, Any]:
    """An advice with a rate for each mode."""
    modes = [
        {
            "mode": each, "eps": 1000 * rate, "eps_ratio": rate, "auc_difference": 0.0 if each != "sync" else None,
            "auc_difference_half": 0.0001 if each != "sync" else None, "verdict": "same", "seeds": [0, 1],
        }
        for each, rate in rates.items()
    ]  # fmt: skip
    sample = {"base": 20, "trained": 10, "judged": 5}
    return {"mode": mode, "sentence": "Run it.", "modes": modes, "sample": sample, "seconds": 170.0, "others": 0.0}


@pytest.mark.parametrize(
    ("named", "right", "words"),
    [
        ("gba", True, "`gbactl advise` named gba, with 1.00 of the EPS of the best mode, gba"),
        ("sync", False, "`gbactl advise` named sync, with 0.50 of the EPS of the best mode, gba"),
        ("async", False, "`gbactl advise` named async, whose measured AUC is worse; the best mode is gba"),
    ],
)
def test_the_best_is_the_fastest_with_the_auc_of_sync(named: str, right: bool, words: str) -> None:
    found = truth.of_real(runs(sync=SYNC, gba=GBA, **{"async": ASYNC}))
    assert truth.best(found) == ("gba", 2.0)
    assert truth.judged(told(named), found) == (words, right)


def test_results_have_predictions_beside_measurements(settings: list[Any]) -> None:
    done = {"setting": settings[0], "advice": told("gba", sync=1.0, gba=2.1), "runs": runs(sync=SYNC, gba=GBA)}
    text = truth.text([done], "abc")
    assert "in 1 of 1 settings" in text
    assert "named gba, with 1.00 of the EPS of the best mode, gba. The advice was right." in text
    gba = "| gba | 2,100 | 2,000 | 2.10 | 2.00 +-0.00 | +0.00000 +-0.00010 | +0.00000 +-0.00000 | same | same | 0.10 |"
    assert gba in text


def test_settings_compose_and_share_what_does_not_depend_on_the_load(settings: list[Any]) -> None:
    assert [each.name for each in settings] == ["one_slow", "calm", "small_model"]
    assert settings[0].key == settings[1].key != settings[2].key
    for each in settings:
        assert compose([*each.machine, *each.load]).cluster.workers == 4
