"""Messages of nodes that do not keep to the rules, in the middle of a run, against its coordinator.

A small run on the virtual cluster, which has the real coordinator, policies and shards; between what its nodes really
say come one to three messages that one of them, which has the key, might say as well. The run goes on to its end, or
ends with one of the project's own errors. About ten runs a second.
"""

from __future__ import annotations

import dataclasses
import functools
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gbactl.config import CheckpointConfig, RunConfig, SwitchConfig, check
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, open_dataset
from gbactl.errors import GbactlError
from gbactl.simulation.simulated_run import VirtualCluster
from gbactl.wire.channel_interface import Channel
from gbactl.wire.frames import Bytes, Frame
from gbactl.wire.messages import Event, kind_of, pack
from tests.fuzz.mutations import message, odd_descriptor
from tests.support.recorded import config, splits

ROWS = 200
POLLS = 90  # a coordinator of such a run looks for messages 70 to 110 times
PAYLOADS = (0, 0, 1, 4, 5, 16, 64, 240, 1400)
STARVED = "Nothing is left to happen"


class Spoken:
    """A run with a node that speaks out of turn."""

    @functools.cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(prefix="gbactl-fuzz-")

    def __call__(self, rng: random.Random) -> str:
        cfg, dataset = rng.choice(self._runs)
        events: list[Event] = []
        with tempfile.TemporaryDirectory(dir=self._folder.name) as run_dir:
            cluster = VirtualCluster(cfg, dataset, Path(run_dir), events.append)
            intruder = Intruder(cluster, rng)
            cluster.hub.poll = intruder.poll  # type: ignore[method-assign]
            try:
                cluster.run()
            except GbactlError as error:
                return "waits for more" if STARVED in str(error) else "refused"
        if [event.name for event in events].count("result") != 1:
            raise AssertionError("a run ended without a result")
        return "read"

    @functools.cached_property
    def _runs(self) -> list[tuple[RunConfig, Dataset]]:
        """One of each: servers, workers or replicas have the dense part; with checkpoints; with switches between."""
        torch.set_num_threads(1)
        data = splits(Path(self._folder.name), ROWS)
        dataset = open_dataset(prepare(config("gba", data).data))
        saving = CheckpointConfig("full", interval_steps=2)
        switching = SwitchConfig(
            schedule=[{"at": {"step": 2}, "to": "sync"}, {"at": {"step": 4}, "to": "async"}],
            modes=[{}, {"local_batch": 16, "prefetch": "rows"}],
        )
        made = [self._run(mode, data) for mode in ("gba", "sync", "shadow_ma", "shadow_easgd")]
        made += [
            dataclasses.replace(self._run(mode, data), checkpoint=saving) for mode in ("async", "sync", "fr_easgd")
        ]
        made.append(dataclasses.replace(self._run("gba", data), switch=switching))
        return [(check(cfg), dataset) for cfg in made]

    @staticmethod
    def _run(mode: str, data: dict[str, Any]) -> RunConfig:
        cfg = config(mode, data, servers=2)
        cluster, train = dataclasses.replace(cfg.cluster, name="virtual"), dataclasses.replace(cfg.train, epochs=1)
        return dataclasses.replace(cfg, cluster=cluster, train=dataclasses.replace(train, norms_every=3))


class Intruder:
    """Has some of a cluster's nodes say more than they would."""

    def __init__(self, cluster: VirtualCluster, rng: random.Random) -> None:
        self.coordinator, self.rng = cluster.coordinator, rng
        self._poll, self._polls = cluster.hub.poll, 0
        self._turns = [rng.randint(1, POLLS) for _ in range(rng.choice((1, 1, 2, 3)))]

    def poll(self, timeout: float | None) -> list[tuple[Channel, Frame]]:
        """See channel.Hub."""
        found = self._poll(timeout)
        self._polls += 1
        return found + [self._said() for turn in self._turns if turn == self._polls]

    def _said(self) -> tuple[Channel, Frame]:
        launcher = self.coordinator.context.launcher
        assert launcher is not None
        nodes = [*self.coordinator.context.members.channels.values(), launcher]
        channel, payload = self.rng.choice(nodes), self.rng.randbytes(self.rng.choice(PAYLOADS))
        if self.rng.random() < 0.2:
            kind, descriptor = odd_descriptor(self.rng)
        else:
            said = self._likely(channel)
            kind, descriptor = kind_of(said), pack(said)
        values: Bytes = np.frombuffer(payload, np.uint8).copy()
        return channel, Frame(kind, descriptor, values)

    def _likely(self, channel: Channel) -> Any:
        """A message that means something, mostly."""
        c, rng = self.coordinator, self.rng
        said = message(rng, tuple(c._handlers)) if rng.random() < 0.9 else message(rng)
        peer, now = channel.peer, c.context.training
        leases = [0] if now is None else [*set[int]().union(*now.policy.leases.values()), 0]
        likely = {
            "worker": peer.index, "shard": peer.index, "number": peer.index, "role": peer.role, "node": str(peer),
            "phase": c.context.phase_number, "batch": rng.choice(leases), "step": c.context.step_now,
            "request": c.core.replicas.request,
            "row_version": 0, "dense_version": 0, "samples": 60, "name": "switch", "params": rng.choice((-1, 5)),
        }  # fmt: skip
        if type(said).__name__ in ("Saved", "DenseSaved"):
            likely["number"] = c.core.checkpoints._number - 1
        return said._replace(
            **{key: value for key, value in likely.items() if key in said._fields and rng.random() < 0.8}
        )
