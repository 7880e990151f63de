"""What the dead left in shared memory is taken away, and nothing else."""

from __future__ import annotations

import subprocess
import sys

from gbactl import shared_names


def test_sweep_removes_what_the_dead_left_and_nothing_else() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    segment, folder = (shared_names.DIRECTORY / f"gbactl-{dead.pid}-{digit * 16}" for digit in "01")
    segment.write_bytes(b"x")
    (folder / "2").mkdir(parents=True)
    mine = shared_names.DIRECTORY / shared_names.new()
    strange = shared_names.DIRECTORY / f"gbactl-{dead.pid}-not-ours"
    mine.mkdir()
    strange.write_bytes(b"x")
    try:
        assert shared_names.sweep() >= 2
        assert not segment.exists() and not folder.exists()
        assert mine.exists() and strange.exists()
    finally:
        mine.rmdir()
        strange.unlink()
