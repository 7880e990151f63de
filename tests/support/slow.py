"""Cases of a test that only `make test-slow` runs."""

from __future__ import annotations

from typing import Any

import pytest


def slow(*values: Any) -> Any:
    """A case among the values of pytest.mark.parametrize."""
    return pytest.param(*values, marks=pytest.mark.slow)
