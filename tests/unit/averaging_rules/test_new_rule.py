"""A rule that nobody knew before: a file for its arithmetic, a target of four lines for its mode, and this test."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gbactl import averaging_rules as rules
from gbactl.config import ClusterConfig, ModeConfig, ModelConfig, RunConfig, TrainConfig, check
from gbactl.data.dataset import open_dataset
from gbactl.simulation.simulated_run import run_virtual
from tests.support import small_data

RULE = """
import numpy as np

from gbactl.averaging_rules import AveragingRule, register


@register("nudge")
class Nudge(AveragingRule):
    def exchange(self, replica, other):
        np.subtract(other, replica, out=replica)
        np.clip(replica, -self.alpha, self.alpha, out=replica)
"""
MODE = """
from gbactl.policies.replica_modes import ForegroundOptions, ReplicaPolicy


class ForegroundNudge(ReplicaPolicy):
    Options, rule, collective = ForegroundOptions, "nudge", True
"""


@pytest.fixture
def nudge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule as if it were in its package, and a module with the mode; forgotten afterwards."""
    folder = tmp_path / "rule"
    folder.mkdir()
    (folder / "nudge.py").write_text(RULE)
    (tmp_path / "nudging.py").write_text(MODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(rules, "__path__", [*rules.__path__, str(folder)])
    for module in ("gbactl.averaging_rules.nudge", "nudging"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))


@pytest.mark.usefixtures("nudge")
def test_its_arithmetic_is_found() -> None:
    replica, mean = np.array([0.0, 1.0], np.float32), np.array([0.1, 9.0], np.float32)
    rules.make("nudge", 2, {"alpha": 0.5}).exchange(replica, mean)
    assert replica.tolist() == [np.float32(0.1), 0.5]


@pytest.mark.usefixtures("nudge")
def test_it_trains(tmp_path: Path) -> None:
    data = small_data.prepared(tmp_path / "cache", 600)
    cfg = RunConfig(
        mode=ModeConfig("fr_nudge", 32, target="nudging.ForegroundNudge", options={"k": 2, "alpha": 0.01}),
        model=ModelConfig(dim=4, hidden=[8]), cluster=ClusterConfig(name="virtual", workers=3, servers=1),
        train=TrainConfig(global_batch=96),
    )  # fmt: skip
    result = run_virtual(check(cfg), open_dataset(data), tmp_path)
    assert result["samples"]["trained"] == 600 and result["replicas"]["exchanges"] > 0
