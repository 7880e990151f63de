"""Real processes, recorded and replayed: the hard case, and what the command says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator.event_log import PHASE, AnnounceRecord, GrantRecord, InfoRecord, LeftRecord, read
from gbactl.errors import TornLogError
from tests.support.modes import SERVED
from tests.support.processes import Launcher, wait_for
from tests.support.recorded import splits

pytestmark = pytest.mark.beside

HARD = (
    "data=libfm", "mode.local_batch=32", "train.epochs=2", "train.shuffle=true", "train.checksum_every=20",
    "model.dropout=0.2", "model.batch_norm=true", "cluster.workers=4", "cluster.servers=3", "seed=7",
    "faults.plans=[{kind: constant, workers: [1], factor: 4}]",
)  # fmt: skip
SIZES = ("model.dim=4", "model.hidden=[32]", "train.global_batch=256", "cluster.threads=1")


def replay(launcher: Launcher, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launcher.gbactl("replay", *arguments, "--json")


def verdict(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def hard(tmp_path: Path, mode: str, rows: int = 5000) -> list[str]:
    """Four real workers, one of them four times slower; three servers; two epochs."""
    data = splits(tmp_path / "data", rows=rows)
    return [*HARD, *SIZES, *(f"data.{name}={data[name]}" for name in ("train", "validation", "test")), f"mode={mode}"]


def recorded(launcher: Launcher, mode: str, tmp_path: Path, *more: str, tracking: bool = False) -> dict[str, Any]:
    """Such a run, to its end."""
    return launcher.train(*hard(tmp_path, mode), *more, small=False, tracking=tracking)


def test_four_processes_three_shards_one_slow_worker(launcher: Launcher, tmp_path: Path) -> None:
    result = recorded(launcher, "gba", tmp_path)
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


def stops_with_a_batch(pid: int, log: Path, worker: int) -> bool:
    """Stop a worker, and let it go on if it has no batch: under load or in hop_bs it may wait for one."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.15)  # until what it has sent has arrived
    held = set[int]()
    with suppress(TornLogError):
        for record in read(log):
            if isinstance(record, InfoRecord) and record.kind == PHASE:
                held.clear()
            elif isinstance(record, GrantRecord) and record.worker == worker:
                held.add(record.batch)
            elif isinstance(record, AnnounceRecord):
                held.discard(record.batch)
    if not held:
        os.kill(pid, signal.SIGCONT)
    return bool(held)


@pytest.mark.slow
@pytest.mark.parametrize("mode", SERVED)
def test_a_killed_workers_batches_are_handed_out_again_and_replayed(
    launcher: Launcher, tmp_path: Path, mode: str
) -> None:
    slower = ("model.hidden=[128,128]", "cluster.lost_worker=continue")  # an epoch takes a second and more
    launched = launcher.start(*hard(tmp_path, mode, rows=30_000), *slower, small=False)
    pid, log = launched.node("W2"), launched.run_dir / "events.log"
    wait_for(lambda: log.exists() and log.stat().st_size > 16_000)  # every worker has delivered
    wait_for(lambda: stops_with_a_batch(pid, log, 2))
    os.kill(pid, signal.SIGKILL)
    done = launched.finish()
    assert done.code == 0, done.err
    assert launched.left_behind() == [] and "W2 is gone; the others go on" in done.err
    result, records = done.result, list(read(done.run_dir / "events.log"))
    samples, (lost,) = result["samples"], result["lost_workers"]
    assert samples["read"] == 2 * 30_000 == samples["trained"] + samples["decayed"] + samples["lost"]
    owners: dict[tuple[int, int], list[int]] = {}
    epoch = 0
    for record in records:
        if isinstance(record, InfoRecord):
            epoch += record.kind == PHASE
        elif isinstance(record, GrantRecord):
            owners.setdefault((epoch, record.batch), []).append(record.worker)
    again = [workers for workers in owners.values() if len(workers) > 1]
    assert lost["process"] == "W2" and 1 <= lost["batches"] == len(again) and all(w[0] == 2 != w[1] for w in again)
    assert sum(isinstance(record, LeftRecord) for record in records) in (1, 2)  # told again where an epoch begins
    replayed = replay(launcher, str(done.run_dir))
    assert replayed.returncode == 0, replayed.stderr
    found = verdict(replayed)
    assert found["identical"] and found["steps"] == result["global_step"]
    assert found["checksums"] == 3 * (found["steps"] // 20 + 2)


@pytest.mark.slow
def test_a_run_is_found_by_its_id_and_damage_is_named(launcher: Launcher, tmp_path: Path) -> None:
    result = recorded(launcher, "gba", tmp_path, tracking=True)
    part = replay(launcher, result["run_id"][:12], "--until", "10", "--keep", str(tmp_path / "m.npz"))
    assert part.returncode == 0, part.stderr
    assert (verdict(part)["steps"], verdict(part)["model"]) == (10, str(tmp_path / "m.npz"))
    assert (tmp_path / "m.npz").exists()
    log = Path(result["run_dir"]) / "events.log"
    content = bytearray(log.read_bytes())
    log.write_bytes(content[:-1])
    cut = replay(launcher, result["run_dir"])
    assert cut.returncode == 1 and "cut off at byte " in cut.stderr
    assert "What stands before is as logged: " in cut.stderr.splitlines()[-1]
    content[-1] ^= 1  # in the body of the last record
    log.write_bytes(content)
    damaged = replay(launcher, result["run_dir"])
    assert damaged.returncode == 1 and "is damaged at byte " in damaged.stderr
    unknown = replay(launcher, "no-such-run")
    assert unknown.returncode == 2 and "There is no run no-such-run" in unknown.stderr


@pytest.mark.slow
def test_a_run_with_sync_phases_comes_out_again(launcher: Launcher, tmp_path: Path) -> None:
    """Four processes whose gradients are added up in shared memory, in their order; there, back and there again."""
    data = splits(tmp_path / "data", rows=5000)
    entries = "[{at: {samples: 1500}, to: gba}, {at: {fraction: 0.5}, to: sync}, {at: {samples: 8000}, to: bsp}]"
    hard = [each for each in HARD if not each.startswith("mode.")]
    files = [f"data.{name}={data[name]}" for name in ("train", "validation", "test")]
    result = launcher.train(
        *hard, *SIZES, *files, "mode=sync", "collective=shm", f"switch.schedule={entries}", small=False
    )
    assert [p["mode"] for p in result["phases"]] == ["sync", "gba", "sync", "bsp"]
    done = replay(launcher, result["run_dir"])
    assert done.returncode == 0, done.stderr
    found = verdict(done)
    assert found["identical"] and found["steps"] == result["global_step"]
