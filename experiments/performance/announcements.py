"""Announcements a second that the coordinator can process: a real coordinator, with every other node emulated.

    python experiments/performance/announcements.py [--mode gba] [--workers 4] [--servers 1] [--batches 100000]

No payload moves: a worker that is granted a batch at once has it staged on every server. Sockets, frames,
authentication, policy, journal and orders are those of a run. The emulated nodes share the machine with the
coordinator, so its own CPU seconds are given, too.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bench_lines import Line
from plain_loop import prepared

from gbactl.calibration.measured_runs import process_cpu
from gbactl.config import to_dict
from gbactl.launch.hydra_config import compose
from gbactl.wire import frames
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.bootstrap import Bootstrap
from gbactl.wire.channel_interface import Channel
from gbactl.wire.listener import address_of, listen
from gbactl.wire.messages import (
    Barrier,
    BeginPhase,
    Granted,
    Hello,
    Inspect,
    Inspected,
    Predictions,
    Reached,
    Ready,
    Staged,
    Stop,
    TakeBatch,
    decode,
)
from gbactl.wire.socket_hub import SocketHub

WAITING = 2  # batches a worker asks for at a time, as with prefetch


class Players:
    """Emulated workers and servers of a run."""

    def __init__(self, key: bytes, address: str, workers: int, servers: int) -> None:
        self.hubs: list[SocketHub] = []
        self.servers = [self._join(key, address, "server", index) for index in range(servers)]
        self.workers = [self._join(key, address, "worker", index) for index in range(workers)]
        self.training = False
        self.began = self.ended = 0.0
        self.announced = 0
        for channel in self.workers:
            for _ in range(WAITING):
                channel.send(TakeBatch(channel.index))

    def _join(self, key: bytes, address: str, role: str, index: int) -> Any:
        hub = SocketHub(key, Peer(role, index))
        channel: Any = hub.connect(address)
        channel.index = index
        channel.send(Hello(role, index, f"{role}{index}"))
        channel.send(Ready(role, index))
        self.hubs.append(hub)
        return channel

    def play(self) -> None:
        """Answer messages until the coordinator says stop."""
        while True:
            for hub in self.hubs:
                for channel, frame in hub.poll(0):
                    if frame.kind == frames.CLOSED or not self._act(channel, decode(frame)):
                        return

    def _act(self, channel: Channel, message: Any) -> bool:
        me: Any = channel
        if isinstance(message, Granted):
            self._granted(me, message)
        elif isinstance(message, BeginPhase) and me is self.workers[0]:
            self.training = message.training
        elif isinstance(message, Barrier):
            me.send(Reached(me.index, message.version))
        elif isinstance(message, Inspect):
            name = f"{'S' if me in self.servers else 'W'}{me.index}"
            me.send(Inspected(name, "" if name[0] == "W" else "0", "", {}, {}))
        return not isinstance(message, Stop)

    def _granted(self, worker: Any, grant: Granted) -> None:
        if not self.training:
            scores = np.linspace(0.1, 0.9, grant.samples, dtype=np.float32)
            message = Predictions(grant.phase, worker.index, grant.batch, grant.samples)
            worker.send(message, scores.view(np.uint8))
            worker.send(TakeBatch(worker.index))
            return
        self.ended = time.perf_counter()
        self.began = self.began or self.ended
        self.announced += 1
        for shard, server in enumerate(self.servers):
            server.send(Staged(shard, worker.index, grant.phase, grant.batch, 0.5, 0.01, 1.0, 0, 0))


def measure(mode: str, workers: int, servers: int, batches: int) -> tuple[float, float]:
    """Measure announcements a second, and microseconds of the coordinator's CPU for each."""
    overrides = [
        "data=synthetic", "data.days=2", f"data.rows_per_day={batches}", "data.numeric=1", "data.fields=2",
        "data.max_cardinality=100", f"mode={mode}", f"cluster.workers={workers}", f"cluster.servers={servers}",
        "mode.local_batch=1", "train.global_batch=4", "train.max_eval_samples=2000", "train.checksum_every=0",
    ]  # fmt: skip
    path, key = prepared(overrides), new_key()
    with tempfile.TemporaryDirectory(prefix="gbactl-announcements-") as folder, listen("unix:") as listener:
        (Path(folder) / "logs").mkdir()
        boot = Bootstrap("coordinator", 0, key.hex(), "", folder, path, to_dict(compose(overrides)), listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "gbactl.nodes.child_main", str(os.getpid())],
            stdin=subprocess.PIPE, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(boot.dumps())
            players = Players(key, address_of(listener), workers, servers)
            before = process_cpu(process.pid) or 0.0
            players.play()
            used = (process_cpu(process.pid) or 0.0) - before
        finally:
            process.kill()
            process.wait()
    return players.announced / (players.ended - players.began), 1e6 * used / players.announced


def line(rounds: int, batches: int) -> Line:
    """Line for the table: asynchronous training, where every announcement is an order."""
    found = [measure("async", 4, 1, batches) for _ in range(rounds)]
    note = f"async, 4 workers, 1 server; {np.median([cpu for _, cpu in found]):.0f} us of its CPU each"
    rates = [rate for rate, _ in found]
    return Line("announcements", "announcements a second at the coordinator", rates, 10_000, note=note)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="async")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--batches", type=int, default=100_000)
    given = parser.parse_args()
    rate, cpu = measure(given.mode, given.workers, given.servers, given.batches)
    print(f"{rate:,.0f} announcements a second; {cpu:.1f} us of the coordinator's CPU each")


if __name__ == "__main__":
    main()
