"""Machines that lack something a run needs: one sentence that says what to type, before anything starts; or that lack
room on a disk, which shows later."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gbactl.checkpoint.folder import CheckpointFolder
from gbactl.coordinator.checkpointing import END_BYTES
from gbactl.tracking.mlflow_store import connect
from tests.support.processes import Launcher, wait_for

NO_NAME = "hostname nosuchname && mount --bind {empty} /etc/hosts && mount --bind {empty} /etc/resolv.conf"
NO_SHARED_MEMORY = "mount -t tmpfs -o ro none /dev/shm"
NAMELESS = (
    "gbactl: This machine's own name nosuchname has no address here, and collective=horovod listens where it points "
    "to; put the line `127.0.0.1 nosuchname` into /etc/hosts, or type collective=shm.\n"
)
READ_ONLY = (
    "gbactl: collective=shm needs shared memory in /dev/shm (it is read-only or not there); type collective=gloo.\n"
)


def bare(launcher: Launcher, tmp_path: Path, lacks: str) -> None:
    """Start from now on where something is not there."""
    empty = tmp_path / "empty"
    empty.touch()
    before = ("unshare", "-u", "-m", "sh", "-c", f'{lacks.format(empty=empty)} && exec "$@"', "sh")
    if subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, and namespaces for hosts' names and mounts")
    launcher.before = before


@pytest.mark.beside
@pytest.mark.parametrize(
    ("lacks", "overrides", "told"),
    [(NO_NAME, ("collective=horovod",), NAMELESS), (NO_SHARED_MEMORY, ("collective=shm",), READ_ONLY)],
)
def test_what_a_collective_needs_is_told_before_the_start(
    launcher: Launcher, tmp_path: Path, lacks: str, overrides: tuple[str, ...], told: str
) -> None:
    bare(launcher, tmp_path, lacks)
    done = launcher.start("mode=sync", *overrides).finish()
    assert (done.code, done.out, done.err) == (2, "", told)
    assert not done.run_dir.exists()


@pytest.mark.beside
def test_rings_that_do_not_sum_in_shared_memory_need_none(launcher: Launcher, tmp_path: Path) -> None:
    bare(launcher, tmp_path, f"{NO_NAME} && {NO_SHARED_MEMORY}")
    assert launcher.train("mode=sync", "collective=gloo")["status"] == "FINISHED"


SAVING = (
    "experiment=smoke", "mode=async", "checkpoint=full", "checkpoint.keep=3", "checkpoint.interval_steps=20",
    "checkpoint.save_seconds=0.001",
)  # fmt: skip
ONE_CHECKPOINT = 1_366_676  # bytes
REPORT_BYTES = 1 << 20  # at most


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Gives the runs' directory a disk of so many bytes. Ask for it before `launcher`, which goes first at the end."""
    runs = tmp_path / "runs"
    runs.mkdir()

    def make(size: int) -> Path:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(runs)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("needs root that may mount a file system")
        return runs

    yield make
    if runs.is_mount():
        subprocess.run(["umount", "-l", str(runs)], check=True)


def store_status(launcher: Launcher) -> str:
    client = connect(f"sqlite:///{launcher.cwd}/mlflow.db")
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
    return str(runs[0].info.status)


@pytest.mark.beside
@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_checkpoints_leave_the_room_that_log_and_result_need(
    disk_of: Callable[[int], Path], launcher: Launcher, cluster: str
) -> None:
    """Two would fit, and would leave nothing."""
    runs = disk_of(2 * ONE_CHECKPOINT + REPORT_BYTES + (40 << 10) + (cluster == "local") * (104 << 10))
    done = launcher.start(*SAVING, f"cluster={cluster}", small=False, tracking=True).finish()
    assert done.code == 0, done.err
    failed = re.findall(r"The checkpoint of step (\d+) failed: (.*); training goes on, the next one tries", done.err)
    assert len(failed) == done.result["checkpoint"]["failed"] > 2 and done.result["checkpoint"]["saved"] == 1
    for _, why in failed:
        assert re.fullmatch(
            r"\S+\.safetensors could not be written \(it needs 683,\d{3} bytes; [\d,]+ are free there, of which "
            r"[\d,]+ are kept for the event log and the result\)", why,
        )  # fmt: skip
    assert [path.name for path in (done.run_dir / "checkpoints").iterdir()] == ["cut-000001"]
    assert done.result["status"] == store_status(launcher) == "FINISHED"
    assert "AUC over samples" in (done.run_dir / "report.html").read_text()
    assert shutil.disk_usage(runs).free > END_BYTES - REPORT_BYTES - (300 << 10)


@pytest.mark.beside
@pytest.mark.parametrize("cluster", ["virtual", "local"])
def test_a_disk_that_others_fill_ends_the_run_with_a_sentence(
    disk_of: Callable[[int], Path], launcher: Launcher, cluster: str
) -> None:
    """It names the file and what is free; there is a result, and no half of a checkpoint."""
    runs = disk_of(3 * ONE_CHECKPOINT + 2 * END_BYTES)
    more = ("checkpoint.keep=1", "data.rows_per_day=100000")
    run = launcher.start(*SAVING, *more, f"cluster={cluster}", small=False)
    saved = CheckpointFolder(run.run_dir / "checkpoints")
    wait_for(saved.names)
    for _ in range(6):  # a checkpoint that is under way gives its room back
        fill = ["sh", "-c", 'cat /dev/zero >> "$1"; sleep 0.1', "sh", str(runs / "other")]
        subprocess.run(fill, check=False, capture_output=True)
    done = run.finish()
    name = saved.newest().last.name
    sentence = (
        rf"{run.run_dir}/\S+ could not be written \(No space left on device; [\d,]+ bytes are free there\); "
        rf"make room\. The newest good checkpoint is {name}, of step \d+; go on from it "
        rf"with 'gbactl train resume={run.run_dir}'\."
    )
    told = done.err.splitlines()[-1]
    assert done.code == 1 and re.search(sentence, told), told
    assert re.search(sentence, done.result["error"])
    assert done.result["status"] == "FAILED"
    assert [path.name for path in saved.path.iterdir()] == saved.names()


@pytest.mark.beside
def test_a_report_that_cannot_be_written_is_a_warning(launcher: Launcher) -> None:
    run_dir = launcher.cwd / "runs" / "0"
    (run_dir / "report.html").mkdir(parents=True)
    short = ("experiment=smoke", "data.days=2", "data.rows_per_day=4000", "mode=async", "cluster=virtual")
    done = launcher.start(*short, small=False, tracking=True).finish()
    assert done.code == 0
    assert done.err.splitlines()[-1] == (
        f"{run_dir}/report.html cannot be written (Is a directory); the run is complete without it."
    )
    assert done.result["status"] == store_status(launcher) == "FINISHED"
