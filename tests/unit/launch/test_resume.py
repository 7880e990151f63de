"""Whole clusters in one process: saved while they train, gone on with from any of their checkpoints."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.checkpoint.folder import CheckpointFolder, write_manifest
from gbactl.config import CheckpointConfig, RunConfig, from_dict, to_dict
from gbactl.coordinator.state import JobPosition, config_at
from gbactl.data.cache import prepare
from gbactl.data.dataset import open_dataset
from gbactl.errors import CheckpointError, EventLogError
from gbactl.launch import resume as resuming
from gbactl.launch.checkpoint_command import verify_all, whole_rows
from gbactl.launch.resume import checkpoint_sentence
from gbactl.replay.event_log_scan import scan
from gbactl.wire.messages import Event, Push
from tests.support import recorded
from tests.support.deaths import Victim
from tests.support.memory_cluster import run_in_memory
from tests.support.modes import SERVED
from tests.support.slow import slow
from tests.support.small_data import options

ROWS = 730  # 12 steps of 64, the last one short, in each of two epochs
EPOCHS = 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return recorded.splits(tmp_path_factory.mktemp("data"), ROWS)


def config(mode: str, data: dict[str, Any]) -> RunConfig:
    """Saves every three steps; keeps all."""
    cfg = recorded.config(mode, data, servers=2)
    saved = CheckpointConfig(name="full", interval_steps=3, keep=100)
    return dataclasses.replace(cfg, checkpoint=saved)


def train(cfg: RunConfig, run_dir: Path, events: list[Event] | None = None) -> dict[str, Any]:
    return run_in_memory(cfg, prepare(cfg.data), run_dir, events=events)


def resume(cfg: RunConfig, run_dir: Path, cut: str, into: Path, **cluster: Any) -> dict[str, Any]:
    """Go on from a checkpoint in a directory of its own, as `gbactl train resume=... run_dir=...` does."""
    chain = CheckpointFolder(run_dir / "checkpoints").verified(cut)
    then = from_dict({**config_at(chain), "resume": str(chain.folder / cut)})
    changed = dataclasses.replace(
        then, mode=cfg.mode, cluster=dataclasses.replace(cfg.cluster, **cluster), checkpoint=CheckpointConfig()
    )
    return train(changed, into)


def steps_of(run_dir: Path) -> dict[str, int]:
    folder = CheckpointFolder(run_dir / "checkpoints")
    return {name: folder.chain(name).last.step for name in folder.names()}


@pytest.fixture(scope="module")
def sync(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A synchronous run with its checkpoints."""
    run_dir = tmp_path_factory.mktemp("sync")
    return run_dir, train(config("sync", data), run_dir)


def test_saving_changes_nothing(sync: tuple[Path, dict[str, Any]], data: dict[str, Any], tmp_path: Path) -> None:
    run_dir, result = sync
    without = train(dataclasses.replace(config("sync", data), checkpoint=CheckpointConfig()), tmp_path)
    assert without["checksums"] == result["checksums"]
    assert result["checkpoint"]["saved"] == len(steps_of(run_dir)) >= 2
    assert result["checkpoint"]["failed"] == 0
    assert "checkpoint" not in without


@pytest.mark.parametrize("step", [3, slow(1)])
def test_every_checkpoint_of_sync_goes_on_bit_for_bit(
    sync: tuple[Path, dict[str, Any]], data: dict[str, Any], tmp_path: Path, step: int
) -> None:
    """Every third of them in the quick set."""
    run_dir, result = sync
    cuts = steps_of(run_dir)
    assert min(cuts.values()) == 3
    for cut in list(cuts)[:-1:step]:
        again = resume(config("sync", data), run_dir, cut, tmp_path / cut)
        assert again["checksums"] == result["checksums"]
        assert again["auc"] == result["auc"]
        for key in ("samples", "global_step", "gradients", "staleness"):
            assert again[key] == result[key], key


@pytest.mark.parametrize(
    ("changed", "same"),
    [({"seed": 7}, True), ({"seed": 7, "data": {"seed": 7}}, True), ({"optim": {"lr": 0.5}}, False)],
)
def test_the_origin_of_a_resumed_run_does_not_tell_seeds_apart(
    sync: tuple[Path, dict[str, Any]], changed: dict[str, Any], same: bool
) -> None:
    def origin(config: dict[str, Any]) -> str:
        chain = CheckpointFolder(sync[0] / "checkpoints").verified("cut-000001")
        last = dataclasses.replace(chain.last, config={**chain.last.config, **config})
        return resuming.StartingPoint(dataclasses.replace(chain, manifests=(*chain.manifests[:-1], last))).origin

    assert (origin(changed) == origin({})) == same


