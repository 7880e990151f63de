"""The coordinator against nodes that say what they may not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from gbactl.config import RunConfig
from gbactl.coordinator.message_loop import Coordinator
from gbactl.errors import ClusterError
from gbactl.wire.auth import Peer
from gbactl.wire.messages import (
    ClosedReplicas,
    DenseSaved,
    ExchangeTotals,
    GradientNorms,
    Hello,
    Inspected,
    Reached,
    TakeBatch,
)
from tests.support.in_memory import MemoryChannel, MemoryHub

DATASET = SimpleNamespace(kind="splits", splits=[SimpleNamespace(rows=100)] * 3)


@pytest.fixture
def network() -> dict[str, MemoryHub]:
    return {}


@pytest.fixture
def coordinator(network: dict[str, MemoryHub], tmp_path: Path) -> Coordinator:
    hub = MemoryHub(network, Peer("coordinator", 0))
    return Coordinator(hub, RunConfig(), cast(Any, DATASET), tmp_path, {})


def said(coordinator: Coordinator) -> None:
    for channel, frame in coordinator.hub.poll(0):
        coordinator._handle(channel, frame)


def worker(network: dict[str, MemoryHub], number: int) -> MemoryChannel:
    return MemoryHub(network, Peer("worker", number)).connect("C")


def test_a_node_that_speaks_for_another_ends_the_run(network: dict[str, MemoryHub], coordinator: Coordinator) -> None:
    """It would keep its batch for ever otherwise."""
    channel = worker(network, 1)
    channel.send(Hello("worker", 1, ""))
    said(coordinator)
    channel.send(TakeBatch(2))
    with pytest.raises(ClusterError, match="W1 was turned away"):
        said(coordinator)
    assert coordinator.hub.refused["WireError"] == 1


def test_a_stranger_to_the_run_is_refused_and_the_run_goes_on(
    network: dict[str, MemoryHub], coordinator: Coordinator
) -> None:
    """Worker 9 of 4 is nobody; what it says is counted."""
    channel = worker(network, 9)
    channel.send(Hello("worker", 9, ""))
    channel.send(Reached(0, 1))
    said(coordinator)
    assert coordinator.hub.refused["WireError"] == 2
    assert not coordinator.context.members.channels


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Inspected("W2", "", "", {}, {}, {}), 0),
        (Inspected("S1", "", "", {}, {}, {}), 0),
        (Inspected("W1", "", "-5", {}, {}, {}), 0),
        (Inspected("W1", "", "9" * 5000, {}, {}, {}), 0),
        (GradientNorms(0, -1.0, []), 0),
        (DenseSaved(0, 1, 2), 5),
        (DenseSaved(0, 1, 1000), 40),
        (ClosedReplicas(1, 0, ExchangeTotals(seconds=float("nan"))), 0),
        (ClosedReplicas(1, 0, ExchangeTotals(foreground=float("inf"))), 0),
    ],
)
def test_what_a_node_may_not_say_of_itself(
    network: dict[str, MemoryHub], coordinator: Coordinator, message: Any, payload: int
) -> None:
    channel = worker(network, 1)
    channel.send(Hello("worker", 1, ""))
    said(coordinator)
    channel.send(message, np.zeros(payload, np.uint8))
    with pytest.raises(ClusterError, match="W1 was turned away"):
        said(coordinator)


@pytest.mark.parametrize(
    "message", [Inspected("W9", "", "", {}, {}, {}), GradientNorms(0, 1.0, []), DenseSaved(0, 0, -1)]
)
def test_who_is_no_member_tells_nothing(network: dict[str, MemoryHub], coordinator: Coordinator, message: Any) -> None:
    worker(network, 9).send(message)
    said(coordinator)
    assert coordinator.hub.refused["WireError"] == 1


def test_what_a_node_tells_of_itself(network: dict[str, MemoryHub], coordinator: Coordinator, tmp_path: Path) -> None:
    channel = worker(network, 1)
    for message in (Hello("worker", 1, ""), Inspected("W1", "ab", "17", {}, {}, {}), GradientNorms(0, 4.0, [1.0])):
        channel.send(message)
    said(coordinator)
    assert coordinator.core.requests.inspected["W1"].model_sum == "17" and not coordinator.hub.refused


def test_training_begins_when_the_launcher_listens_too(network: dict[str, MemoryHub], coordinator: Coordinator) -> None:
    """The result of a short run would be told to nobody otherwise."""
    members = coordinator.context.members
    members.ready.update((role, n) for role, count in members.expected.items() for n in range(count))
    waits_for, _ = next(coordinator.flow._gather())
    assert not waits_for()
    MemoryHub(network, Peer("launcher", 0)).connect("C").send(Hello("launcher", 0, ""))
    said(coordinator)
    assert waits_for()
