"""Slow workers: shares of time by phase, the slowest worker and since when, and the heat map."""

from __future__ import annotations

from time import localtime, strftime
from typing import Any

from gbactl.report.charts import heat_map
from gbactl.report.slow_workers import phase_shares, slow_sentence


def workers(slowest: float) -> dict[str, dict[str, float]]:
    return {f"W{n}": {"batches": 10, "compute": slowest if n == 3 else 1.0, "all_reduce": 3.0} for n in range(4)}


def test_shares_and_their_picture() -> None:
    found = phase_shares({"processes": workers(1.0)})
    assert found["W3"] == {"compute": 0.25, "all_reduce": 0.75}
    assert phase_shares({}) == {}
    rows = heat_map("sync", found)["data"]["values"]
    assert rows[-1] == {"process": "W3", "phase": "all_reduce", "share": 0.75} and len(rows) == 8


def test_the_sentence_names_the_slowest_worker_and_since_when() -> None:
    time: dict[str, Any] = {"processes": workers(4.0), "first_second": 2.0, "bin_seconds": 8.0}
    time["bins"] = [workers(4.0), workers(1.0), {}, workers(5.0), workers(6.0)]
    assert slow_sentence(time) == "W3's compute takes 4.0 times the median since second 26 of the run"
    found = slow_sentence({**time, "began_at": 1e9, "modes": ["sync", "sync", "", "sync", "gba"]})
    assert strftime(" since %H:%M:%S; sync loses ", localtime(1e9 + 26.0)) in found
    assert found.endswith("; sync loses 38% to it, gba 42%")  # the others wait 3 of 4 s, W3 3 of 8 and 3 of 9
    assert slow_sentence({**time, "bins": []}) == "W3's compute takes 4.0 times the median"
    assert slow_sentence({"processes": workers(1.0)}) == slow_sentence({}) == ""