def test_a_run_that_goes_on_in_its_directory_unchanged_is_the_same_run(
    sync: tuple[Path, dict[str, Any]], data: dict[str, Any], tmp_path: Path
) -> None:
    run_dir = Path(shutil.copytree(sync[0], tmp_path / "run"))
    earlier = {"origin": None, "cell": "a-b-c", "run_id": "7f"}
    (run_dir / "result.json").write_text(json.dumps(earlier))
    chain = CheckpointFolder(run_dir / "checkpoints").verified("cut-000001")
    then = from_dict({**config_at(chain), "resume": str(chain.folder / "cut-000001")})

    def start(**changed: Any) -> resuming.StartingPoint:
        return resuming.StartingPoint.of(dataclasses.replace(then, **changed), open_dataset(prepare(then.data)), EPOCHS)

    for same in (start(), start(run_dir=str(run_dir))):
        assert (same.origin, same.earlier, same.tracked) == ("", earlier, "7f")
    lower = start(optim=dataclasses.replace(then.optim, lr=0.5))
    assert lower.same_run and lower.earlier is None and lower.origin.endswith("@step3")
    (run_dir / "config.yaml").write_text("seed: 1")
    assert resuming.find(str(run_dir)).last.name != "cut-000001"
    same.begin(run_dir, then)
    assert resuming.find(str(run_dir)).last.name == "cut-000001", "it is looked up anew, as the others are gone"
    assert (run_dir / "config.yaml").read_text() == "seed: 1" and not (run_dir / "result.json").exists()
    assert start().earlier is None, "the last start was killed, or goes on"
    fork = start(run_dir=str(tmp_path / "fork"))
    assert not fork.same_run and fork.earlier is None and fork.origin == lower.origin
    lower.begin(run_dir, dataclasses.replace(then, optim=dataclasses.replace(then.optim, lr=0.5)))
    (run_dir / "result.json").write_text(json.dumps(earlier))
    assert start().earlier is None, "the result is of the start that changed something"


@pytest.mark.parametrize(("servers", "dense"), [(1, None), (3, None), (3, 1)])
def test_rows_are_dealt_anew_and_sync_does_not_notice(
    sync: tuple[Path, dict[str, Any]], data: dict[str, Any], tmp_path: Path, servers: int, dense: int | None
) -> None:
    run_dir, result = sync
    again = resume(config("sync", data), run_dir, "cut-000001", tmp_path, servers=servers, dense_servers=dense)
    assert again["checksums"]["model"] == result["checksums"]["model"]


@pytest.mark.parametrize("mode", ["gba", "async", "hop_bw"])
def test_another_mode_goes_on_with_a_synchronous_run(
    sync: tuple[Path, dict[str, Any]], data: dict[str, Any], tmp_path: Path, mode: str
) -> None:
    run_dir, result = sync
    again = resume(config(mode, data), run_dir, "cut-000001", tmp_path, workers=2, servers=3)
    assert again["samples"]["read"] == result["samples"]["read"] == 2 * ROWS
    assert [phase["day"] for phase in again["phases"]] == ["epoch 0", "epoch 0", "epoch 1"]
    assert [phase["mode"] for phase in again["phases"]] == ["sync", mode, mode]
    assert again["mode"] == f"sync>{mode}@step{again['phases'][1]['first_step']}"


@pytest.mark.parametrize("servers", [2, 3])
def test_what_was_rounded_is_gone_on_with_and_exported(data: dict[str, Any], tmp_path: Path, servers: int) -> None:
    cfg = config("sync", data)
    cfg.checkpoint.dtype = "bf16"
    result = train(cfg, tmp_path / "first")
    folder = CheckpointFolder(tmp_path / "first" / "checkpoints")
    again = resume(cfg, tmp_path / "first", "cut-000001", tmp_path / "second", servers=servers)
    assert again["samples"] == result["samples"]
    assert again["checksums"]["model"] != result["checksums"]["model"], "it was rounded once"
    assert again["auc"] == pytest.approx(result["auc"], abs=0.02)
    rows = whole_rows(folder.verified("cut-000001"), cfg)
    bits = rows["rows"].view(np.uint32) & np.uint32(0xFFFF)
    assert rows["rows"].dtype == np.float32 and not bits.any() and rows["rows"].any()


