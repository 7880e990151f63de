"""Real processes, recorded and replayed: the hard case, and what the command says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gbactl.cluster.eventlog import AnnounceRecord, read
from tests.support.processes import Launcher
from tests.support.recorded import MODES, splits

HARD = (
    "data=libfm", "mode.local_batch=32", "train.epochs=2", "train.shuffle=true", "train.checksum_every=20",
    "model.dropout=0.2", "model.batch_norm=true", "cluster.workers=4", "cluster.servers=3", "seed=7",
    "faults.plans=[{kind: constant, workers: [1], factor: 4}]",
)  # fmt: skip
SIZES = ("model.dim=4", "model.hidden=[32]", "train.global_batch=256", "cluster.threads=1")


def replay(launcher: Launcher, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gbactl", "replay", *arguments],
        cwd=launcher.cwd, env=launcher.environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def verdict(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def recorded(launcher: Launcher, mode: str, tmp_path: Path, *more: str, tracking: bool = False) -> dict[str, Any]:
    """Four real workers, one of them four times slower; three servers; two epochs."""
    data = splits(tmp_path / "data", rows=5000)
    paths = [f"data.{name}={data[name]}" for name in ("train", "validation", "test")]
    return launcher.train(*HARD, *SIZES, *paths, f"mode={mode}", *more, small=False, tracking=tracking)


ALWAYS = ("async", "gba", "hop_bw")


@pytest.mark.parametrize(
    "mode", [*ALWAYS, *(pytest.param(m, marks=pytest.mark.slow) for m in MODES if m not in ALWAYS)]
)
def test_four_processes_three_shards_one_slow_worker(launcher: Launcher, tmp_path: Path, mode: str) -> None:
    result = recorded(launcher, mode, tmp_path)
    done = replay(launcher, result["run_dir"])
    assert done.returncode == 0, done.stderr
    found = verdict(done)
    assert found["identical"] and found["steps"] == result["global_step"]
    assert found["gradients"] + found["dropped"] == 2 * 157
    assert found["checksums"] == 3 * (found["steps"] // 20 + 2)
    assert f"bit-identical: {found['steps']} steps" in done.stderr
    log = Path(result["run_dir"]) / "events.log"
    pulled = {(r.row_versions[0], r.batch) for r in read(log) if isinstance(r, AnnounceRecord)}
    assert len({version for version, _ in pulled}) > 1
    assert log.stat().st_size <= 100 * 2 * 157


def test_a_run_is_found_by_its_id_and_damage_is_named(launcher: Launcher, tmp_path: Path) -> None:
    result = recorded(launcher, "gba", tmp_path, tracking=True)
    part = replay(launcher, result["run_id"][:12], "--until", "10", "--keep", str(tmp_path / "m.npz"))
    assert part.returncode == 0, part.stderr
    assert (verdict(part)["steps"], verdict(part)["model"]) == (10, str(tmp_path / "m.npz"))
    assert (tmp_path / "m.npz").exists()
    log = Path(result["run_dir"]) / "events.log"
    content = bytearray(log.read_bytes())
    log.write_bytes(content[: len(content) // 2])
    cut = replay(launcher, result["run_dir"])
    assert cut.returncode == 1 and "cut off at byte " in cut.stderr and cut.stderr.count("\n") == 1
    content[-1] ^= 1  # in the body of the last record
    log.write_bytes(content)
    damaged = replay(launcher, result["run_dir"])
    assert damaged.returncode == 1 and "is damaged at byte " in damaged.stderr
    unknown = replay(launcher, "no-such-run")
    assert unknown.returncode == 2 and "There is no run no-such-run" in unknown.stderr
