"""transport.wire_dtype: values take half the bytes and arrive rounded; everything else arrives as it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gbactl.config import CollectiveConfig, RunConfig, TransportConfig
from gbactl.kernels.half_precision import CODECS, rounded
from gbactl.nodes.role_setup import wrapped_hub
from gbactl.replay.replay_command import replay, sentence
from gbactl.wire import frames
from gbactl.wire.auth import Peer
from gbactl.wire.half_precision_transport import HalfPrecisionHub, with_half_precision
from gbactl.wire.messages import (
    DenseState,
    EasgdCentre,
    EasgdUpdate,
    Predictions,
    Pull,
    Push,
    PutDense,
    Rows,
    Summand,
    unpack,
)
from gbactl.wire.reconnecting import ReconnectingHub
from tests.support.in_memory import MemoryHub
from tests.support.modes import SERVED
from tests.support.recorded import config, record, splits

TOLD = (0.5, 0.1, 1.0, 0, 0)
FLOATS = np.random.default_rng(0).normal(size=24).astype(np.float32)
IDS, NO_IDS = np.array([3, 1, 4], np.int32), np.empty(0, np.int32)


def with_dtype(cfg: RunConfig, name: str) -> RunConfig:
    return dataclasses.replace(cfg, transport=TransportConfig(wire_dtype=name))


def joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.view(np.uint8) for part in parts])


class Narrow:
    """A worker that speaks narrowly with a server, and with one that hears what is on the wire."""

    def __init__(self, name: str, to: str = "server") -> None:
        network: dict[str, MemoryHub] = {}
        self.raw = MemoryHub(network, Peer(to, 0))
        self.far = HalfPrecisionHub(self.raw, CODECS[name])
        self.near = HalfPrecisionHub(MemoryHub(network, Peer("worker", 0)), CODECS[name])
        self.channel = self.near.connect(self.raw.address, peer=Peer(to, 0))

    def arrives(self, message: Any, payload: np.ndarray, hub: Any) -> np.ndarray:
        out = self.channel.reserve(payload.size)
        out[:] = payload
        self.channel.send(message, out)
        [(_, frame)] = hub.poll(1)
        assert unpack(frame.kind, frame.descriptor) == message
        found: np.ndarray = frame.payload.copy()
        frame.release()
        return found


def test_what_goes_as_it_is_keeps_no_memory() -> None:
    narrow = Narrow("fp16")
    for number in range(1, 4):
        message = Summand(0, "d", number, len(FLOATS), 0, 1, 1, [], 0)
        assert (narrow.arrives(message, FLOATS.view(np.uint8), narrow.far) == FLOATS.view(np.uint8)).all()
        assert not narrow.channel._lent


@pytest.mark.parametrize(
    ("message", "ids"),
    [
        (Push(1, 2, 3, 12, *TOLD), IDS),
        (Rows(1, 2, 4, 12), NO_IDS),
        (EasgdUpdate(1, 0.5), NO_IDS),
        (EasgdCentre(1), NO_IDS),
    ],
)
@pytest.mark.parametrize("name", sorted(CODECS))
def test_gradients_rows_and_dense_values_are_rounded_and_ids_are_not(name: str, message: Any, ids: np.ndarray) -> None:
    wire, payload = Narrow(name), joined(ids, FLOATS)
    assert wire.arrives(message, payload, wire.raw).size == ids.nbytes + FLOATS.nbytes // 2
    assert np.array_equal(wire.arrives(message, payload, wire.far), joined(ids, rounded(CODECS[name], FLOATS)))


@pytest.mark.parametrize("message", [Pull(1, 2, 24, True, 0, -1), DenseState(3), PutDense(3), Predictions(1, 0, 0, 24)])
def test_what_must_not_be_rounded(message: Any) -> None:
    wire = Narrow("bf16")
    assert np.array_equal(wire.arrives(message, joined(FLOATS), wire.raw), joined(FLOATS))
    assert np.array_equal(wire.arrives(message, joined(FLOATS), wire.far), joined(FLOATS))


def test_nothing_is_changed_between_a_worker_and_the_coordinator() -> None:
    wire = Narrow("fp16", "coordinator")
    assert wire.channel.__class__.__name__ == "MemoryChannel"
    wire.channel.send(Rows(1, 2, 4, 12), joined(FLOATS))
    [(_, frame)] = wire.raw.poll(1)
    assert frame.payload.size == FLOATS.nbytes


@pytest.mark.parametrize("payload", [b"", b"12345", b"123456789012345"])
def test_what_cannot_have_been_narrowed_arrives_as_it_is(payload: bytes) -> None:
    """Whoever gets it finds that its size is wrong."""
    wire = Narrow("fp16")
    data = np.frombuffer(payload, np.uint8)
    wire.channel.inner.send(Push(1, 2, 3, 12, *TOLD), data)  # type: ignore[attr-defined]
    [(_, frame)] = wire.far.poll(1)
    assert np.array_equal(frame.payload, data)


def test_a_lost_connection_is_told_of_the_same_channel() -> None:
    wire = Narrow("fp16")
    wire.channel.send(EasgdUpdate(1, 0.5), joined(FLOATS))
    [(channel, _)] = wire.far.poll(1)
    wire.channel.close()
    [(gone, frame)] = wire.far.poll(1)
    assert gone is channel and frame.kind == frames.CLOSED and not wire.far._wrappers


def test_fp32_is_the_hub_itself() -> None:
    hub = MemoryHub({}, Peer("worker", 0))
    assert with_half_precision(hub, "fp32") is hub
    assert isinstance(with_half_precision(hub, "bf16"), HalfPrecisionHub)
    lasting = wrapped_hub(hub, with_dtype(config("shadow_easgd", {"name": "libfm"}), "fp16"), hub.me)
    assert isinstance(lasting, ReconnectingHub) and isinstance(lasting.hub, HalfPrecisionHub)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return splits(tmp_path_factory.mktemp("narrow"))


@pytest.mark.quick(3)
@pytest.mark.parametrize("mode", [*SERVED, "sync"])
@pytest.mark.parametrize("name", sorted(CODECS))
def test_a_run_comes_out_of_its_log_again(data: dict[str, Any], tmp_path: Path, mode: str, name: str) -> None:
    """What is applied is what arrived, and a replay knows it."""
    cfg = config(mode, data)
    if mode == "sync":
        cfg = dataclasses.replace(cfg, collective=CollectiveConfig(name="shm"))
    record(with_dtype(cfg, name), tmp_path)
    verdict = replay(tmp_path)
    assert verdict["identical"], sentence(verdict)


def test_it_does_round(data: dict[str, Any], tmp_path: Path) -> None:
    sums = set()
    for name in ("fp32", *CODECS):
        cfg = with_dtype(config("sync", data, local_batch=16), name)
        sums.add(record(cfg, tmp_path / name)["checksums"]["model"])
    assert len(sums) == 3


@pytest.mark.parametrize("mode", ["shadow_easgd", "shadow_ma"])
def test_modes_without_a_replay_train_on_it(data: dict[str, Any], tmp_path: Path, mode: str) -> None:
    cfg = with_dtype(config(mode, data), "bf16")
    result = record(cfg, tmp_path)
    assert result["refused_frames"] == 0 and result["samples"]["trained"] == 1460
