"""Machines that lack something a run needs: one sentence that says what to type, before anything starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import Launcher

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
