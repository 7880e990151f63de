"""The first dense slice, kept for a server that has no checkpoint to come back to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gbactl.checkpoint import restore
from gbactl.errors import CheckpointError
from gbactl.store.dense import DenseSpec
from gbactl.store.shard import ShardSpec

SPEC = ShardSpec(1, 2, 10, 2)
VALUES = np.array([1.5, -2.0], np.float32)


def test_it_is_there_again_bit_by_bit(tmp_path: Path) -> None:
    dense = DenseSpec(3, 1, 0.2)
    restore.keep_initial(tmp_path, ShardSpec(1, 2, 10, 2, dense=dense, dense_init=VALUES))
    again = restore.load_initial(tmp_path, SPEC, 0.2)
    assert again.dense == dense and again.dense_init is not None and again.dense_init.tobytes() == VALUES.tobytes()


def test_a_damaged_or_missing_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"S1\.safetensors cannot be read"):
        restore.load_initial(tmp_path, SPEC, 0.1)
    restore.keep_initial(tmp_path, ShardSpec(1, 2, 10, 2, dense=DenseSpec(4), dense_init=VALUES))
    (path,) = tmp_path.rglob("S1.safetensors")
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"S1\.safetensors cannot be read"):
        restore.load_initial(tmp_path, SPEC, 0.1)


def test_where_it_cannot_be_written_the_log_says_what_that_means(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "beginning").write_text("in the way")
    restore.keep_initial(tmp_path, ShardSpec(1, 2, 10, 2, dense=DenseSpec(4), dense_init=VALUES))
    assert "if S1 is lost, the run ends" in caplog.text
