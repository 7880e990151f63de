"""Finding a compiler and cmake, and the sentences for a machine without."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gbactl.errors import MissingDependencyError
from gbactl.install.horovod import cmake_version, cxx20_wrapper, require_cmake, require_compiler


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with one empty folder."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CXX", "HOROVOD_CMAKE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def program(folder: Path, name: str, script: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_without_a_compiler_the_sentence_says_what_to_install_and_how_to_go_without(bare: Path) -> None:
    with pytest.raises(MissingDependencyError, match=r"install g\+\+.*HOROVOD=no.*collective=gloo"):
        require_compiler()


def test_a_compiler_without_cxx20_is_refused(bare: Path) -> None:
    program(bare, "g++", "exit 1")
    with pytest.raises(MissingDependencyError, match="does not know C\\+\\+20"):
        require_compiler()


@pytest.mark.parametrize("version", [None, "cmake version 3.9.1", "nonsense"])
def test_without_a_usable_cmake_the_sentence_says_what_to_install(bare: Path, version: str | None) -> None:
    if version:
        program(bare, "cmake", f"echo '{version}'")
    with pytest.raises(MissingDependencyError, match=r"cmake 3\.13 or later.*HOROVOD=no"):
        require_cmake()


def test_cmake_4_is_taken(bare: Path) -> None:
    path = program(bare, "cmake", "echo 'cmake version 4.1.0'")
    assert cmake_version(str(path)) == (4, 1, 0)
    assert require_cmake() == str(path)


def test_the_wrapper_says_cxx20_last(tmp_path: Path) -> None:
    real = program(tmp_path, "real compiler", 'for a in "$@"; do echo "$a"; done')
    wrapper = cxx20_wrapper(tmp_path, str(real))
    out = subprocess.run([wrapper, "-std=c++14", "a b.cc"], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["-std=c++14", "a b.cc", "-std=gnu++20"]
