"""Both kernel sets; the compiled one is built on the spot where the tree was never installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbactl.errors import MissingDependencyError
from gbactl.kernels import load
from gbactl.kernels.base import Kernels
from gbactl.kernels.build import compile_library, find_library
from gbactl.kernels.native import NativeKernels


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    if find_library() is not None:
        return load("native")
    target: Path = tmp_path_factory.mktemp("kernels") / "_native.so"
    try:
        return NativeKernels(compile_library(target))
    except MissingDependencyError as error:
        pytest.skip(f"compiled kernels: {error}")


@pytest.fixture(scope="session")
def twin() -> Kernels:
    return load("twin")


@pytest.fixture(params=["native", "twin"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    made: Kernels = request.getfixturevalue(request.param)
    return made
