"""The peers: plain tables give the same rows, and every script runs and prints a rate."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace

import data_path
import pytest
import ratio_sides

from tests.support.commands import Command, script_main

TINY = (
    "data.numeric=2", "data.fields=3", "data.max_cardinality=50", "model.hidden=[8]", "model.dim=4",
    "train.global_batch=64",
)  # fmt: skip


def test_tables_and_bags_of_the_same_weights_give_the_same_rows() -> None:
    import torch
    import torch_model

    from gbactl.data.dataset import Schema

    schema = Schema(1, (4, 9, 30))
    tables, bags = torch_model.FieldTables(schema, 5), torch_model.FieldBags(schema, 5)
    bags.load_state_dict(tables.state_dict())
    ids = torch.tensor([[0, 8, 29], [3, 0, 7], [3, 8, 7]])
    found = tables(ids)
    assert found.shape == (3, 3, 5) and torch.equal(found, bags(ids))
    assert torch.equal(found[1, 2], tables[2].weight[7])
    found.sum().backward()
    assert all(table.weight.grad.is_sparse for table in tables)


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the scripts from a process that has imported PyTorch."""

    def begin(words: list[str], cwd: Path, env: dict[str, str], **_: object) -> Command:
        return Command(tuple(words[1:]), cwd, env, script_main)

    monkeypatch.setattr(ratio_sides, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": begin}))


PEERS = [
    ("peers/reference.py", 1, ("--processes", "1")), ("peers/dlrm_peer.py", 1, ("--processes", "1")),
    ("peers/ddp_peer.py", 2, ("--processes", "2")), ("peers/hvd_peer.py", 2, ("--processes", "2")),
    ("peers/rpc_peer.py", 2, ("--workers", "2")), ("peers/rpc_peer.py", 2, ("--workers", "2", "--wait")),
]  # fmt: skip


@pytest.mark.usefixtures("forked")
def test_the_reference_prints_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_peer_prints_a_rate(tmp_path, monkeypatch, *PEERS[0])


def test_the_data_path_has_a_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GBACTL_CACHE", str(tmp_path / "cache"))
    overrides = ratio_sides.Bench(tmp_path, 400, 0.05).overrides(1, 32)
    assert data_path.measure([*overrides, *TINY], True, 0.05) > 0


@pytest.mark.slow
@pytest.mark.parametrize(("script", "workers", "options"), PEERS)
def test_a_peer_prints_a_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, workers: int, options: tuple[str, ...]
) -> None:
    """Started as the bench does."""
    if "hvd" in script and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed")
    monkeypatch.setenv("GBACTL_CACHE", str(tmp_path / "cache"))
    small = ratio_sides.Bench(tmp_path, 400, 0.05)
    rate = small.script(script, workers, 32, *options, "--seconds", "0.05", extra=TINY)
    assert rate > 0


@pytest.mark.usefixtures("forked")
def test_a_peer_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    small = ratio_sides.Bench(tmp_path, 400, 0.05)
    with pytest.raises(ratio_sides.SideError, match=r"reference\.py failed: .*nosuchkey"):
        small.script("peers/reference.py", 1, 32, extra=("nosuchkey=1",))
