"""The soak: what it draws, and what it takes for something left behind."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gbactl.compose import compose
from gbactl.policies import names

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "soak"


@pytest.fixture(scope="module")
def scripts() -> dict[str, ModuleType]:
    sys.path[:0] = [str(FOLDER)]
    return {name: importlib.import_module(name) for name in ("trouble", "leftovers")}


def test_every_mode_comes_and_the_same_seed_draws_the_same(scripts: dict[str, ModuleType]) -> None:
    draw = scripts["trouble"].draw
    drawn = [draw(3, number) for number in range(42)]
    assert {training.mode for training in drawn} == set(names())
    assert drawn == [draw(3, number) for number in range(42)] != [draw(4, number) for number in range(42)]
    kinds = {strike for training in drawn for strike in training.strikes}
    assert len(kinds) == 5 and all(training.strikes for training in drawn)


@pytest.mark.parametrize("number", range(14))
def test_what_is_drawn_can_be_run(scripts: dict[str, ModuleType], number: int) -> None:
    training = scripts["trouble"].draw(0, number)
    cfg = compose(list(training.overrides))
    assert cfg.mode.name == training.mode and cfg.faults.plans
    assert training.must == sum("step" in plan for plan in cfg.faults.plans)
    assert cfg.data["rows_per_day"] == scripts["trouble"].ROWS and cfg.data["days"] == 2


def test_who_strikes_the_coordinator_leaves_a_server_time(scripts: dict[str, ModuleType]) -> None:
    both = [t for t in (scripts["trouble"].draw(1, n) for n in range(200)) if
            {"server killed", "coordinator killed"} <= set(t.strikes)]  # fmt: skip
    assert both
    for training in both:
        plans = compose(list(training.overrides)).faults.plans
        steps = sorted(plan["step"] for plan in plans if plan["kind"] == "kill" and "step" in plan)
        assert len(steps) == 2 and steps[1] - steps[0] > 0.2 * steps[1]


def test_a_file_that_was_not_finished_is_left_behind(scripts: dict[str, ModuleType], tmp_path: Path) -> None:
    before = scripts["leftovers"].found(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".manifest.partial").write_text("x")
    assert len(scripts["leftovers"].found(tmp_path) - before) == 1
