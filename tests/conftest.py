"""What holds for all tests: behaviour is tested, not time, so a slow machine fails no property."""

from __future__ import annotations

import signal

import pytest
import torch
from hypothesis import settings

# who runs tests in the background has Ctrl-C ignored, and every process that they start would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("gbactl", deadline=None)
settings.load_profile("gbactl")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """As in every process of a run: with more of them sums come in another order, and bits differ."""
    torch.set_num_threads(1)
