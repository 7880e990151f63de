"""Peer of `async`: an asynchronous parameter server on torch.distributed.rpc (TensorPipe).

    python experiments/performance/peers/rpc_peer.py --workers 4 --seconds 6 data=synthetic ...

One server process, `--workers` worker processes, loopback. Same model, data, distinct rows, row and dense
kernels as gbactl. The rows of the next batch are pulled while one computes, pushes do not block, the
server holds a lock only around its kernels. `--wait` is the parameter server of torch's own tutorial: one blocking
call a batch pushes the gradient and pulls the next parameters, and nothing is in flight while a worker computes.
Prints the samples per second of all workers together.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from process_group import rates  # noqa: E402  (a script of the parent folder, not a package)

SERVER, THREADS = "server", 2  # threads that answer calls in each process
_state: Any = None


class State:
    """Parameters of the server, with their lock."""

    def __init__(self, path: str, overrides: list[str]) -> None:
        from plain_loop import Trainee

        from gbactl.store.dense import DenseBlock, DenseSpec

        me = Trainee(path, overrides, 0, 1)
        self.kernels, self.rows = me.kernels, me.table()
        spec = DenseSpec(me.flat.params, me.flat.buffers)
        self.dense = DenseBlock(me.flat.initial(), spec, me.dense_optimizer)
        self.lock = threading.Lock()


def pull(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows float32[U, W] and the dense vector (runs on the server)."""
    table = _state.rows.table
    rows, dense = torch.empty(len(index), table.shape[1]), torch.empty(len(_state.dense.value))
    with _state.lock:
        _state.kernels.gather(table, index.numpy(), rows.numpy())
        dense.numpy()[:] = _state.dense.value
    return rows, dense


def push(index: torch.Tensor, rows: torch.Tensor, dense: torch.Tensor) -> None:
    """Take one optimizer step from one gradient (runs on the server)."""
    with _state.lock:
        _state.rows.apply([(index.numpy(), rows.numpy(), 1.0)], 1.0, 1.0)
        _state.dense.apply(dense.numpy(), 1.0)


def push_pull(
    index: torch.Tensor, rows: torch.Tensor, dense: torch.Tensor, wanted: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Push and pull in one message (runs on the server)."""
    push(index, rows, dense)
    return pull(wanted)


def computed(
    me: Any, data: Any, unique: Any, rows: torch.Tensor, dense: torch.Tensor, key: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute a gradient from pulled values: distinct rows, their gradients float32[U, W], the dense gradient."""
    me.flat.load(dense.numpy())
    me.kernels.gather(rows.numpy(), unique.inverse, me.emb)
    of_rows = me.gradient(data, key)
    sums, gradient = torch.empty(len(unique.index), me.width), torch.empty(me.flat.size)
    me.kernels.segment_sum(of_rows, unique.inverse, sums.numpy())
    me.flat.gradient_into(gradient.numpy())
    return torch.from_numpy(unique.index), sums, gradient


class Waiting:
    """Worker that waits for its server, as in torch's tutorial."""

    def __init__(self, rpc: Any, path: str, overrides: list[str], rank: int, size: int) -> None:
        from plain_loop import Trainee

        self.rpc, self.me = rpc, Trainee(path, overrides, rank, size)
        self.data, self.unique, self.next = None, None, 0
        self._ahead()
        self.rows, self.dense = rpc.rpc_sync(SERVER, pull, (torch.from_numpy(self.unique.index),))

    def _ahead(self) -> None:
        self.data = self.me.feed(self.next)
        self.unique: Any = self.me.unique(self.data)
        self.next += 1

    def step(self) -> None:
        """Train on one batch."""
        index, sums, gradient = computed(self.me, self.data, self.unique, self.rows, self.dense, self.next)
        self._ahead()
        wanted = torch.from_numpy(self.unique.index)
        self.rows, self.dense = self.rpc.rpc_sync(SERVER, push_pull, (index, sums, gradient, wanted))

    def finish(self) -> None:
        """Do nothing: no call is in flight."""


class Worker:
    """Worker that pulls one batch ahead: rows are as stale as gbactl's with prefetch."""

    def __init__(self, rpc: Any, path: str, overrides: list[str], rank: int, size: int) -> None:
        from plain_loop import Trainee

        self.rpc, self.me = rpc, Trainee(path, overrides, rank, size)
        self.pushes: deque[Any] = deque()
        self.next = 0
        self.data, self.unique = self._prepare()
        self.pulled = self._pull()

    def _pull(self) -> Any:
        return self.rpc.rpc_async(SERVER, pull, (torch.from_numpy(self.unique.index),))

    def _prepare(self) -> tuple[Any, Any]:
        data = self.me.feed(self.next)
        self.next += 1
        return data, self.me.unique(data)

    def step(self) -> None:
        """Train on one batch."""
        data, unique, pulled = self.data, self.unique, self.pulled
        self.data, self.unique = self._prepare()
        rows, dense = pulled.wait()
        self.pulled = self._pull()
        gradient = computed(self.me, data, unique, rows, dense, self.next)
        self.pushes.append(self.rpc.rpc_async(SERVER, push, gradient))
        if len(self.pushes) > 2:
            self.pushes.popleft().wait()

    def finish(self) -> None:
        """Wait for the calls in flight."""
        for future in (*self.pushes, self.pulled):
            future.wait()


def one(
    rank: int, path: str, overrides: list[str], options: argparse.Namespace, meeting: str,
    barrier: Any, out: Any,
) -> None:  # fmt: skip
    """Serve as rank 0; as another rank train until the time is up and put samples per second into `out`."""
    import torch.distributed.rpc as rpc
    from plain_loop import samples_per_second

    global _state
    warnings.filterwarnings("ignore", message="You are using a Backend")
    os.environ.update(TP_SOCKET_IFNAME="lo", GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    if rank == 0:
        _state = State(path, overrides)
    backend = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=THREADS, init_method=f"file://{meeting}", rpc_timeout=60
    )
    name = f"W{rank}" if rank else SERVER
    rpc.init_rpc(name, rank=rank, world_size=options.workers + 1, rpc_backend_options=backend)
    if rank:
        kind = Waiting if options.wait else Worker
        worker = kind(rpc, path, overrides, rank - 1, options.workers)
        out.put(samples_per_second(lambda _: worker.step(), worker.me.batch, options.seconds, barrier.wait))
        worker.finish()
    rpc.shutdown()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--wait", action="store_true", help="pull and push in one call, and wait for it")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    from plain_loop import prepared

    path = prepared(options.overrides)
    with tempfile.TemporaryDirectory(prefix="gbactl-rpc-") as folder:
        given = [(r, path, options.overrides, options, f"{folder}/store") for r in range(options.workers + 1)]
        print(f"{sum(rates(one, given, options.seconds, silent=1)):.0f}")


if __name__ == "__main__":
    sys.exit(main())
