"""The command before its simulations: which modes it compares, which models it refuses, how many samples it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gbactl.advise import data_subset
from gbactl.advise.advise_command import PROBE_STEPS, SPARE, AdviseOptions, Advising, default_modes
from gbactl.advise.simulation_jobs import SimulationSeconds
from gbactl.data.dataset import Split, open_dataset
from gbactl.errors import ConfigError, UsageError
from tests.support import small_data

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
    replicas = advising("mode=local_sgd", "mode.k=7").modes
    assert list(replicas) == [*default_modes(), "local_sgd"] and replicas["local_sgd"].mode.options["k"] == 7
    own = ("mode=hop_bw", "mode.name=mine", "mode.target=gbactl.policies.hop_bw.HopBwPolicy")
    assert list(advising(*own).modes) == [*default_modes(), "mine"]
    assert list(advising(*own, modes="gba,mine").modes) == ["sync", "gba", "mine"]
    with pytest.raises(UsageError, match="--modes mine is not known"):
        advising(modes="gba,mine")
    with pytest.raises(UsageError, match="--modes names no mode to compare with sync; type some of: async, "):
        advising(modes="sync,")


def test_the_command_that_runs_it_again_has_the_options() -> None:
    text = advising("cluster.workers=4", modes="gba,bsp").command.text
    assert text.startswith("gbactl advise --modes gba,bsp --minutes 1.0 ") and text.endswith(" cluster.workers=4")


def test_a_mode_that_cannot_run_on_the_cluster_is_left_out_unless_it_was_typed() -> None:
    alone = ("cluster.workers=1", "mode.local_batch=64")
    found = advising(*alone)
    assert list(found.modes) == [mode for mode in default_modes() if mode != "hop_bw"]
    assert [note.partition(": ")[0] for note in found.left_out] == ["hop_bw is left out"]
    with pytest.raises(ConfigError, match=r"mode\.backup=1"):
        advising(*alone, modes="hop_bw")


def test_a_model_that_breaks_the_contract_is_refused_before_any_simulation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat_model.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"model\.target=flat_model\.Flat"):
        advising("model.target=flat_model.Flat").run()
    assert not (tmp_path / "runs").exists()


def test_data_in_which_no_mode_has_an_auc_are_refused(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = open_dataset(data)
    *others, last = whole.splits
    unclicked = Split(last.name, replace(last.whole, labels=np.zeros_like(last.whole.labels)))
    monkeypatch.setattr(data_subset, "opened", lambda path: replace(whole, splits=(*others, unclicked)))
    command = advising(modes="sync,gba")
    command.dataset, command.options = whole, replace(command.options, samples=640)
    with pytest.raises(UsageError, match="All 640 evaluation samples have the label 0, so no AUC can be computed"):
        command._subset({}, 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_data.prepared(tmp_path_factory.mktemp("cache"), 20_000, 3)


@pytest.mark.parametrize(("pace", "steps"), [(0.5, 68), (1.0, 68), (2.0, 34), (8.0, 8), (100.0, PROBE_STEPS)])
def test_the_longer_the_probe_waits_for_cores_the_fewer_samples_are_simulated(
    data: Path, monkeypatch: pytest.MonkeyPatch, pace: float, steps: int
) -> None:
    """`pace`: the probe's real seconds for each CPU second; `steps`: global batches of 64 that are trained."""
    monkeypatch.setattr(Advising, "_left", 60.0)
    command = advising(modes="sync,gba")
    command.dataset, command.probed = open_dataset(data), 1
    in_all = 3 * (2 + 4)  # simulations of a sample: of three seeds, in two modes and in a base of four times as many
    a_sample = SPARE * 60.0 / (in_all * 68.8 * 64)
    took = SimulationSeconds(0.0, 0.0, a_sample, pace * a_sample)
    found = command._subset(dict.fromkeys(command.modes, took), 1)
    assert found.trained == 64 * steps