@pytest.mark.quick(2)
@pytest.mark.parametrize("mode", SERVED)
def test_what_was_in_flight_is_read_again_and_counts_once(mode: str, data: dict[str, Any], tmp_path: Path) -> None:
    cfg = config(mode, data)
    result = train(cfg, tmp_path / "one")
    assert result["samples"]["read"] == 2 * ROWS
    folder = CheckpointFolder(tmp_path / "one" / "checkpoints")
    for cut in folder.names()[:-1][:3:2]:
        position = JobPosition.read(folder.verified(cut).last.position)
        unread = sum(high - low for low, high in position.unread or ())
        assert position.ledger.read == position.ledger.finished == ROWS * (position.round + 1) - unread
        again = resume(cfg, tmp_path / "one", cut, tmp_path / cut)
        assert again["samples"]["read"] == 2 * ROWS
        assert again["checkpoint"]["resumed_at"] == position.step
    sync = resume(config("sync", data), tmp_path / "one", "cut-000001", tmp_path / "sync")
    assert sync["samples"]["read"] == 2 * ROWS


@pytest.mark.parametrize(
    ("mode", "file"), [("gba", "S1.safetensors"), ("sync", "dense.safetensors"), ("gba", "manifest.json")]
)
def test_a_full_disk_costs_a_checkpoint_and_no_training(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, file: str
) -> None:
    """Whoever writes that file of the first one hears from /dev/full what a full disk says."""
    full, plain = {"cut-000001"}, CheckpointFolder.begin

    def begin(folder: CheckpointFolder, number: int) -> Path:
        path = plain(folder, number)
        if path.name in full:
            (path / f".{file}.partial").symlink_to("/dev/full")
        return path

    monkeypatch.setattr(CheckpointFolder, "begin", begin)
    events: list[Event] = []
    cfg = config(mode, data)
    result = train(dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, epochs=4)), tmp_path, events)
    failed = [event.fields for event in events if event.name == "checkpoint" and event.fields["state"] == "failed"]
    assert len(failed) == result["checkpoint"]["failed"] == 1
    assert "No space left" in failed[0]["why"] and "cut-000001" in failed[0]["why"]
    said = f"The checkpoint of step 3 failed: {failed[0]['why']}; training goes on, the next one tries again."
    assert checkpoint_sentence(failed[0]) == said
    folder = CheckpointFolder(tmp_path / "checkpoints")
    names = [path.name for path in folder.path.iterdir()]
    assert sorted(names) == folder.names(), "no half file is left"
    assert not full & set(names) and "cut-000002" in names
    assert not folder.verified("cut-000002").last.position["ended"], "the next interval tries again"
    assert result["samples"]["read"] == 4 * ROWS


