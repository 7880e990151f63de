"""Curves, mode segments and staleness of a run from its result.json."""

from __future__ import annotations

from gbactl.report.run_curves import ModeSegment, curves_of, shares

RESULT = {
    "eps": 100.0,
    "phases": [
        {"samples": 10, "seconds": 2.0, "drain_seconds": 0.5, "auc": 0.6},
        {"samples": 10, "seconds": 1.0, "drain_seconds": None, "auc": None},
        {"samples": 20, "seconds": 3.0, "closing_seconds": 0.5, "auc": 0.7},
    ],
    "staleness_histogram": {"0": 1, "2": 3},
}


def test_phases_add_up() -> None:
    curves = curves_of("gba", "1", RESULT)
    assert curves.samples == (10, 40)
    assert curves.seconds == (2.5, 7.0)
    assert curves.auc == (0.6, 0.7)
    assert curves.staleness == {0: 1, 2: 3}


def test_shares_are_over_all_runs_of_a_group() -> None:
    other = curves_of("gba", "2", {"staleness_histogram": {"0": 4}})
    assert shares([curves_of("gba", "1", RESULT), other]) == {0: 62.5, 2: 37.5}
    assert shares([]) == {}


def switching(*modes: str) -> dict[str, object]:
    phases = [{**phase, "mode": mode} for phase, mode in zip(RESULT["phases"], modes, strict=True)]  # type: ignore[call-overload]
    return {**RESULT, "phases": phases}


def test_stretches_of_one_mode() -> None:
    curves = curves_of("switch", "1", switching("sync", "sync", "gba"))
    assert curves.modes == (ModeSegment("sync", (0, 20), (0, 3.5)), ModeSegment("gba", (20, 40), (3.5, 7.0)))
    assert curves.switched and not curves_of("gba", "1", switching("gba", "gba", "gba")).switched
