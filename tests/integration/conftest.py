"""The `launcher` fixture: real trainings in a directory of their own, reaped at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import Launcher, environment


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data, made once a session."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def launcher(tmp_path: Path, shared_cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path, environment(shared_cache))
    yield made
    left = [what for launched in made.started for what in launched.reap()]
    assert not left, f"left behind: {left}"
