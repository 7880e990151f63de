"""All-reduce on torch.distributed (Gloo), the alternative to Horovod that needs no build.

A bucket costs one ring all-reduce, which torch's own threads run without a polling cycle. The ranks find each other
through a file in the run's private directory, never through a port that anyone can reach.

A connection that breaks while a thread of Gloo's writes to it does not end the process (this covers Horovod's Gloo).
Gloo's event loop rethrows the exception that it has already passed to all who wait for that connection (Gloo's issue
168), and C++ ends a process for that: it ended three of thirteen workers whose host's connections were reset. Here that
thread blocks for ever instead, and the worker gets the error. This costs nothing until a connection breaks.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import logging
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gbactl.collective.base import Rendezvous, Ring, RingHandle
from gbactl.errors import ClusterError

FORMING_SECONDS = 30  # time in which a ring must form
PATIENCE = datetime.timedelta(seconds=1)  # interval at which a wait checks whether it was given up
STEP_TIMEOUT = datetime.timedelta(hours=1)  # a straggler is no failure; a failed peer is noticed at once
_HANDLER = ctypes.CFUNCTYPE(None)
_handlers: list[Any] = []  # keeps alive what C++ points to
log = logging.getLogger(__name__)


class GlooRendezvous(Rendezvous):
    """Rendezvous by a store file with a random name in the run directory (0700), and a per-run key inside it."""

    name = "gloo"

    def __init__(self, size: int, bind: str, run_dir: Path) -> None:
        super().__init__(size)
        self.interface = interface_of(bind)
        self.secret = secrets.token_hex(16)
        folder = run_dir / "rendezvous"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob("gloo-*"):  # left by a launcher that was killed; no other one uses this directory
            left.unlink()
        self.path = folder / f"gloo-{secrets.token_hex(4)}"

    def own(self, rank: int) -> dict[str, str]:
        return {
            "GBACTL_GLOO_STORE": str(self.path.absolute()),
            "GBACTL_GLOO_KEY": self.secret,
            "GLOO_SOCKET_IFNAME": self.interface,
        }

    def release(self) -> None:
        self.path.unlink(missing_ok=True)


class GlooCollective(Ring):
    """Rank of a Gloo group (torch's default process group), one instance a process."""

    def __init__(self, environment: Mapping[str, str], item: int) -> None:
        import torch.distributed as dist
        from torch._C._distributed_c10d import FileStore, PrefixStore

        super().__init__(item)
        self._dist = dist
        self.rank = int(environment["GBACTL_RANK"])
        self.size = int(environment["GBACTL_SIZE"])
        survive_thread_errors()
        store = FileStore(environment["GBACTL_GLOO_STORE"], self.size)
        store.set_timeout(datetime.timedelta(seconds=FORMING_SECONDS))
        try:
            dist.init_process_group(
                "gloo",
                store=PrefixStore(environment["GBACTL_GLOO_KEY"], store),
                rank=self.rank,
                world_size=self.size,
                timeout=STEP_TIMEOUT,
            )
        except Exception as error:
            raise ClusterError("torch.distributed could not form its ring; see the worker's log.") from error
        self._open = True
        self._abandoned = False

    def abandon(self) -> None:
        self._abandoned = True

    def _begin(self, name: str, tensor: Any) -> Any:
        return self._dist.all_reduce(tensor, async_op=True)

    def _finish(self, handle: RingHandle) -> None:
        while True:
            try:
                handle.work.wait(PATIENCE)
                return
            except Exception:
                if self._abandoned or handle.work.is_completed():
                    raise

    def close(self) -> None:
        """Leave the process group, also after a failure: torch aborts a process that exits without leaving."""
        if self._open:
            self._open = False
            self._dist.destroy_process_group()


class _TypeInfo(ctypes.Structure):
    """Layout of std::type_info, the same for every compiler on Linux."""

    _fields_ = (("methods", ctypes.c_void_p), ("name", ctypes.c_char_p))


def survive_thread_errors() -> None:
    """Install a handler that keeps this process alive when a Gloo thread throws; no effect without libstdc++."""
    if _handlers:
        return
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        replace = library["_ZSt13set_terminatePFvvE"]
        current = library["__cxa_current_exception_type"]
    except (OSError, AttributeError):
        return
    current.restype = ctypes.POINTER(_TypeInfo)
    replace.argtypes, replace.restype = (_HANDLER,), _HANDLER
    _handlers.append(_HANDLER(lambda: _ended(current, _handlers[1])))
    _handlers.append(replace(_handlers[0]))


def _ended(current: Callable[[], Any], usual: Callable[[], None]) -> None:
    """Handle an uncaught C++ exception: block the thread for ever if it is Gloo's, else end the process."""
    thrown = current()
    name = thrown.contents.name.decode() if thrown else ""
    if "4gloo" in name and threading.get_ident() != threading.main_thread().ident:
        log.warning("a thread of Gloo's lost its connection (%s) and stands still", name)
        threading.Event().wait()
    usual()


def address_of_own_name() -> str:
    """Return the address of this machine's own name that Gloo would use: the first that can be bound, or ""."""
    with contextlib.suppress(OSError):
        for family, kind, protocol, _, where in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
                return str(where[0])
    return ""


def interface_of(address: str) -> str:
    """Return the network interface that has the IPv4 `address`. Raises ClusterError."""
    import psutil

    for name, found in psutil.net_if_addrs().items():
        if address in (each.address for each in found if each.family == socket.AF_INET):
            return str(name)
    raise ClusterError(f"cluster.bind={address} is no address of this machine; type cluster.bind=127.0.0.1.")
