"""A server that a plan slows, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.simulated_runs import config, run

COST: dict[str, Any] = {"cores": 64, "servers_on": "own", "server_message_us": 500.0, "row_pull_ns": 2000.0}


def test_its_messages_take_the_factor_times_as_long(data: Path, tmp_path: Path) -> None:
    plain = run(config("async", cost=COST), data, tmp_path / "plain")
    plans = [{"kind": "constant", "factor": 3, "servers": [0]}]
    slow = run(config("async", cost=COST, faults=plans), data, tmp_path / "slow")
    found = slow["faults"]["servers"]
    assert list(found) == ["S0"] and slow["faults"]["workers"] == {}
    assert found["S0"]["injected"] == pytest.approx(3.0, abs=1e-3)
    assert found["S0"]["observed"] == pytest.approx(3.0, rel=0.1)  # the shards' shares of the rows differ a little
    assert slow["eps"] < 0.6 * plain["eps"] and "faults" not in plain


def test_waiting_takes_no_core_from_its_neighbours(data: Path, tmp_path: Path) -> None:
    """Computing dominates on two cores that the servers share: a server that waits slows nobody's computing."""
    cost = {"cores": 2, "server_message_us": 20.0}
    plans = [{"kind": "constant", "factor": 3, "servers": [0]}]
    plain = run(config("gba", cost=cost), data, tmp_path / "plain")
    slow = run(config("gba", cost=cost, faults=plans), data, tmp_path / "slow")
    assert slow["eps"] > 0.95 * plain["eps"]
