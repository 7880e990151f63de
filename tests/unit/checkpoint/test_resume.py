"""Whole clusters in one process: saved while they train, gone on with from any of their checkpoints."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.checkpoint import manifest as manifests
from gbactl.checkpoint import resume as resuming
from gbactl.checkpoint import tensorfile
from gbactl.checkpoint.command import verify_all
from gbactl.checkpoint.export import whole_rows
from gbactl.checkpoint.folder import Folder
from gbactl.checkpoint.position import Position
from gbactl.checkpoint.resume import at
from gbactl.cluster.messages import Event
from gbactl.config import CheckpointConfig, RunConfig, from_dict, to_dict
from gbactl.data.prepare import prepare
from gbactl.errors import CheckpointError, EventLogError
from gbactl.replay.recording import scan
from tests.support import recorded
from tests.support.memory_cluster import run_in_memory

ROWS = 1450  # 23 steps of 64, the last one short, in each of two epochs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return recorded.splits(tmp_path_factory.mktemp("data"), ROWS)


def config(mode: str, data: dict[str, Any]) -> RunConfig:
    """Saves every three steps; keeps all."""
    cfg = recorded.config(mode, data, servers=2)
    saved = CheckpointConfig(name="full", interval_steps=3, keep=100)
    return dataclasses.replace(cfg, checkpoint=saved)


def train(cfg: RunConfig, run_dir: Path, told: list[Event] | None = None) -> dict[str, Any]:
    return run_in_memory(cfg, prepare(cfg.data), run_dir, told=told)


def resume(cfg: RunConfig, run_dir: Path, cut: str, into: Path, **cluster: Any) -> dict[str, Any]:
    """Go on from a checkpoint in a directory of its own, as `gbactl train resume=... run_dir=...` does."""
    chain = Folder(run_dir / "checkpoints").verified(cut)
    then = from_dict({**at(chain), "resume": str(chain.folder / cut)})
    changed = dataclasses.replace(
        then, mode=cfg.mode, cluster=dataclasses.replace(cfg.cluster, **cluster), checkpoint=CheckpointConfig()
    )
    return train(changed, into)


def steps_of(run_dir: Path) -> dict[str, int]:
    folder = Folder(run_dir / "checkpoints")
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


def test_every_checkpoint_of_sync_goes_on_bit_for_bit(sync: tuple[Path, dict[str, Any]], data: dict[str, Any],
                                                      tmp_path: Path) -> None:  # fmt: skip
    run_dir, result = sync
    cuts = steps_of(run_dir)
    assert min(cuts.values()) == 3
    for cut in list(cuts)[:-1]:
        again = resume(config("sync", data), run_dir, cut, tmp_path / cut)
        assert again["checksums"] == result["checksums"]
        assert again["auc"] == result["auc"]
        for key in ("samples", "global_step", "gradients", "staleness"):
            assert again[key] == result[key], key


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


@pytest.mark.parametrize("servers", [2, 3])
def test_what_was_rounded_is_gone_on_with_and_exported(data: dict[str, Any], tmp_path: Path, servers: int) -> None:
    cfg = config("sync", data)
    cfg.checkpoint.dtype = "bf16"
    result = train(cfg, tmp_path / "first")
    folder = Folder(tmp_path / "first" / "checkpoints")
    again = resume(cfg, tmp_path / "first", "cut-000001", tmp_path / "second", servers=servers)
    assert again["samples"] == result["samples"]
    assert again["checksums"]["model"] != result["checksums"]["model"], "it was rounded once"
    assert again["auc"] == pytest.approx(result["auc"], abs=0.02)
    rows = whole_rows(folder.verified("cut-000001"), cfg)
    bits = rows["rows"].view(np.uint32) & np.uint32(0xFFFF)
    assert rows["rows"].dtype == np.float32 and not bits.any() and rows["rows"].any()


@pytest.mark.parametrize("mode", ["gba", "async", "bsp", "hop_bs", "hop_bw"])
def test_what_was_in_flight_is_read_again_and_counts_once(mode: str, data: dict[str, Any], tmp_path: Path) -> None:
    cfg = config(mode, data)
    result = train(cfg, tmp_path / "one")
    assert result["samples"]["read"] == 2 * ROWS
    folder = Folder(tmp_path / "one" / "checkpoints")
    for cut in folder.names()[:-1][:3:2]:
        position = Position(folder.verified(cut).last.position)
        unread = sum(high - low for low, high in position.unread or ())
        assert position.ledger.read == position.ledger.finished == ROWS * (position.round + 1) - unread
        again = resume(cfg, tmp_path / "one", cut, tmp_path / cut)
        assert again["samples"]["read"] == 2 * ROWS
        assert again["checkpoint"]["resumed_at"] == position.step
    sync = resume(config("sync", data), tmp_path / "one", "cut-000001", tmp_path / "sync")
    assert sync["samples"]["read"] == 2 * ROWS


def test_a_full_disk_costs_a_checkpoint_and_no_training(
    data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"cut-000001"}

    def write_at(fd: int, data: memoryview, at: int) -> int:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).parent.name in full and at > 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, at)

    monkeypatch.setattr(tensorfile, "write_at", write_at)
    told: list[Event] = []
    result = train(config("gba", data), tmp_path, told)
    failed = [event.fields for event in told if event.name == "checkpoint" and event.fields["state"] == "failed"]
    assert len(failed) == result["checkpoint"]["failed"] == 1
    assert "No space left" in failed[0]["why"] and "cut-000001" in failed[0]["why"]
    names = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert sorted(names) == Folder(tmp_path / "checkpoints").names(), "no half file is left"
    assert not full & set(names) and "cut-000002" in names
    assert result["samples"]["read"] == 2 * ROWS


def test_only_so_many_are_kept(data: dict[str, Any], tmp_path: Path) -> None:
    cfg = config("async", data)
    cfg = dataclasses.replace(cfg, checkpoint=dataclasses.replace(cfg.checkpoint, keep=2))
    result = train(cfg, tmp_path)
    assert len(Folder(tmp_path / "checkpoints").names()) == 2 < result["checkpoint"]["saved"]


def test_a_resumed_run_cannot_be_replayed(sync: tuple[Path, dict[str, Any]], data: dict[str, Any],
                                          tmp_path: Path) -> None:  # fmt: skip
    resume(config("gba", data), sync[0], "cut-000001", tmp_path)
    with pytest.raises(EventLogError, match="went on from a checkpoint"):
        scan(tmp_path / "events.log")


@pytest.mark.parametrize("log", ["events.log", "events.1.log"])
def test_one_of_another_run_is_not_gone_on_with(
    sync: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str], log: str
) -> None:
    """Whatever part of the run it is that has told of its own."""
    run_dir = Path(shutil.copytree(sync[0], tmp_path / "run"))
    (run_dir / "events.log").rename(run_dir / log)
    folder = Folder(run_dir / "checkpoints")
    newest = folder.newest().last
    foreign = Path(shutil.copytree(folder.path / newest.name, folder.path / "cut-000999"))
    manifests.write(foreign, dataclasses.replace(newest, number=999, identity="of another seed"))
    assert resuming.find(str(folder.path)).last == newest
    assert "cut-000999 is of another run" in capsys.readouterr().err
    with pytest.raises(CheckpointError, match="are not good"):
        verify_all(str(folder.path))


def test_the_configuration_of_a_checkpoint_can_be_used_again(sync: tuple[Path, dict[str, Any]]) -> None:
    chain = Folder(sync[0] / "checkpoints").newest()
    cfg = from_dict(at(chain))
    assert to_dict(cfg)["mode"]["name"] == "sync" and cfg.run_dir is None


def test_an_export_is_the_model_for_torch_and_others(
    sync: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    import torch
    from safetensors.numpy import load_file

    from gbactl.checkpoint.export import export
    from gbactl.models import build

    chain = Folder(sync[0] / "checkpoints").newest()
    paths = export(chain, tmp_path / "model")
    state = torch.load(paths[1], weights_only=True)
    tensors, told = load_file(paths[0]), json.loads(paths[2].read_text())
    assert torch.equal(state.pop("tables.shared"), torch.from_numpy(tensors["rows"]))
    cfg = from_dict(chain.last.config)
    model = build(cfg.model, chain.last.schema["numeric"], 3, seed=99)
    model.load_state_dict(state)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    assert torch.equal(flat, torch.from_numpy(tensors["dense.value"][: len(flat)]))
    assert told["step"] == chain.last.step and set(told["tensors"]) == set(tensors)
