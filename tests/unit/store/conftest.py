"""Both kernel sets, by name; the compiled one is skipped where it was not built."""

from __future__ import annotations

import pytest

from gbactl.errors import MissingDependencyError
from gbactl.kernels import load
from gbactl.kernels.base import Kernels


@pytest.fixture(params=["native", "twin"])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    try:
        return load(request.param)
    except MissingDependencyError as error:
        pytest.skip(f"compiled kernels: {error}")
