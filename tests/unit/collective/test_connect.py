"""What is under a ring, and how a worker learns of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gbactl import collective
from gbactl.collective.shared_memory import SharedMemoryCollective, available

MADE: list[tuple[int, int, Any]] = []


def elsewhere(rank: int, size: int) -> Any:
    return SimpleNamespace(rank=rank, size=size, use_ring=lambda ring: MADE.append((rank, size, ring)))


def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **options: Any) -> None:
    """Rank 1 of two finds itself where the launcher has opened a rendezvous of Gloo."""
    with collective.open_rendezvous("gloo", 2, tmp_path, **options) as meeting:
        for name, value in meeting.environment(1).items():
            monkeypatch.setenv(name, value)


def test_without_memory_in_common_a_worker_brings_what_is_under_its_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collective, "available", lambda: False)
    environment(monkeypatch, tmp_path, survives=True)
    MADE.clear()
    late = collective.connect(True, elsewhere)
    assert (late.rank, late.size) == (1, 2)
    assert MADE == [(1, 2, None)]  # it has no ring: it is told so


@pytest.mark.skipif(not available(), reason="no shared memory")
def test_shared_memory_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(monkeypatch, tmp_path, survives=True)
    late = collective.connect(True, elsewhere)
    assert isinstance(late, SharedMemoryCollective) and late.ring is None


def test_where_a_death_ends_the_run_nothing_is_under_the_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "_ring", lambda name, item: (name, item))
    environment(monkeypatch, tmp_path)
    assert collective.connect(False, None, 2) == ("gloo", 2)


def test_what_a_killed_launcher_left_of_its_ring_is_taken_away(tmp_path: Path) -> None:
    left = tmp_path / "rendezvous" / "gloo-12345678"
    left.parent.mkdir()
    left.write_text("its store")
    with collective.open_rendezvous("gloo", 2, tmp_path) as meeting:
        Path(meeting.environment(0)["GBACTL_GLOO_STORE"]).touch()
        assert len(list(left.parent.iterdir())) == 1 and not left.exists()
    assert not list(left.parent.iterdir())
