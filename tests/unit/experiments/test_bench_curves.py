"""How cost grows: slopes, what bounds a point, what does not fit, and that a cut study goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import curve_analysis
import curves
import pytest
import ratio_sides
from hypothesis import given
from hypothesis import strategies as st

from tests.support.slow import slow

MACHINE = {"cpu": "CPU", "cores": 2, "memory_gib": 8.0, "versions": {"python": "3.11", "torch": "2", "gbactl": "0"}}


@given(power=st.floats(-2, 2), factor=st.floats(0.1, 1e6), xs=st.lists(st.integers(1, 10**8), min_size=2, unique=True))
def test_the_slope_of_a_power_law_is_its_power(power: float, factor: float, xs: list[int]) -> None:
    assert curve_analysis.slope(xs, [factor * x**power for x in xs]) == pytest.approx(power, abs=1e-6)


def test_one_point_has_no_slope() -> None:
    assert curve_analysis.slope([3], [4.0]) is None


@pytest.mark.parametrize(
    ("workers", "used", "others", "word"),
    [
        (2, {"W": 15.0, "S": 3.0, "C": 0.5}, 0.0, "the cores: workers use 81% of the run's"),
        (2, {"W": 9.0, "S": 1.0}, 9.0, "the cores: workers use 90% of the run's; other processes had 0.9 of 2"),
        (2, {"W": 8.0, "S": 9.5, "C": 0.1}, 0.0, "servers: a core is full"),
        (2, {"W": 5.0, "S": 3.0, "C": 9.1}, 0.0, "coordinator: a core is full"),
        (1, {"W": 9.5, "S": 1.0, "C": 0.2}, 0.5, "too few workers: 1.1 of 2 cores busy"),
        (2, {"W": 9.5, "S": 1.0, "C": 0.2}, 0.5, "waiting: 1.1 of 2 cores busy"),
        (1, {}, 0.0, ""),
    ],
)
def test_what_bounds_a_point(workers: int, used: dict[str, float], others: float, word: str) -> None:
    assert curve_analysis.bound(curve_analysis.Point(1, 100.0, 10.0, used, others, workers), 2) == word


def test_a_table_has_slopes_and_refusals() -> None:
    points = [
        curve_analysis.Point(10, 1000.0, 10.0, {"W": 18.0, "S": 1.0, "C": 0.0}),
        curve_analysis.Point(100, 100.0, 10.0, {"W": 19.0, "S": 0.0, "C": 0.0}),
        curve_analysis.Point(1000, why="refused: too much"),
    ]
    text = curve_analysis.text([curve_analysis.Curve("rows", "rows of it", points)], MACHINE, "curves.py")
    assert text.splitlines()[-6:] == [
        "| ---: | ---: | ---: | ---: | --- | --- |",
        "| 10 | 1,000 |  | 1900.0 | 1.80 / 0.10 / 0.00 | the cores: workers use 95% of the run's |",
        "| 100 | 100 | -1.00 | 19000.0 | 1.90 / 0.00 / 0.00 | the cores: workers use 100% of the run's |",
        "| 1,000 | - | - | - | - | refused: too much |",
        "",
        "Slope over all points (log-log): samples/s -1.00, CPU per sample +1.00.",
    ]
    assert "Written by `curves.py`" in text and "## rows: rows of it" in text


def test_the_curves_vary_what_the_issue_names() -> None:
    found = {name: [point.x for point in points] for name, points in curves.settings().items()}
    assert found["workers-async"] == found["workers-gba"] == [1, 2, 4, 8, 16]
    assert (min(found["rows"]), max(found["rows"])) == (10**5, 3 * 10**7)
    assert (min(found["batch"]), max(found["batch"])) == (128, 8192)
    assert (min(found["dim"]), max(found["dim"])) == (8, 128)


@pytest.mark.parametrize("step", [slow(1), 4])
def test_every_point_is_a_configuration_that_composes(step: int) -> None:
    """Every fourth of every curve in the quick set."""
    from gbactl.launch.hydra_config import compose

    shared = ratio_sides.Bench(Path(), 1000, 1.0)
    for points in curves.settings().values():
        for point in points[::step]:
            cfg = compose([*shared.overrides(point.workers, point.batch), f"mode={point.mode}", *point.overrides])
            assert (cfg.cluster.workers, cfg.local_batch, cfg.model.dim) == (point.workers, point.batch, point.dim)


def test_what_does_not_fit_is_refused_with_the_arithmetic() -> None:
    large = curves.Setting("rows", 3 * 10**7, rows=3 * 10**7)
    assert curves.refusal(large, 10**12) == ""
    assert "x 208 bytes (row, two moments, count) = 6.2 GB, more than 80% of the 4.0 GB" in curves.refusal(
        large, 4 * 10**9
    )


def test_points_that_are_known_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def run(_: Any, setting: Any, samples: int) -> Any:
        ran.append(setting.key)
        if setting.key == "workers-gba 4":
            raise ratio_sides.SideError("it failed")
        why = "refused: no" if setting.key == "workers-gba 2" else ""
        return curve_analysis.Point(setting.x, 5.0, why=why)

    monkeypatch.setattr(curves, "run", run)
    chosen, path = curves.settings()["workers-gba"][:3], tmp_path / "curves.json"
    curves.measure(None, chosen, {}, 1000, path)
    assert ran == ["workers-gba 1", "workers-gba 2", "workers-gba 4"]
    known = json.loads(path.read_text())
    assert set(known) == {"workers-gba 1", "workers-gba 2"}
    assert [len(curve.measured) for curve in curves.curves(known)] == [1]
    ran.clear()
    curves.measure(None, chosen, known, 1000, path)
    assert ran == ["workers-gba 2", "workers-gba 4"]
