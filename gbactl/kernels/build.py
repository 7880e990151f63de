"""Compilation of kernels.cpp into its own folder with the C++ compiler alone (about 3 seconds).

`pip install` does this through setuptools. For a source tree that was never installed type
`python -m gbactl.kernels.build`. The flags equal those in pyproject.toml (a test compares them).
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from gbactl.errors import MissingDependencyError

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "kernels.cpp"
FLAGS = ("-O3", "-g0", "-std=c++17", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")


def find_library() -> Path | None:
    """Find the newest compiled library in the package directory; None when there is none."""
    found = sorted(HERE.glob("_native*.so"), key=lambda path: path.stat().st_mtime, reverse=True)
    return found[0] if found else None


def compile_library(target: Path | None = None) -> Path:
    """Compile the library, move it to `target` and return its path.

    Raises MissingDependencyError without a compiler, or when compilation fails.
    """
    from gbactl.install.horovod import find_compiler

    compiler = find_compiler()
    if not compiler:
        raise MissingDependencyError("No C++ compiler was found; install g++ (or set CXX) and try again.")
    target = target or HERE / "_native.so"
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        made = Path(scratch) / target.name
        command = [*compiler, *FLAGS, "-fPIC", "-shared", "-o", str(made), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingDependencyError(f"{compiler[0]} could not compile {SOURCE.name}: {done.stderr.strip()[:400]}")
        made.replace(target)
    return target


if __name__ == "__main__":
    print(compile_library())
