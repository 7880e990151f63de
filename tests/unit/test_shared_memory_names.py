"""What the dead left in shared memory is taken away, and nothing else."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gbactl import shared_memory_names
from gbactl.collective.shared_memory import SharedMemoryCollective
from tests.support.processes import wait_for

STRANGE = "import os; os.getpid = lambda: 4194300; "  # as in a pid namespace of its own: a number that nobody has here
SEGMENT = "from gbactl.wire.shared_memory import create; made = create(4096, 4096); print(made[0].name, flush=True)"
FOLDER = (
    "from gbactl.collective.shared_memory import SharedMemoryRendezvous; made = SharedMemoryRendezvous(2); "
    "print(made.folder.name, flush=True)"
)


def test_sweep_removes_what_nobody_holds_and_nothing_else() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    segment, folder = (shared_memory_names.DIRECTORY / f"gbactl-{dead.pid}-{digit * 16}" for digit in "01")
    segment.write_bytes(b"x")
    (folder / "2").mkdir(parents=True)
    mine = shared_memory_names.DIRECTORY / shared_memory_names.new()
    strange = shared_memory_names.DIRECTORY / f"gbactl-{dead.pid}-not-ours"
    mine.mkdir()
    held = shared_memory_names.open_locked(mine)
    strange.write_bytes(b"x")
    try:
        assert shared_memory_names.sweep() >= 2
        assert not segment.exists() and not folder.exists()
        assert mine.exists() and strange.exists()
        os.close(held)
        assert shared_memory_names.sweep() >= 1
        assert not mine.exists()
    finally:
        strange.unlink()


@pytest.mark.parametrize("made", [SEGMENT, FOLDER], ids=["segment", "folder"])
@pytest.mark.parametrize("before", [(), ("unshare", "-p", "-f", "--kill-child")], ids=["here", "own pid namespace"])
def test_what_a_living_process_made_stays_until_it_is_dead(made: str, before: tuple[str, ...]) -> None:
    if before and subprocess.run([*before, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root and pid namespaces")
    command = [*before, sys.executable, "-c", f"{STRANGE}{made}; input()"]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        path = shared_memory_names.DIRECTORY / owner.stdout.readline().strip()
        assert shared_memory_names.NAME.fullmatch(path.name)
        shared_memory_names.sweep()
        assert path.exists()
    finally:
        owner.kill()
        owner.communicate()

    def gone() -> bool:
        shared_memory_names.sweep()
        return not path.exists()

    wait_for(gone, 20)  # a namespace's processes end a moment after the one that made it


def test_a_folder_that_ranks_make_again_is_held_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory_names, "DIRECTORY", tmp_path)
    rank = SharedMemoryCollective(tmp_path / shared_memory_names.new(), 0, 2)
    os.close(rank._create(rank.folder / "0-8"))
    assert shared_memory_names.sweep() == 0
    assert (rank.folder / "0-8").exists()
    rank.close()
    assert shared_memory_names.sweep() == 1


@pytest.mark.parametrize(("flags", "again"), [(os.O_CREAT | os.O_RDWR, True), (os.O_RDWR, False)])
def test_a_sweep_that_is_faster_than_the_lock_is_noticed(
    flags: int, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "name"
    path.touch()
    lock: Callable[[int, int], None] = fcntl.flock
    late = [path]

    def slow(handle: int, how: int) -> None:
        for taken in late[:1]:
            taken.unlink()
        late.clear()
        lock(handle, how)

    monkeypatch.setattr(fcntl, "flock", slow)
    if again:
        os.close(shared_memory_names.open_locked(path, flags))
        assert path.exists()
    else:
        with pytest.raises(FileNotFoundError):
            shared_memory_names.open_locked(path, flags)
