"""The soak: what it draws, what it takes for something left behind, and what it compares."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import fault_plans
import leftovers
import pytest
import run_checks

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.config import CheckpointConfig
from gbactl.launch.hydra_config import compose
from gbactl.policies.policy import names, policy_class
from tests.support import recorded


def test_everything_comes_and_the_same_seed_draws_the_same() -> None:
    drawn = [fault_plans.draw(3, number) for number in range(42)]
    assert {training.mode for training in drawn} == set(names())
    assert drawn == [fault_plans.draw(3, number) for number in range(42)] != [fault_plans.draw(4, n) for n in range(42)]
    kinds = {strike for training in drawn for strike in training.strikes}
    assert len(kinds) == 8 and all(training.strikes for training in drawn)
    typed = {override for training in drawn for override in training.overrides}
    assert {f"checkpoint={name}" for name in fault_plans.VARIANTS} < typed
    assert {f"collective={ring}" for ring in fault_plans.RINGS} < typed
    fewer = [fault_plans.draw(3, number, ("shm",)) for number in range(42)]
    assert [training.plan for training in fewer] == [training.plan for training in drawn]
    assert "collective=shm" in fewer[0].overrides and all(t.replayed for t in fewer if t.mode in fault_plans.SERVED)


@pytest.mark.quick(5)
@pytest.mark.parametrize("number", range(14))
def test_what_is_drawn_can_be_run(number: int) -> None:
    training = fault_plans.draw(0, number)
    cfg = compose(list(training.overrides))
    assert cfg.mode.name == training.mode and len(cfg.faults.plans) == len(training.plan) > 0
    for plan, strike in zip(cfg.faults.plans, training.plan, strict=True):
        assert (strike.must is not None) == ("step" in plan)
        assert strike.must is None or strike.must[0] == plan["kind"]
    assert cfg.data["rows_per_day"] == fault_plans.ROWS and cfg.data["days"] == 2
    assert cfg.server_returns and cfg.checkpoint.interval_seconds == 2
    again = compose([*training.overrides, fault_plans.planned(training.again)])
    assert len(again.faults.plans) == len(training.again)


def test_between_strikes_at_servers_and_the_coordinator_are_steps() -> None:
    several = set()
    for training in (fault_plans.draw(1, number) for number in range(200)):
        workers = next(int(text[-1]) for text in training.overrides if text.startswith("cluster.workers="))
        steps = fault_plans.ROWS / fault_plans.BATCH / (workers if policy_class(training.mode).global_step else 1)
        core = [strike for strike in training.plan if strike.must is not None and strike.must[1] in "SC"]
        at = [int(re.search(r"step: (\d+)", strike.plan)[1]) for strike in core]
        assert all(later - sooner > 0.09 * steps for sooner, later in itertools.pairwise(at))
        several.add(len(core))
    assert several == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "name", ["checkpoints/.manifest.partial", "control.json", "checkpoints/cut-000007/S0.safetensors",
             "checkpoints/.gone-cut-000007/S0.safetensors", "rendezvous/gloo-1"],
)  # fmt: skip
def test_what_was_not_finished_is_left_behind(tmp_path: Path, name: str) -> None:
    whole = tmp_path / "checkpoints" / "cut-000006" / "manifest.json"
    whole.parent.mkdir(parents=True)
    whole.write_text("{}")
    before = leftovers.found(tmp_path)
    assert not any(str(tmp_path) in each for each in before)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("x")
    assert sum(str(tmp_path) in each for each in leftovers.found(tmp_path)) == 1  # others begin processes meanwhile


def test_samples_without_a_fate_and_strikes_that_were_not_done_are_told(tmp_path: Path) -> None:
    counted = {"read": 10, "trained": 7, "decayed": 1, "lost": 2}
    run_checks.accounts({"samples": counted}, 10)
    for wrong in ({**counted, "lost": 1}, {**counted, "read": 11, "lost": 3}):
        with pytest.raises(run_checks.Wrong, match="do not add up"):
            run_checks.accounts({"samples": wrong}, 10)
    told = [{"kind": "kill", "process": "S1", "done": True}, {"kind": "kill", "process": "S0", "done": False},
            {"kind": "hang", "process": "W1", "done": False}]  # fmt: skip
    (tmp_path / "faults.json").write_text(json.dumps({"injected": told}))
    run_checks.struck(tmp_path, [("kill", "S"), ("hang", "W")])
    with pytest.raises(run_checks.Wrong, match="not done"):
        run_checks.struck(tmp_path, [("kill", "S"), ("kill", "S")])


def test_a_replay_that_is_refused_is_well_only_where_it_has_to_be() -> None:
    refused = subprocess.CompletedProcess([], 1, "", "such a run cannot be replayed.")
    assert run_checks.replayed(subprocess.CompletedProcess([], 0, "", ""), True) and not run_checks.replayed(
        refused, False
    )
    differs = subprocess.CompletedProcess([], 1, "Shard 0 is not as logged", "")
    for done, expected in ((refused, True), (differs, True), (differs, False)):
        with pytest.raises(run_checks.Wrong):
            run_checks.replayed(done, expected)


@pytest.mark.quick(2)
@pytest.mark.parametrize("variant", ["full", "cpr_scar"])
@pytest.mark.parametrize("mode", ["sync", "gba", "shadow_easgd", "fr_ma"])
def test_the_model_of_the_files_is_compared(tmp_path: Path, mode: str, variant: str) -> None:
    """Every part of it counts: a bit of a row, of a moment or of the dense part makes another sum."""
    cfg = recorded.config(mode, recorded.splits(tmp_path / "data"))
    cfg = dataclasses.replace(cfg, checkpoint=CheckpointConfig(name=variant, interval_steps=3))
    result: dict[str, Any] = recorded.record(cfg, tmp_path)
    run_checks.model(tmp_path, result)
    with pytest.raises(run_checks.Wrong, match="the last checkpoint's model is"):
        run_checks.model(tmp_path, {**result, "checksums": {**result["checksums"], "model": "0"}})
    with pytest.raises(run_checks.Wrong, match="the run ended at step"):
        run_checks.model(tmp_path, {**result, "global_step": result["global_step"] + 1})
    folder = CheckpointFolder(tmp_path / "checkpoints")
    chain = folder.chain(folder.names()[-1])
    for entry in chain.last.files:
        path = tmp_path / "checkpoints" / chain.last.name / entry.name
        for name, (low, _) in spans(path).items():
            whole = path.read_bytes()
            changed(path, low)
            assert (run_checks.model_sum(chain) == result["checksums"]["model"]) == (name == "dense.step"), name
            with pytest.raises(run_checks.Wrong, match="damaged"):
                run_checks.model(tmp_path, result)
            path.write_bytes(whole)
    run_checks.model(tmp_path, result)


def spans(path: Path) -> dict[str, tuple[int, int]]:
    """Where each tensor lies in a safetensors file, in bytes."""
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    found = {name: told["data_offsets"] for name, told in header.items() if name != "__metadata__"}
    return {name: (size + low, size + high) for name, (low, high) in found.items() if high > low}


def changed(path: Path, at: int) -> None:
    """Another value of one bit."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
