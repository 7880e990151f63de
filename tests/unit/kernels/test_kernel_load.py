"""Which kernels are taken, and what is said when they cannot be."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gbactl import kernels
from gbactl.errors import ConfigError, MissingDependencyError
from gbactl.kernels import build
from gbactl.kernels.native import NativeKernels

ROOT = Path(__file__).parents[3]


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_library", lambda: None)
    kernels._native.cache_clear()


def test_the_environment_forces_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GBACTL_KERNELS", "twin")
    assert kernels.load().name == "twin"
    monkeypatch.setenv("GBACTL_KERNELS", "fast")
    with pytest.raises(ConfigError, match="native or twin"):
        kernels.load()


@pytest.mark.usefixtures("no_library")
def test_without_a_library_the_twin_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GBACTL_KERNELS", raising=False)
    assert kernels.load().name == "twin"
    with pytest.raises(MissingDependencyError, match=r"gbactl\.kernels\.build"):
        kernels.load("native")


def test_a_damaged_library_is_named(tmp_path: Path) -> None:
    path = tmp_path / "_native.so"
    path.write_bytes(b"not a library")
    with pytest.raises(MissingDependencyError, match=r"_native\.so cannot be used"):
        NativeKernels(path)


def test_both_builds_use_the_same_flags() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    [module] = project["tool"]["setuptools"]["ext-modules"]
    assert tuple(module["extra-compile-args"]) == build.FLAGS
    assert [ROOT / source for source in module["sources"]] == [build.SOURCE]


@pytest.mark.parametrize("named", ["", "nowhere -pipe"])
def test_a_missing_compiler_is_named(named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", named)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match="install g"):
        build.compile_library(tmp_path / "_native.so")
