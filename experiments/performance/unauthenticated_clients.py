"""Training while unauthenticated clients connect to every listening port and stay silent or send single bytes.

A thousand clients a port connect as soon as it listens. A rejected client connects again, fifty a tick at most, or
stays away. They run in a thread of the benchmark: their CPU use is included in the ratio, and reported as
`crowd_cores`.
"""

from __future__ import annotations

import resource
import socket
import threading
import time
from pathlib import Path

from ratio_sides import Bench, Side, steady

BIND = "127.0.0.77"  # a loopback address that nothing else uses
EACH, AGAIN, TICK_SECONDS = 1000, 50, 0.2
_LISTENING = "0A"


def doors(address: str) -> list[int]:
    """Listening ports at an address of this host.

    The kernel lists listening sockets first, and only those are read, because thousands of closed connections stay in
    the list for a minute.
    """
    wanted, found = socket.inet_aton(address)[::-1].hex().upper(), []
    with Path("/proc/net/tcp").open() as table:
        next(table)
        for row in map(str.split, table):
            if row[3] != _LISTENING:
                break
            where, port = row[1].split(":")
            if where == wanted:
                found.append(int(port, 16))
    return found


class Crowd:
    """Unauthenticated clients at every port of BIND while the context lasts.

    At most `again` rejected clients a tick and port connect again.
    """

    def __init__(self, each: int = EACH, again: int = AGAIN) -> None:
        self.each, self.again = each, again
        self.came = 0
        self.cores = 0.0  # average share of a core it used; known at the end
        self._standing: dict[int, list[socket.socket]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Crowd:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for standing in self._standing.values():
            for each in standing:
                each.close()

    def _run(self) -> None:
        began, used = time.monotonic(), time.thread_time()
        while not self._over.wait(TICK_SECONDS):
            for port in doors(BIND):
                first = port not in self._standing
                standing = self._standing.setdefault(port, [])
                standing[:] = [each for number, each in enumerate(standing) if self._stands(each, number % 2 == 0)]
                missing = self.each - len(standing)
                standing += [self._comes(port) for _ in range(missing if first else min(missing, self.again))]
        self.cores = (time.thread_time() - used) / (time.monotonic() - began)

    def _comes(self, port: int) -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((BIND, port))
        self.came += 1
        return sock

    @staticmethod
    def _stands(sock: socket.socket, slow: bool) -> bool:
        """Whether a client is still connected; a slow one sends one more byte."""
        try:
            if slow:
                sock.send(b"x")
            while sock.recv(64):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        sock.close()
        return False


def crowded(bench: Bench, mode: str, workers: int, batch: int, again: int = AGAIN) -> Side:
    """Side that trains with gbactl over TCP while unauthenticated clients connect."""

    def run() -> dict[str, float]:
        with Crowd(again=again) as crowd:
            result = bench.train(mode, workers, batch, "cluster.transport=tcp", f"cluster.bind={BIND}")
        told = {"came": crowd.came, "refused": result["refused_frames"], "crowd_cores": crowd.cores}
        return {**steady(result), **told}

    return run
