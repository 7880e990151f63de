"""Toolchain that Horovod's build needs: a C++ compiler that supports C++20, and cmake (3.13 or later)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from gbactl.errors import MissingDependencyError

OLDEST_CMAKE = (3, 13)
WITHOUT = "or go without Horovod: type `make install HOROVOD=no` and use collective=gloo"


def find_compiler() -> str | None:
    """Path of the C++ compiler that $CXX names, or of g++ or c++."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else shutil.which("g++") or shutil.which("c++")


def cmake_version(program: str) -> tuple[int, ...]:
    """Version of cmake, such as (3, 25, 1), or () when the program does not answer."""
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ()
    match = re.search(r"version (\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def require_compiler() -> str:
    """Find the compiler's path. Raises MissingDependencyError with what to install."""
    compiler = find_compiler()
    if compiler is None:
        raise MissingDependencyError(
            f"Horovod is built from source and no C++ compiler was found; install g++ (for instance "
            f"`apt-get install g++`), {WITHOUT}."
        )
    probe = [compiler, "-std=gnu++20", "-x", "c++", "-fsyntax-only", os.devnull]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        raise MissingDependencyError(
            f"{compiler} does not know C++20, which torch's headers need; install g++ 10 or later, {WITHOUT}."
        )
    return compiler


def require_cmake() -> str:
    """Find the path of a usable cmake. Raises MissingDependencyError with what to install."""
    program = os.environ.get("HOROVOD_CMAKE") or shutil.which("cmake")
    if program is None or cmake_version(program) < OLDEST_CMAKE:
        raise MissingDependencyError(
            f"Horovod is built from source and no cmake 3.13 or later was found; install cmake (for instance "
            f"`apt-get install cmake`), {WITHOUT}."
        )
    return program


def cxx20_wrapper(folder: Path, compiler: str) -> Path:
    """Write a compiler wrapper that appends the C++20 flag: Horovod sets C++14, which torch 2.13 does not support."""
    wrapper = folder / "cxx20"
    wrapper.write_text(f'#!/bin/sh\nexec "{compiler}" "$@" -std=gnu++20\n')
    wrapper.chmod(0o755)
    return wrapper
