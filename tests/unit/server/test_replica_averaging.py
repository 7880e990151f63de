"""A server's part in keeping replicas together: what it answers and holds, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gbactl.averaging_rules import make
from gbactl.errors import WireError
from gbactl.server.shard_server import Server
from gbactl.store.dense import DenseSpec
from gbactl.store.optimizer_settings import OptimizerSpec
from gbactl.store.shard import Shard, ShardSpec
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Channel
from gbactl.wire.messages import Ack, AddReplica, AverageReplicas, EasgdCentre, EasgdUpdate, decode
from tests.support.checkpoint_files import unused_saver
from tests.support.in_memory import MemoryHub

SIZE = 4


class Setting:
    """A server whose slice is 8.0 throughout, its coordinator, and two trainers."""

    def __init__(self) -> None:
        network: dict[str, MemoryHub] = {}
        self.hub = MemoryHub(network, Peer("server", 0))
        self.c_hub = MemoryHub(network, Peer("coordinator", 0))
        self.hubs = [MemoryHub(network, Peer("worker", index)) for index in range(2)]
        coordinator = self.hub.connect("C")
        assert coordinator.other is not None
        self.coordinator: Channel = coordinator.other
        self.trainers = [hub.connect("S0") for hub in self.hubs]
        adam, sgd = OptimizerSpec("adam"), OptimizerSpec("sgd", 1.0)
        spec = ShardSpec(0, 1, 10, 3, row_optimizer=sgd, dense=DenseSpec(SIZE), dense_optimizer=adam)
        self.shard = Shard(spec)
        self.block = self.shard.dense_block()
        self.block.value[:] = 8.0
        self.server = Server(self.hub, coordinator, self.shard, 0, unused_saver(self.shard))

    def served(self) -> None:
        for channel, frame in self.hub.poll(0):
            self.server.handle(channel, frame)

    def heard(self, trainer: int = 0) -> list[tuple[Any, Any]]:
        self.served()
        return [(decode(f), f.payload.view(np.float32)) for _, f in self.hubs[trainer].poll(0) if f.kind]

    def send(self, message: Any, values: Any, trainer: int = 0) -> None:
        self.trainers[trainer].send(message, np.asarray(values, np.float32).view(np.uint8))


def packed(value: float, first: float, second: float) -> Any:
    return np.repeat(np.array([value, first, second], np.float32), SIZE)


def test_an_exchange_is_answered_with_the_centre_before_and_moves_it() -> None:
    at = Setting()
    at.send(EasgdUpdate(7, 0.25), [4.0] * SIZE)
    [(message, before)] = at.heard()
    assert message == EasgdCentre(7) and before.tolist() == [8.0] * SIZE
    assert at.block.value.tolist() == [7.0] * SIZE


def test_trainer_and_server_move_by_the_same_bits() -> None:
    at, rng = Setting(), np.random.default_rng(0)
    sent = rng.normal(0, 0.1, SIZE).astype(np.float32)
    at.block.value[:] = rng.normal(0, 0.1, SIZE)
    at.send(EasgdUpdate(1, 0.3), sent)
    [(_, centre)] = at.heard()
    difference, other = sent.copy(), centre.copy()
    make("easgd", SIZE, {"alpha": 0.3}).exchange(difference, other)
    assert other.tobytes() == at.block.value.tobytes()


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (EasgdUpdate(1, 0.5), SIZE - 1), (EasgdUpdate(1, 0.5), SIZE + 1), (EasgdUpdate(1, 1.5), SIZE),
        (EasgdUpdate(1, -0.5), SIZE),
        (EasgdUpdate(1, float("nan")), SIZE), (AddReplica(3, 1), SIZE), (AddReplica(-1, 1), 3 * SIZE),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(message: Any, size: int) -> None:
    at = Setting()
    at.send(message, [4.0] * size)
    assert at.heard() == [] and at.server.refused == {"WireError": 1}
    assert at.block.value.tolist() == [8.0] * SIZE
    at.send(EasgdUpdate(2, 0.5), [4.0] * SIZE, trainer=1)
    assert at.heard(1)[0][0] == EasgdCentre(2), "it serves the other one"


def test_a_trainer_may_not_settle() -> None:
    at = Setting()
    at.trainers[0].send(AverageReplicas(True))
    assert at.heard() == [] and at.server.refused == {"WireError": 1}


@pytest.mark.parametrize(("value", "expected"), [(True, 3.0), (False, 8.0)])
def test_what_all_gave_is_averaged_but_for_a_centre(value: bool, expected: float) -> None:
    at = Setting()
    at.send(AddReplica(5, 1), packed(2.0, 0.5, 4.0))
    at.send(AddReplica(9, 1), packed(4.0, 1.5, 8.0), trainer=1)
    assert at.heard(0)[0][0] == at.heard(1)[0][0] == Ack()
    assert at.block.value.tolist() == [8.0] * SIZE, "not before it is settled"
    at.coordinator.send(AverageReplicas(value))
    at.served()
    assert at.block.value.tolist() == [expected] * SIZE and at.block.step == 9
    assert [moment.tolist() for moment in at.block.moments.values()] == [[1.0] * SIZE, [6.0] * SIZE]
    at.coordinator.send(AverageReplicas(True))
    at.served()
    assert at.block.value.tolist() == [expected] * SIZE, "where nobody gave anything, nothing changes"


def test_where_all_are_asked_again_what_was_given_before_counts_no_more() -> None:
    at = Setting()
    at.send(AddReplica(5, 1), packed(100.0, 0.5, 4.0))
    at.send(AddReplica(6, 2), packed(2.0, 0.5, 4.0))
    at.send(AddReplica(9, 1), packed(100.0, 1.5, 8.0), trainer=1)
    assert at.heard(0)[0][0] == at.heard(1)[0][0] == Ack(), "who comes too late is answered all the same"
    at.send(AddReplica(7, 2), packed(4.0, 0.5, 4.0), trainer=1)
    at.coordinator.send(AverageReplicas(True))
    at.served()
    assert at.block.value.tolist() == [3.0] * SIZE and at.block.step == 7


def test_a_shard_without_a_dense_slice_refuses() -> None:
    at = Setting()
    at.shard.dense = None
    at.send(EasgdUpdate(1, 0.5), [4.0] * SIZE)
    assert at.heard() == [] and sum(at.server.refused.values()) == 1


def test_an_answer_of_a_wrong_size_ends_the_trainer() -> None:
    from types import SimpleNamespace

    from gbactl.trainer.replica_exchange import EasgdExchange
    from gbactl.wire.frames import Frame

    exchange: Any = SimpleNamespace(servers=[None], handlers={})
    EasgdExchange(exchange, {0: (0, SIZE)}, SIZE)
    with pytest.raises(WireError, match="answered an exchange with 4 bytes"):
        exchange.handlers[EasgdCentre](0, EasgdCentre(0), Frame(0, b"", np.zeros(4, np.uint8)))
