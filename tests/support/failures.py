"""Failures as a run's event logs time them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gbactl.coordinator import event_log

TIMED = ("process", "failure", "detected_s", "loaded_s", "useful_s")


def logged(run_dir: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the logs of a run's parts say of its failures, by number: each once, with the times of `result`."""
    records = [record for path in run_dir.glob("events*.log") for record in event_log.read(path)]
    found = [r.fields for r in records if isinstance(r, event_log.InfoRecord) and r.kind == event_log.FAILURE]
    found.sort(key=lambda each: int(each["number"]))
    assert [each["number"] for each in found] == list(range(len(result["recovery"])))
    for each, failed in zip(found, result["recovery"], strict=True):
        assert each.keys() == {"number", "at_s", *TIMED} and each["at_s"] >= 0.0
        assert {name: each[name] for name in TIMED} == pytest.approx({name: failed[name] for name in TIMED})
    return found
