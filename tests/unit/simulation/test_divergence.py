"""A model that diverges ends its run in every mode, and what was good before is named."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import CheckpointConfig, RunConfig, from_dict, to_dict
from gbactl.coordinator import event_log
from gbactl.errors import DivergedError
from gbactl.wire.messages import Event
from tests.support.modes import EVERY
from tests.support.simulated_runs import config, run


def exploding(
    mode: str, lr: float, on_divergence: str = "stop", optimizer: str = "sgd", **checkpoint: object
) -> RunConfig:
    """With a rate that is too large; with Adam the model stays finite. `checkpoint`: keys of a full one."""
    cfg = config(mode, hard=False)
    optim = dataclasses.replace(cfg.optim, name=optimizer, lr=lr)
    train = dataclasses.replace(cfg.train, on_divergence=on_divergence)
    saved = cfg.checkpoint
    if checkpoint:
        saved = CheckpointConfig("full", save_seconds=0.0, **checkpoint)  # type: ignore[arg-type]
    return dataclasses.replace(cfg, optim=optim, train=train, checkpoint=saved)


@pytest.mark.parametrize("mode", EVERY)
def test_a_run_ends_at_the_loss_that_is_too_large(mode: str, data: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    with pytest.raises(DivergedError) as caught:
        run(exploding(mode, 1e8), data, tmp_path, events)
    found = re.fullmatch(
        r"The model diverged: the loss of W\d at step (\d+) is .*, at a learning rate of 1e\+08; type a smaller "
        r"optim\.lr, or train\.on_divergence=continue to train on\.", str(caught.value)
    )  # fmt: skip
    assert found is not None and int(found[1]) <= 6, "of 12 steps"
    records = list(event_log.read(tmp_path / "events.log"))
    assert any(isinstance(record, event_log.AnnounceRecord) for record in records), "what was logged is kept"
    assert events[-1].name == "progress" and events[-1].fields["samples"] >= 0


@pytest.mark.parametrize("mode", ["sync", "gba", "fr_ma", "shadow_easgd"])
def test_the_newest_good_checkpoint_is_left_and_named(mode: str, data: Path, tmp_path: Path) -> None:
    """Whether the loss ends the run or, much later, an evaluation without one number."""
    for on_divergence, keep in (("stop", 1), ("continue", 2)):
        where, told = tmp_path / on_divergence, list[Event]()
        cfg = exploding(mode, 1e30, on_divergence, interval_steps=1, keep=keep)
        with pytest.raises(DivergedError) as caught:
            run(cfg, data, where, told)
        folder = CheckpointFolder(where / "checkpoints")
        assert 1 <= len(folder.names()) <= keep
        last = folder.verified(folder.names()[-1]).last
        assert str(caught.value).endswith(
            f" The newest good checkpoint is {last.name}, of step {last.step}; go on from it with 'gbactl train "
            f"resume={where} optim.lr=1e+29'."
        )
        failed = [event.fields["why"] for event in told if event.fields.get("state") == "failed"]
        assert all("is not finite" in why for why in failed)
        if on_divergence == "continue":
            assert "its predictions are infinite or NaN" in str(caught.value) and len(failed) > 1


def test_what_has_diverged_before_is_compared_with_the_first_loss_of_all(data: Path, tmp_path: Path) -> None:
    """A run that goes on does not take the first loss that it hears for a usual one."""
    result = run(exploding("gba", 1e6, "continue", "adam", interval_steps=1, keep=99), data, tmp_path / "a")
    assert result["ne"] > 10, "it was to train to its end"
    chain = CheckpointFolder(tmp_path / "a" / "checkpoints").newest()
    assert chain.last.position["statistics"]["limit"]["first"] == pytest.approx(0.693, abs=0.05)
    cfg = exploding("gba", 1e-9, "stop", "adam")
    values = to_dict(dataclasses.replace(cfg, resume=str(chain.folder / "cut-000003")))
    with pytest.raises(DivergedError, match=r"step 3; go on from it with 'gbactl train resume=\S+/cut-000003 "):
        run(from_dict(values), data, tmp_path / "b")
