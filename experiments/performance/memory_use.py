"""Memory benchmark: a server's resident bytes against the size of rows and optimizer, a worker's against table size.

The server is a real one, started as the launcher does it. This process emulates its coordinator and its only
worker and pushes a gradient for every row, so that no page of the state stays untouched.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from bench_lines import Line
from plain_loop import prepared
from ratio_sides import Bench, SideError

from gbactl.config import to_dict
from gbactl.launch.hydra_config import compose
from gbactl.store.gradient_slice import StepOrder
from gbactl.wire import frames
from gbactl.wire.auth import Peer, new_key
from gbactl.wire.messages import (
    Ack,
    Barrier,
    BeginPhase,
    Hello,
    Inspect,
    Inspected,
    InstallDense,
    OrderStep,
    Pull,
    Push,
    Reached,
    Ready,
    Rows,
    Staged,
    unpack,
)
from gbactl.wire.node_connections import SocketHub
from gbactl.wire.startup import StartupDocument

CHUNK, MEMBERS, DENSE = 13_312, 4, 493_000
WIDTH = 16
PATIENCE_SECONDS = 60.0
STATE = ("table", "moments", "counts")


def overrides(rows: int) -> list[str]:
    """Overrides for a table of `rows` x 16, almost no data, one server."""
    return [
        "data=synthetic", "data.days=2", "data.rows_per_day=64", "data.numeric=1", "data.fields=2",
        f"data.max_cardinality={rows - 10}", f"model.dim={WIDTH - 1}", "mode=async", "cluster.servers=1",
    ]  # fmt: skip


def resident(pid: int) -> int:
    """Resident bytes of a process without its shared memory: the payload slots are gradient buffers."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return found["RssAnon"] + found["RssFile"]


class Served:
    """Server process with an emulated coordinator and one emulated worker."""

    def __init__(self, rows: int, folder: Path) -> None:
        cfg, self.rows = compose(overrides(rows)), rows
        (folder / "logs").mkdir()
        key = new_key()
        with ExitStack() as stack:
            self.coordinating = stack.enter_context(_Hub(key, Peer("coordinator", 0), bind="127.0.0.1"))
            self.working = stack.enter_context(_Hub(key, Peer("worker", 0)))
            address = self.coordinating.hub.address
            path = prepared(overrides(rows))
            boot = StartupDocument("server", 0, key.hex(), address, str(folder), path, to_dict(cfg))
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gbactl.nodes.child_main", str(os.getpid())], stdin=subprocess.PIPE
            )
            stack.callback(self._end)
            assert self.process.stdin is not None
            with self.process.stdin as pipe:
                pipe.write(boot.dumps())
            self.control, hello = self.coordinating.expect(Hello)
            push = 4 * CHUNK * (WIDTH + 1) + 4 * DENSE
            self.data = self.working.hub.connect(hello.address, (push, push), Peer("server", 0))
            self.data.send(InstallDense(DENSE, 0), np.zeros(DENSE, np.float32).view(np.uint8))
            self.working.expect(Ack)
            self.coordinating.expect(Ready)
            self._stack = stack.pop_all()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Stop the server."""
        self._stack.close()

    def touch_every_row(self) -> None:
        """Take steps of four gradients that cover the table."""
        self.control.send(BeginPhase(1, True, "gba", 0, 0, 64, 1, 0, True, True))
        self._settle(0)
        batch = step = 0
        for low in range(0, self.rows, CHUNK * MEMBERS):
            members = []
            for start in range(low, min(self.rows, low + CHUNK * MEMBERS), CHUNK):
                self._push(batch, start, min(self.rows, start + CHUNK))
                members.append((batch, 1.0))
                batch += 1
            count = float(len(members))
            self.control.send(OrderStep(1, StepOrder(step, tuple(members), count, count), False))
            step += 1
        self._settle(step)

    def _settle(self, version: int) -> None:
        """Wait until the server has reached this version."""
        self.control.send(Barrier(version))
        self.coordinating.expect(Reached)

    def _push(self, batch: int, low: int, high: int) -> None:
        count = high - low
        out = self.data.reserve(4 * (count * (WIDTH + 1) + DENSE))
        values = out.view(np.float32)
        out[: 4 * count].view(np.int32)[:] = np.arange(low, high, dtype=np.int32)
        values[count:] = 1e-3
        self.data.send(Push(1, batch, count, DENSE, 0.0, 0.0, 1.0, 0, 0), out)
        self.coordinating.expect(Staged)
        self._pull(batch)

    def _pull(self, batch: int) -> None:
        """Pull one row, like a worker between its pushes: the answer frees the slots that the server has used."""
        out = self.data.reserve(4)
        out.view(np.int32)[:] = 0
        self.data.send(Pull(0, batch, 1, False, 0, -1), out)
        self.working.expect(Rows)

    def weigh(self) -> tuple[int, dict[str, int]]:
        """Resident bytes of the server, and its own account of them."""
        bytes_now = resident(self.process.pid)
        self.control.send(Inspect("memory"))
        found: Inspected = self.coordinating.expect(Inspected)[1]
        return bytes_now, found.bytes


class _Hub:
    """Message hub that can wait for one kind of message."""

    def __init__(self, key: bytes, me: Peer, bind: str | None = None) -> None:
        self.hub = SocketHub(key, me, bind=bind)

    def __enter__(self) -> _Hub:
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.close()

    def expect(self, kind: type) -> tuple[Any, Any]:
        """Receive the next frame as (channel, message); it must be of `kind`."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            for channel, frame in self.hub.poll(1.0):
                if frame.kind == frames.CLOSED:
                    raise SideError("the server that was to be weighed is gone")
                message = unpack(frame.kind, frame.descriptor)
                frame.release()
                if isinstance(message, kind):
                    return channel, message
        raise SideError(f"no {kind.__name__} came from the server that was to be weighed")


