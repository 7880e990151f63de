"""Makes this folder's helpers importable; the data of its runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbactl.data.cache import prepare
from tests.support.simulated_runs import DATA


@pytest.fixture(scope="session")
def four_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days to train on and one to judge the last by."""
    return prepare({**DATA, "days": 5, "rows_per_day": 600, "cache": str(tmp_path_factory.mktemp("cache"))})
