"""`gbactl checkpoint`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gbactl.cli.commands_after_training import checkpoint
from gbactl.errors import CheckpointError
from tests.support.checkpoint_files import save, shards_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with two checkpoints, the second on the first."""
    (tmp_path / "config.yaml").write_text("")
    save(tmp_path / "checkpoints", shards_of(2), 1)
    save(tmp_path / "checkpoints", shards_of(2), 2, step=5, base=["cut-000001"])
    return tmp_path


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(checkpoint, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_a_list_says_what_each_is(run: Path) -> None:
    first, second = printed("ls", str(run)).splitlines()
    assert first.startswith("cut-000001  step 3  day 0  24 samples  gba, 2 servers")
    assert second.endswith("on 1 before it")
    told = json.loads(printed("ls", "--json", str(run / "checkpoints")).splitlines()[1])
    assert (told["step"], told["rests_on"], told["mode"]) == (5, ["cut-000001"], "gba")


def test_verify_names_what_is_not_good(run: Path) -> None:
    assert printed("verify", str(run)).splitlines() == ["cut-000001  good", "cut-000002  good"]
    path = run / "checkpoints" / "cut-000002" / "S1.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    done = CliRunner().invoke(checkpoint, ["verify", str(run)])
    assert isinstance(done.exception, CheckpointError) and "1 of 2 checkpoints" in str(done.exception)
    assert "cut-000001  good" in done.output and "cut-000002/S1.safetensors is damaged" in done.output
    (run / "checkpoints" / "cut-000001" / "manifest.json").write_text("{}")
    assert "cut-000001" in printed("ls", str(run)), "a list tells of it, and goes on"


def test_verify_says_what_is_not_finite(run: Path) -> None:
    """Written by a gbactl that did not look."""
    shards = shards_of(2)
    shards[0].dense_block().value[0] = float("inf")
    save(run / "checkpoints", shards, 3)
    done = CliRunner().invoke(checkpoint, ["verify", str(run)])
    assert isinstance(done.exception, CheckpointError) and "1 of 3 checkpoints" in str(done.exception)
    assert "cut-000003/S0.safetensors is not finite: dense.value holds" in done.output


def test_a_run_without_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    assert "holds no complete checkpoint" in printed("ls", str(tmp_path))
    done = CliRunner().invoke(checkpoint, ["verify", str(tmp_path)])
    assert isinstance(done.exception, CheckpointError)