def test_patience_goes_on_where_it_was(data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a checkpoint of a later epoch, and where everybody goes back from one epoch into the one before."""
    cfg = config("sync", data)
    cfg.train.epochs, cfg.train.patience = EPOCHS, 2
    result = train(cfg, tmp_path / "one")
    assert 3 <= len(result["phases"]) < EPOCHS, "it stopped early"
    chains = map(CheckpointFolder(tmp_path / "one" / "checkpoints").verified, steps_of(tmp_path / "one"))
    later = [chain.last for chain in chains if chain.last.position["round"] > 1 and not chain.last.position["ended"]]
    again = [resume(cfg, tmp_path / "one", later[-1].name, tmp_path / "two")]
    assert later[-1].position["stopping"]["seen"] == later[-1].position["round"]
    Victim(monkeypatch, Push, 115)  # of 48 in 12 steps an epoch: in the third, which every machine reaches
    events: list[Event] = []
    cfg.checkpoint.interval_steps = 20
    again.append(train(cfg, tmp_path / "three", events))
    [rewound] = [event.fields for event in events if event.name == "rewound"]
    assert rewound["to"] < 24 < rewound["step"]
    for other in again:
        assert other["checksums"]["model"] == result["checksums"]["model"]
        for key in ("auc", "global_step"):
            assert other[key] == result[key], key
    assert again[0]["samples"] == result["samples"] == {**again[1]["samples"], "rolled_back": 0}
    assert again[1]["samples"]["rolled_back"] > 0
    chain = CheckpointFolder(tmp_path / "one" / "checkpoints").newest()
    fingerprint = open_dataset(prepare(cfg.data)).fingerprint
    longer = from_dict({**config_at(chain), "resume": str(chain.folder / chain.last.name)})
    with pytest.raises(CheckpointError, match="nothing is left to train"):
        resuming.check(chain, to_dict(longer), fingerprint, EPOCHS)
    longer.train.patience = EPOCHS
    resuming.check(chain, to_dict(longer), fingerprint, EPOCHS)
    assert len(train(longer, tmp_path / "four")["phases"]) == EPOCHS, "a larger patience goes on where it ended"


def test_only_so_many_are_kept(data: dict[str, Any], tmp_path: Path) -> None:
    cfg = config("async", data)
    cfg.train.epochs = EPOCHS  # of two, it may save two only, as none begins while one is written
    cfg = dataclasses.replace(cfg, checkpoint=dataclasses.replace(cfg.checkpoint, keep=2))
    result = train(cfg, tmp_path)
    assert len(CheckpointFolder(tmp_path / "checkpoints").names()) == 2 < result["checkpoint"]["saved"]


def test_a_resumed_run_cannot_be_replayed(sync: tuple[Path, dict[str, Any]], data: dict[str, Any],
                                          tmp_path: Path) -> None:  # fmt: skip
    resume(config("gba", data), sync[0], "cut-000001", tmp_path)
    with pytest.raises(EventLogError, match="was resumed from a checkpoint"):
        scan(tmp_path / "events.log")


@pytest.mark.parametrize("log", ["events.log", "events.1.log"])
def test_one_of_another_run_is_not_gone_on_with(
    sync: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str
) -> None:
    """Whatever part of the run it is that has told of its own."""
    run_dir = Path(shutil.copytree(sync[0], tmp_path / "run"))
    (run_dir / "events.log").rename(run_dir / log)
    folder = CheckpointFolder(run_dir / "checkpoints")
    newest = folder.newest().last
    foreign = Path(shutil.copytree(folder.path / newest.name, folder.path / "cut-000999"))
    write_manifest(foreign, dataclasses.replace(newest, number=999, identity="of another seed"))
    assert resuming.find(str(folder.path)).last == newest
    assert "cut-000999 is of another run" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="are not good"):
        verify_all(str(folder.path))


def test_the_configuration_of_a_checkpoint_can_be_used_again(sync: tuple[Path, dict[str, Any]]) -> None:
    chain = CheckpointFolder(sync[0] / "checkpoints").newest()
    cfg = from_dict(config_at(chain))
    assert to_dict(cfg)["mode"]["name"] == "sync" and cfg.run_dir is None


@pytest.fixture(scope="module")
def by_field(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on data with a table for every field, and its checkpoints."""
    folder = tmp_path_factory.mktemp("by_field")
    cfg = config("gba", {**options(ROWS // 2), "cache": str(folder / "cache")})
    train(dataclasses.replace(cfg, train=dataclasses.replace(cfg.train, epochs=1)), folder)
    return folder


@pytest.mark.parametrize("shared", [True, False])
def test_an_export_is_the_model_for_torch_and_others(
    request: pytest.FixtureRequest, sync: tuple[Path, dict[str, Any]], tmp_path: Path, shared: bool
) -> None:
    import torch
    from safetensors.numpy import load_file

    from gbactl.data.dataset import Schema
    from gbactl.launch.checkpoint_command import export
    from gbactl.models import build

    folder = CheckpointFolder((sync[0] if shared else request.getfixturevalue("by_field")) / "checkpoints")
    chain = folder.newest()
    paths = export(chain, tmp_path / "model")
    state = torch.load(paths[1], weights_only=True)
    tensors, told = load_file(paths[0]), json.loads(paths[2].read_text())
    last, schema = chain.last, Schema.from_stored(chain.last.schema)
    whole = np.zeros((last.table_rows, last.width), np.float32)
    for shard in range(last.shards):
        whole[shard :: last.shards] = load_file(folder.path / last.name / f"S{shard}.safetensors")["rows"]
    assert whole.any() and np.array_equal(tensors["rows"], whole)
    names, sizes = (["shared"], [last.table_rows]) if shared else (last.schema["fields"], schema.cardinalities)
    tables = [state.pop(f"tables.{name}") for name in names]
    assert (len(schema.spans) == 1) == shared and [len(table) for table in tables] == list(sizes)
    assert torch.equal(torch.cat(tables), torch.from_numpy(whole))
    cfg = from_dict(last.config)
    model = build(cfg.model, schema.numeric, schema.fields, seed=99)
    model.load_state_dict(state)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert torch.equal(flat, torch.from_numpy(tensors["dense.value"][: len(flat)]))
    assert told["step"] == last.step and set(told["tensors"]) == set(tensors)
