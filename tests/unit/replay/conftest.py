"""Runs recorded once, to be replayed and changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator import event_log
from gbactl.coordinator.event_log import DropRecord
from tests.support.hand_made import HandMade
from tests.support.recorded import config, record, splits


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return splits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def recorded(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of gba, its log to be copied and changed."""
    path = tmp_path_factory.mktemp("gba")
    (path / "result.json").write_text(json.dumps(record(config("gba", data), path)))
    return path


@pytest.fixture(scope="session")
def disorder(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hand-made run of hop_bw with drops."""
    path = tmp_path_factory.mktemp("disorder")
    HandMade(config("hop_bw", data), path, seed=0, deaths=0).write()
    assert sum(isinstance(one, DropRecord) for one in event_log.read(path / "events.log")) > 2
    return path
