"""Makes this folder's helpers importable; the data of its runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from calibration_runs import DATA

from gbactl.data.dataset import Dataset, open_dataset
from gbactl.data.prepare import prepare


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A small synthetic set of two days."""
    return open_dataset(prepare({**DATA, "cache": str(tmp_path_factory.mktemp("cache"))}))
