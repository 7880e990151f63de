"""Cell of the scale study: a real coordinator process with its sockets; all other nodes are emulated on one hub.

No payload moves: a batch that is granted is staged on every server at once. Sockets, frames, authentication, policy,
event log and orders are those of a run. The overrides are those of a run; the tag `batches` is the number of batches
of all workers. CPU seconds are the coordinator's own, as the emulation shares the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator_core import TINY, predicted, reply, staged

from gbactl.calibration.short_local_runs import process_cpu
from gbactl.config import to_dict
from gbactl.data.cache import prepare
from gbactl.launch.hydra_config import compose
from gbactl.wire import frames
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.listener import address_of, listen
from gbactl.wire.messages import BeginPhase, Granted, Hello, OrderStep, Ready, Stop, TakeBatch, decode
from gbactl.wire.node_connections import SocketHub
from gbactl.wire.startup_document import StartupDocument

WAITING = 2  # batches a worker asks for at a time, as with prefetch


class EmulatedNodes:
    """Workers and servers of a run, emulated on one hub, and the process `pid` of their coordinator."""

    def __init__(self, key: bytes, address: str, workers: int, servers: int, pid: int) -> None:
        self.hub, self.pid = SocketHub(key, Peer("worker", 0)), pid
        self.empty = self.look()
        self.began = self.ended = self.joined = 0.0
        begun = time.perf_counter()
        self.servers = [self._join(address, "server", index) for index in range(servers)]
        self.workers = [self._join(address, "worker", index) for index in range(workers)]
        self.joining = time.perf_counter() - begun
        self.version, self.gradients, self.sent = 0, 0, Counter[str]()
        self.cpu, self.full = (0.0, 0.0), self.empty
        for channel in self.workers * WAITING:
            channel.send(TakeBatch(channel.emulated.index))

    def _join(self, address: str, role: str, index: int) -> Any:
        self.hub.me = Peer(role, index)
        channel: Any = self.hub.connect(address)
        channel.emulated, channel.training = self.hub.me, False
        channel.send(Hello(role, index, f"{role}{index}" if role == "server" else ""))
        channel.send(Ready(role, index))
        return channel

    def look(self) -> tuple[int, int]:
        """Resident bytes, and open file descriptors, of the coordinator."""
        resident = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return resident, len(os.listdir(f"/proc/{self.pid}/fd"))

    def play(self) -> None:
        """Answer messages until the coordinator says stop."""
        while True:
            for channel, frame in self.hub.poll(0.001):
                if frame.kind == frames.CLOSED or not self._act(channel, decode(frame)):
                    return

    def _act(self, channel: Any, message: Any) -> bool:
        self.sent[type(message).__name__] += channel.training
        if isinstance(message, Granted):
            self._granted(channel, message)
        elif isinstance(message, OrderStep):
            self.version = max(self.version, message.order.step + 1)
        elif isinstance(message, BeginPhase):
            channel.training = message.training
        elif (answer := reply(message, channel.emulated)) is not None:
            channel.send(answer)
        return not isinstance(message, Stop)

    def _granted(self, worker: Any, grant: Granted) -> None:
        if not worker.training:
            worker.send(*predicted(grant, worker.emulated.index))
            worker.send(TakeBatch(worker.emulated.index))
            return
        self.ended = time.perf_counter()
        used = process_cpu(self.pid) or 0.0 if not self.gradients or self.gradients % 256 == 0 else self.cpu[1]
        if not self.gradients:
            self.began, self.cpu, self.full = self.ended, (used, used), self.look()
        self.cpu = (self.cpu[0], used)
        self.gradients += 1
        if not grant.samples:
            return
        for shard, server in enumerate(self.servers):
            server.send(staged(grant, shard, worker.emulated.index))


def run(overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run a cell; return gradients a second, and the coordinator's CPU, memory and file descriptors."""
    cfg = compose([*TINY, *overrides, f"run_dir={folder}"])
    batches = int(cfg.tracking.tags["batches"])
    cfg = compose([*TINY, *overrides, f"run_dir={folder}", f"data.rows_per_day={batches}"])
    path, key = prepare(cfg.data), new_key()
    (folder / "logs").mkdir()
    with listen("unix:") as listener:
        boot = StartupDocument(
            "coordinator", 0, key.hex(), "", str(folder), str(path), to_dict(cfg), listener.fileno()
        )  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-m", "gbactl.nodes.child_main", str(os.getpid())],
            stdin=subprocess.PIPE, pass_fds=[listener.fileno()],
        )  # fmt: skip
        try:
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(boot.dumps())
            launcher = SocketHub(key, Peer("launcher", 0))
            launcher.patience = 120.0
            launcher.connect(address_of(listener)).send(Hello("launcher", 0, ""))
            nodes = EmulatedNodes(key, address_of(listener), cfg.cluster.workers, cfg.cluster.servers, process.pid)
            nodes.play()
        finally:
            process.kill()
            process.wait()
    counted = 256 * (nodes.gradients // 256)
    members = cfg.cluster.workers + cfg.cluster.servers
    return {
        "rate": nodes.gradients / (nodes.ended - nodes.began), "us": 1e6 * (nodes.cpu[1] - nodes.cpu[0]) / counted,
        "joining_ms": 1e3 * nodes.joining / members, "kb_a_node": (nodes.full[0] - nodes.empty[0]) / members / 1e3,
        "resident_mb": nodes.full[0] / 1e6, "descriptors": nodes.full[1], "gradients": nodes.gradients,
        "messages": nodes.sent.total() / nodes.gradients + cfg.cluster.servers,
    }  # fmt: skip
