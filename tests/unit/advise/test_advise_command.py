"""The command before its simulations: which modes it compares, and which models it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbactl.advise.advise_command import AdviseOptions, Advising, default_modes
from gbactl.errors import ConfigError

SMALL = ("data.days=3", "data.rows_per_day=600", "data.fields=2", "data.numeric=2", "train.global_batch=64",
         "mode.local_batch=16", "tracking.enabled=false")  # fmt: skip
MODEL = """
from torch import nn

class Flat(nn.Module):
    def __init__(self, **_):
        super().__init__()
        self.bias = nn.Linear(1, 1)

    def forward(self, numeric, fields):
        return numeric
"""


def advising(*overrides: str, modes: str | None = None) -> Advising:
    options = AdviseOptions(modes, 1.0, None, None, None, 1, "table")
    return Advising((*SMALL, *overrides), options, lambda text: None)


def test_a_typed_mode_is_compared_beside_the_others() -> None:
    assert list(advising().modes) == default_modes()
    assert list(advising("mode=shadow_ma", "mode.k=7").modes) == [*default_modes(), "shadow_ma"]
    own = advising("mode.target=gbactl.policies.hop_bs.HopBs", modes="gba,hop_bs")
    assert list(own.modes) == ["sync", "gba", "hop_bs"]
    assert advising("mode=shadow_ma", "mode.k=7").modes["shadow_ma"].mode.options["k"] == 7


def test_a_model_that_breaks_the_contract_is_refused_before_any_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="model.target=flat_model.Flat"):
        advising("model.target=flat_model.Flat").run()
    assert not (tmp_path / "runs").exists()
