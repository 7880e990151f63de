"""Checkpoints on the virtual cluster: the same files, and the same bits after them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gbactl.checkpoint.folder import Folder
from gbactl.checkpoint.resume import at
from gbactl.config import CheckpointConfig, from_dict
from tests.unit.virtual.virtual_runs import config, run


@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_saving_changes_nothing_and_sync_goes_on_bit_for_bit(mode: str, small_data: Path, tmp_path: Path) -> None:
    cfg = dataclasses.replace(config(mode), checkpoint=CheckpointConfig("full", interval_steps=4, keep=9))
    whole, without = run(cfg, small_data, tmp_path / "a"), run(config(mode), small_data, tmp_path / "b")
    assert whole["checksums"] == without["checksums"]
    folder = Folder(tmp_path / "a" / "checkpoints")
    assert [folder.verified(name).last.step for name in folder.names()] == [4, 8, 12]
    values = at(folder.chain("cut-000001"))
    values["resume"] = str(folder.path / "cut-000001")
    again = run(from_dict(values), small_data, tmp_path / "c")
    assert again["samples"]["read"] == whole["samples"]["read"]
    if mode == "sync":
        assert again["checksums"] == whole["checksums"]
        assert again["auc"] == whole["auc"]
