"""Makes this folder's helpers importable; the data of its runs."""

from __future__ import annotations

import pytest

from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset
from tests.support.calibration_runs import DATA


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small synthetic set of two days."""
    return open_dataset(prepare({**DATA, "cache": str(tmp_path_factory.mktemp("cache"))}))