def weigh(rows: int) -> tuple[int, dict[str, int]]:
    """Resident bytes of a server after a step on all of its `rows` rows, and its own account of its memory by kind."""
    with tempfile.TemporaryDirectory(prefix="gbactl-memory-") as folder:
        served = Served(rows, Path(folder))
        try:
            served.touch_every_row()
            return served.weigh()
        finally:
            served.close()


def server_lines(sizes: list[int]) -> list[Line]:
    """Measure one line for each table size."""
    empty = weigh(20)[0]
    found = []
    for rows in sizes:
        bytes_now, account = weigh(rows)
        state, buffers = sum(account[kind] for kind in STATE), account["scratch"] + account["staged"]
        ratio = (bytes_now - buffers - empty) / state
        note = (
            f"{bytes_now / 1e6:,.0f} MB, empty {empty / 1e6:,.0f}, rows and Adam {state / 1e6:,.0f}, "
            f"gradient buffer {buffers / 1e6:.1f}"
        )
        what = f"server's memory, net / rows and optimizer, {rows / 1e6:g} M rows"
        found.append(Line(f"memory-{rows // 1_000_000}m", what, [ratio], 1.15, at_least=False, note=note))
    return found


def worker_line(bench: Bench, large: int) -> Line:
    """Measure the peak memory of workers with a large table against that with a small one."""
    peaks, sizes = [], []
    for cardinality in (1_000, large):
        result = bench.train("async", 2, 512, f"data.max_cardinality={cardinality}", rows=40_000)
        memory = result["memory"]
        peaks.append(max(v["peak_rss"] for k, v in memory.items() if k.startswith("W")))
        sizes.append(memory["S0"]["table"])
    small, big = (
        f"{peak / 1e6:,.0f} MB beside a table of {size / 1e6:,.1f} MB" for peak, size in zip(peaks, sizes, strict=True)
    )
    what = "worker's peak memory, large / small table"
    return Line("worker-memory", what, [peaks[1] / peaks[0]], 1.05, at_least=False, note=f"{big}; {small}")
