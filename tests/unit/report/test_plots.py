"""What the plots show, and that they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from gbactl.errors import GbactlError
from gbactl.report import plots
from gbactl.report.plots import plot
from gbactl.report.run_curves import Curves, ModeSegment, curves_of, shares

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


def test_four_files(tmp_path: Path) -> None:
    runs = [curves_of(group, seed, RESULT) for group in ("sync", "gba") for seed in ("1", "2")]
    written = plot(runs, tmp_path / "new")
    names = ["auc_over_samples.png", "auc_over_time.png", "eps.png", "staleness.png"]
    assert [path.name for path in written] == names
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)


def test_what_has_no_data_is_not_drawn(tmp_path: Path) -> None:
    empty = Curves("gba", "1", (), (), (), 5.0, {})
    assert [path.name for path in plot([empty], tmp_path)] == ["eps.png"]
    assert plot([], tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GbactlError, match="type --plots"):
        plot([], tmp_path / "file" / "below")


def switching(*modes: str) -> dict[str, object]:
    phases = [{**phase, "mode": mode} for phase, mode in zip(RESULT["phases"], modes, strict=True)]  # type: ignore[call-overload]
    return {**RESULT, "phases": phases}


def test_stretches_of_one_mode() -> None:
    curves = curves_of("switch", "1", switching("sync", "sync", "gba"))
    assert curves.modes == (ModeSegment("sync", (0, 20), (0, 3.5)), ModeSegment("gba", (20, 40), (3.5, 7.0)))
    assert curves.switched and not curves_of("gba", "1", switching("gba", "gba", "gba")).switched


def test_marks_of_a_switch_belong_to_the_run_that_switched(tmp_path: Path) -> None:
    stay, switched = curves_of("stay", "1", RESULT), curves_of("switch", "1", switching("sync", "gba", "sync"))
    again = curves_of("switch", "2", switching("sync", "gba", "sync"))
    other = curves_of("other", "1", switching("sync", "sync", "gba"))
    axes = Figure().subplots()
    plots._auc_over_samples(axes, {"stay": [stay], "switch": [switched, again], "other": [other]})
    assert len(axes.patches) == 0  # nothing lies behind everybody's lines
    named = [(text.get_text(), text.get_color()) for text in axes.texts]
    assert named == [("gba", "C1"), ("sync", "C1"), ("gba", "C2")]
    marks = [line for line in axes.lines if line.get_marker() == "D"]
    assert [line.get_markeredgecolor() for line in marks] == ["C1"] * 4 + ["C2"]
    assert [line.get_xdata()[0] for line in marks] == [10, 20, 10, 20, 20]  # type: ignore[index]
    assert marks[1].get_ydata()[0] == pytest.approx(0.6 + 0.1 / 3)  # type: ignore[index]
    assert len(plot([stay, switched], tmp_path)) == 4
