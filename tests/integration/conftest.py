"""The fixtures `launcher`, for real trainings in a directory of their own, `typed`, for commands in this process, and
`site_of`, for several hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.netns import Hosts, hosts
from tests.support.processes import Launcher, environment
from tests.support.site import NAMES, Site
from tests.support.typed import Typist


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


@pytest.fixture
def typed(
    tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typist:
    return Typist(tmp_path, shared_cache, monkeypatch, capsys)


@pytest.fixture
def site_of(
    launcher: Launcher, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, shared_cache: Path
) -> Iterator[Callable[..., Site]]:
    """Makes the hosts. `shared`: they see the run directory."""
    made: list[Hosts] = []
    (tmp_path / "runs").mkdir()
    with ExitStack() as stack:

        def make(shared: bool = False, named: bool = True, losses: Mapping[str, float] | None = None) -> Site:
            hidden = (shared_cache,) if shared else (shared_cache, tmp_path / "runs")
            folder = tmp_path_factory.mktemp("hosts")
            made.append(stack.enter_context(hosts(folder, NAMES, hidden, named, losses=losses)))
            return Site(made[-1], launcher)

        try:
            yield make
            left = [line for machines in made for name in NAMES for line in machines.ours(name)]
        finally:
            for launched in launcher.started:
                launched.reap()
    assert not left, f"left behind on hosts: {left}"
