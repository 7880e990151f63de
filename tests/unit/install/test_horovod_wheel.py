"""The wheel cache: one wheel per torch, Python and machine; built once; never half there."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from gbactl.errors import MissingDependencyError
from gbactl.install import InstallError, horovod
from gbactl.install.horovod import cmake_version, cxx20_wrapper, require_cmake, require_compiler


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Fakes of pip and of the import: `calls` says what was run, `answers` what the imports say."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(horovod, "version", lambda name: "2.13.0+cpu")
    monkeypatch.setattr(horovod, "require_compiler", lambda: ["/usr/bin/g++"])
    monkeypatch.setattr(horovod, "require_cmake", lambda: "/usr/bin/cmake")
    state: dict[str, list[str]] = {"calls": [], "answers": [], "library": ["horovod/torch/mpi_lib_v2.so"]}

    def run(what: str, command: list[str], log: Path, env: object = None, about: str = "") -> None:
        state["calls"].append(what)
        if "-w" in command:
            target = Path(command[command.index("-w") + 1])
            assert "+" not in str(target)
            with zipfile.ZipFile(target / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl", "w") as wheel:
                wheel.writestr(state["library"][0], "")

    monkeypatch.setattr(horovod, "run", run)
    monkeypatch.setattr(horovod, "problem", lambda: state["answers"].pop(0))
    return state


def builds(machine: dict[str, list[str]]) -> int:
    return sum(call.startswith("building") for call in machine["calls"])


def test_the_cache_key_names_torch_python_and_machine(machine: dict[str, list[str]], tmp_path: Path) -> None:
    folder = horovod.wheel_dir("2.13.0+cpu")
    assert folder.parent == tmp_path / "cache" / "gbactl" / "wheels"
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert folder.name.startswith(f"2.13.0+cpu-{python}-")


def test_what_works_is_left_alone(machine: dict[str, list[str]]) -> None:
    machine["answers"] = [""]
    horovod.ensure()
    assert machine["calls"] == []


def test_the_first_time_builds_the_second_takes_the_wheel(machine: dict[str, list[str]]) -> None:
    machine["answers"] = ["no module", "", "no module", ""]
    horovod.ensure()
    assert builds(machine) == 1
    horovod.ensure()
    assert builds(machine) == 1
    assert machine["answers"] == []


def test_a_cached_wheel_that_does_not_import_is_built_again_once(machine: dict[str, list[str]]) -> None:
    folder = horovod.wheel_dir("2.13.0+cpu")
    folder.mkdir(parents=True)
    (folder / "horovod-0.28.1-old.whl").write_text("broken")
    machine["answers"] = ["no module", "undefined symbol", ""]
    horovod.ensure()
    assert builds(machine) == 1
    assert [path.name for path in folder.glob("*.whl")] == ["horovod-0.28.1-cp311-cp311-linux_x86_64.whl"]


def test_a_build_that_still_does_not_import_says_why(machine: dict[str, list[str]]) -> None:
    machine["answers"] = ["no module", "undefined symbol: xyz"]
    with pytest.raises(InstallError, match="undefined symbol: xyz"):
        horovod.ensure()


def test_a_failed_build_leaves_no_wheel_and_no_scratch(
    machine: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(what: str, *_: object, **__: object) -> None:
        if what.startswith("building"):
            raise InstallError("building failed")

    monkeypatch.setattr(horovod, "run", fail)
    machine["answers"] = ["no module"]
    with pytest.raises(InstallError):
        horovod.ensure()
    assert [path.name for path in horovod.wheel_dir("2.13.0+cpu").iterdir()] == ["lock"]


def test_a_wheel_without_its_library_is_not_kept(machine: dict[str, list[str]]) -> None:
    machine["answers"] = ["no module"]
    machine["library"] = ["horovod/torch/__init__.py"]
    with pytest.raises(InstallError, match="left its torch library out"):
        horovod.ensure()
    assert [path.name for path in horovod.wheel_dir("2.13.0+cpu").iterdir()] == ["lock"]


def test_two_at_once_take_turns(tmp_path: Path) -> None:
    inside: list[int] = []
    overlaps: list[int] = []

    def enter() -> None:
        with horovod.locked(tmp_path / "lock"):
            inside.append(1)
            overlaps.append(len(inside))
            time.sleep(0.05)
            inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert overlaps == [1, 1, 1]


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


def test_the_compiler_may_be_named_with_arguments(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(bare, "ccache", "exit 0")
    monkeypatch.setenv("CXX", "ccache g++ -pipe")
    assert require_compiler() == ["ccache", "g++", "-pipe"]
    monkeypatch.setenv("CXX", "nowhere g++")
    with pytest.raises(MissingDependencyError, match=r"install g\+\+"):
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
    wrapper = cxx20_wrapper(tmp_path, [str(real), "-pipe"])
    out = subprocess.run([wrapper, "-std=c++14", "a b.cc"], capture_output=True, text=True, check=True).stdout
    assert out.splitlines() == ["-pipe", "-std=c++14", "a b.cc", "-std=gnu++20"]
