"""Messages over a connection that loses, doubles, delays and reorders: each arrives once, in order."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from gbactl.config import FaultsConfig
from gbactl.faults.fault_plan import FaultPlan
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import CLOSED
from gbactl.wire.messages import Granted, Predictions, Rows, TakeBatch, decode
from gbactl.wire.reliable import ReliableChannel, ReliableHub, with_message_faults
from tests.support.in_memory import MemoryHub

STORM = {"kind": "messages", "drop": 0.2, "duplicate": 0.2, "reorder": 0.2, "delay": 0.2, "delay_seconds": 0.003}


def storm(*plans: dict[str, Any], seed: int = 0) -> FaultPlan:
    return FaultPlan(FaultsConfig(None, list(plans)), seed, 2, 1)


class Pair:
    """Worker 0 and a server, or the coordinator."""

    def __init__(self, plan: FaultPlan, other: Peer = Peer("server", 0)) -> None:  # noqa: B008
        network: dict[str, MemoryHub] = {}
        far = MemoryHub(network, other)
        self.far = ReliableHub(far, other, plan)
        me = Peer("worker", 0)
        self.near = ReliableHub(MemoryHub(network, me), me, plan)
        self.out: Channel = self.near.connect(far.address, peer=other)
        self.got: list[tuple[Any, bytes]] = []
        self.back: Channel | None = None

    def turn(self) -> None:
        for channel, frame in self.far.poll(0.01):
            if frame.kind != CLOSED:
                self.back = channel
                self.got.append((decode(frame), frame.payload.tobytes()))
                frame.release()
        self.near.poll(0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("other", [Peer("server", 0), Peer("coordinator", 0)], ids=str)
def test_everything_arrives_once_and_in_order(seed: int, other: Peer) -> None:
    pair = Pair(storm(STORM, seed=seed), other)
    sent = []
    for number in range(60):
        payload = np.full(number % 7, number, np.uint8)
        out = pair.out.reserve(len(payload))
        out[:] = payload
        pair.out.send(Predictions(1, 0, number, 0, 0), out)
        out[:] = 255  # what was handed over is not looked at again
        sent.append((Predictions(1, 0, number, 0, 0), payload.tobytes()))
        if number % 10 == 0:
            pair.turn()
    for _ in range(400):
        pair.turn()
        if len(pair.got) == len(sent):
            break
    assert pair.got == sent
    counts = pair.near.counts
    assert min(counts[name] for name in ("dropped", "duplicated", "reordered", "delayed", "retried")) > 0


def test_answers_go_the_same_way() -> None:
    pair = Pair(storm(STORM))
    pair.out.send(TakeBatch(0))
    while pair.back is None:
        pair.turn()
    for number in range(20):
        pair.back.send(TakeBatch(number))
    got: list[Any] = []
    while len(got) < 20:
        pair.far.poll(0)
        got += [decode(frame) for _, frame in pair.near.poll(0.01)]
    assert got == [TakeBatch(number) for number in range(20)]


def test_the_fates_are_a_function_of_the_seed() -> None:
    def fates(seed: int) -> Counter[str]:
        pair = Pair(storm(STORM, seed=seed))
        for number in range(50):
            pair.out.send(TakeBatch(number))
        return pair.near.counts

    assert fates(1) == fates(1) != fates(2)


@pytest.mark.parametrize(
    ("role", "when"), [("server", {"time": 500.0}), ("coordinator", {"time": 500.0}), ("server", {"step": 7})]
)
def test_before_and_after_a_storm_nothing_happens_to_messages(
    monkeypatch: pytest.MonkeyPatch, role: str, when: dict[str, Any]
) -> None:
    """Either end knows when it is there. Time counts from the first sign of training, not from the connection."""
    ahead = [0.0]
    monkeypatch.setattr(MemoryHub, "now", lambda this: time.monotonic() + ahead[0])
    pair = Pair(storm({**STORM, **when, "seconds": 1000.0}), Peer(role, 0))

    def signal(step: int) -> None:
        assert pair.back is not None
        pair.back.send(Rows(1, step, 0, 0) if role == "server" else Granted(1, 0, 0, 0, 8, step, 1.0, 1.0))
        pair.turn()

    def fates(later: float) -> list[int]:
        """Of what either end sends, so many seconds later."""
        ahead[0] += later
        before = [hub.counts.total() - hub.counts["retried"] for hub in (pair.near, pair.far)]
        for number in range(40):
            pair.out.send(TakeBatch(number))
            pair.turn()
            assert pair.back is not None
            pair.back.send(TakeBatch(number))
        after = [hub.counts.total() - hub.counts["retried"] for hub in (pair.near, pair.far)]
        return [now - then for now, then in zip(after, before, strict=True)]

    assert fates(0.0) == fates(6000.0) == [0, 0]
    signal(6)
    assert fates(400.0) == [0, 0]
    signal(7)
    assert min(fates(200.0)) > 10 and min(fates(700.0)) > 10
    assert fates(300.0) == [0, 0]


def test_a_lost_connection_is_told() -> None:
    pair = Pair(storm(STORM))
    pair.out.send(TakeBatch(0))
    pair.turn()
    pair.out.close()
    closed = [frame for _ in range(5) for _, frame in pair.far.poll(0.01) if frame.kind == CLOSED]
    assert len(closed) == 1


def test_what_is_not_numbered_is_refused() -> None:
    pair = Pair(storm(STORM))
    assert isinstance(pair.out, ReliableChannel)
    pair.out.inner.send(TakeBatch(0))
    assert pair.far.poll(0.01) == [] and pair.far.refused["WireError"] == 1


def test_others_connections_are_left_alone() -> None:
    network: dict[str, MemoryHub] = {}
    plan = storm({**STORM, "workers": [1]})
    hub = MemoryHub(network, Peer("coordinator", 0))
    assert with_message_faults(hub, Peer("coordinator", 0), storm()) is hub
    open_hub = with_message_faults(hub, Peer("coordinator", 0), plan)
    for peer, covered in ((Peer("worker", 0), False), (Peer("worker", 1), True), (Peer("launcher", 0), False)):
        own = with_message_faults(MemoryHub(network, peer), peer, plan)
        assert isinstance(own.connect("C"), ReliableChannel) == covered
    assert open_hub.poll(0) == []
