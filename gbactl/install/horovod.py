"""Builder of Horovod for this Python and torch: `python -m gbactl.install.horovod` builds it once and installs it.

The wheel stays in ${XDG_CACHE_HOME:-~/.cache}/gbactl/wheels/<torch>-<python>-<arch>, so that a second environment takes
seconds. The first build takes 3.5 minutes on two cores, a C++ compiler that supports C++20 and cmake (3.13 or later).
It may run twice at the same time: the second waits for the first and takes its wheel, which is renamed into place only
when complete.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gbactl.errors import GbactlError, MissingDependencyError
from gbactl.install import InstallError, heartbeat, run, say, version

OLDEST_CMAKE = (3, 13)
WITHOUT = "or go without Horovod: type `make install HOROVOD=no` and use collective=gloo"


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler: $CXX, which may have arguments, else g++ or c++; [] if there is none."""
    if named := shlex.split(os.environ.get("CXX", "")):
        return named if shutil.which(named[0]) else []
    path = shutil.which("g++") or shutil.which("c++")
    return [path] if path else []


def cmake_version(program: str) -> tuple[int, ...]:
    """Return the version of cmake, such as (3, 25, 1), or () if the program does not answer."""
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    match = re.search(r"version (\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def require_compiler() -> list[str]:
    """Return the C++ compiler's command. Raises MissingDependencyError that says what to install."""
    compiler = find_compiler()
    if not compiler:
        raise MissingDependencyError(
            f"Horovod is built from source and no C++ compiler was found; install g++ (for instance "
            f"`apt-get install g++`), {WITHOUT}."
        )
    probe = [*compiler, "-std=gnu++20", "-x", "c++", "-fsyntax-only", os.devnull]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        raise MissingDependencyError(
            f"{compiler[0]} does not know C++20, which torch's headers need; install g++ 10 or later, {WITHOUT}."
        )
    return compiler


def require_cmake() -> str:
    """Return the path of a usable cmake. Raises MissingDependencyError that says what to install."""
    program = os.environ.get("HOROVOD_CMAKE") or shutil.which("cmake")
    if program is None or cmake_version(program) < OLDEST_CMAKE:
        raise MissingDependencyError(
            f"Horovod is built from source and no cmake 3.13 or later was found; install cmake (for instance "
            f"`apt-get install cmake`), {WITHOUT}."
        )
    return program


def cxx20_wrapper(folder: Path, compiler: Sequence[str]) -> Path:
    """Write a compiler wrapper that appends the C++20 flag, as Horovod sets C++14, which torch 2.13 rejects."""
    wrapper = folder / "cxx20"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(compiler)} "$@" -std=gnu++20\n')
    wrapper.chmod(0o755)
    return wrapper


HOROVOD = "0.28.1"
BUILD_NEEDS = ("setuptools<81", "wheel", "packaging", "pyyaml", "psutil", "cloudpickle", "cffi")
SWITCHES = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # its cmake files are older than cmake 4 accepts
}
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def cache_root() -> Path:
    """Return the cache folder, ${XDG_CACHE_HOME:-~/.cache}/gbactl."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gbactl"


def wheel_dir(torch_version: str) -> Path:
    """Return the cache folder of the Horovod wheel for this torch, Python and machine."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache_root() / "wheels" / f"{torch_version}-{python}-{platform.machine()}"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; prints a message if it has to wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with heartbeat("waiting for another installation"):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def problem() -> str:
    """Check that horovod.torch can be imported and has Gloo; returns "" if so, else the reason why not."""
    code = "import horovod.torch.mpi_ops as h; assert h.gloo_built(), 'built without Gloo'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else "it crashed")


def _build(folder: Path) -> Path:
    """Build Horovod in a temporary directory, and move the complete wheel into `folder`."""
    compiler, cmake = require_compiler(), require_cmake()
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    run("installing what Horovod's build needs", [*PIP, "install", *BUILD_NEEDS], log)
    # Horovod's cmake files use their own path as a regular expression: it must not contain "+", as `folder` does.
    with tempfile.TemporaryDirectory(prefix="gbactl-horovod-") as name:
        scratch = Path(name)
        env = {
            **os.environ,
            **SWITCHES,
            "CXX": str(cxx20_wrapper(scratch, compiler)),
            "HOROVOD_CMAKE": cmake,
            "MAKEFLAGS": f"-j{os.cpu_count() or 1}",
            "TMPDIR": name,
        }
        # pip's own wheel cache does not tell for which torch a wheel was built.
        options = ["--no-cache-dir", "--no-build-isolation", "--no-deps", "--no-binary", "horovod"]
        command = [*PIP, "wheel", *options, "-w", name, f"horovod=={HOROVOD}"]
        about = "3.5 minutes on two cores; once for this torch and Python"
        run(f"building Horovod {HOROVOD} from source", command, log, env, about)
        return _keep(next(scratch.glob("horovod-*.whl")), folder, log)


def _keep(made: Path, folder: Path, log: Path) -> Path:
    """Move a complete wheel into the cache. Raises InstallError if the wheel lacks its compiled library."""
    if not any("mpi_lib_v2" in name and name.endswith(".so") for name in zipfile.ZipFile(made).namelist()):
        raise InstallError(f"Horovod's build left its torch library out; the whole output is in {log}.")
    partial = folder / f".{made.name}.{os.getpid()}"
    shutil.copyfile(made, partial)
    return partial.replace(folder / made.name)


def _install(wheel: Path) -> str:
    log = wheel.parent / "install.log"
    run("installing what Horovod needs", [*PIP, "install", *BUILD_NEEDS], log)
    options = ["--no-deps", "--no-index", "--force-reinstall"]
    run(f"installing {wheel.name}", [*PIP, "install", *options, str(wheel)], log)
    return problem()


def ensure() -> None:
    """Install Horovod, built or from the cache, unless it works. Raises InstallError or MissingDependencyError."""
    torch_version = version("torch")
    if not torch_version:
        raise MissingDependencyError("Horovod is built against torch; install torch first.")
    folder = wheel_dir(torch_version)
    with locked(folder / "lock"):
        if not problem():
            say(f"Horovod {HOROVOD} is installed and works")
            return
        wheel = next(folder.glob(f"horovod-{HOROVOD}-*.whl"), None)
        if wheel is not None:
            say(f"using the cached {wheel}")
            if not _install(wheel):
                return
            say("the cached wheel does not work here and is built again")
            wheel.unlink()
        reason = _install(_build(folder))
        if reason:
            raise InstallError(f"Horovod was built but cannot be imported: {reason}")


def main() -> int:
    """Run the builder; returns the exit code."""
    try:
        ensure()
    except GbactlError as error:
        say(f"error: {error}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
