"""All-reduce on Horovod (its Gloo operations over TCP), and Horovod's rendezvous behind a per-run secret.

Horovod is told not to fuse (HOROVOD_FUSION_THRESHOLD=0): fusion groups whatever happens to be ready, so it would change
the order of sums from run to run. Cost: a background thread wakes every cycle, so a bucket waits on average half a
cycle to be noticed, and a short cycle steals the cores from the compute.

Rendezvous. Horovod's own RendezvousServer binds every interface and answers anyone. This one binds ONE address
(loopback by default) and answers only requests whose path starts with the run's secret; all others get 403, are counted
and change nothing. Horovod's C++ client builds its URL as `http://$HOROVOD_GLOO_RENDEZVOUS_ADDR:$PORT/scope/key` and
splits host, port and path at the first `/`, so an address of `127.0.0.1:4711/SECRET` makes it ask for
`/SECRET:4711/scope/key` of port 4711: that is how the secret travels.

Remaining risks: the ring itself (Gloo over TCP) is neither authenticated nor encrypted. It listens on the interface of
the bind address, loopback unless told otherwise. Horovod's first rings do so; the ring of the process set, which makes
the sums, ignores HOROVOD_GLOO_IFACE in 0.28.1 and listens where the host's own name points to. An attacker would have
to guess an ephemeral port and win a race. The secret is readable by the same user in /proc. The rendezvous costs one
thread in the launcher, idle after the ring has formed, and one for every open request, whose number is bounded
(`RequestLimit`).
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from gbactl.collective.base import RankSlot, Rendezvous, Ring, RingHandle
from gbactl.collective.gloo import FORMING_SECONDS, address_of_own_name, interface_of, survive_thread_errors
from gbactl.errors import ClusterError, ConfigError, MissingDependencyError

POLL_SECONDS = 1e-4
PATIENCE_SECONDS = 1.0  # limit of a wait once a rank has failed
FIRST_SLEEP, ADAPTING, LONGEST_USUAL = 0.75, 0.1, 0.02
HOW_TO_GET_IT = (
    "collective=horovod needs Horovod, which cannot be imported here ({reason}); type `make install` in a "
    "checkout or `python -m gbactl.install.horovod` elsewhere (it builds the extra gbactl[horovod]), or use "
    "collective=gloo."
)


def missing_horovod_error(reason: BaseException | str) -> MissingDependencyError:
    """Build the error for a machine without Horovod."""
    first = (str(reason).splitlines() or [type(reason).__name__])[0]
    return MissingDependencyError(HOW_TO_GET_IT.format(reason=first.rstrip(".")))


def import_horovod() -> Any:
    """Import horovod.torch. Raises MissingDependencyError, also for a build against another torch."""
    try:
        import horovod.torch as hvd
    except Exception as error:  # a wheel built for another torch raises many types of errors
        raise missing_horovod_error(error) from error
    if not hasattr(hvd, "init"):  # horovod ignores a missing library and continues without it
        raise missing_horovod_error("its compiled part is missing")
    return hvd


class HorovodCollective(Ring):
    """Rank of a Horovod group, one instance a process."""

    def __init__(self, item: int) -> None:
        super().__init__(item)
        self._hvd = import_horovod()
        survive_thread_errors()
        try:
            self._hvd.init()
        except Exception as error:
            raise ClusterError("Horovod could not form its ring; see the worker's log.") from error
        self.rank = self._hvd.rank()
        self.size = self._hvd.size()
        self._open = True
        self._abandoned: float | None = None
        self._usual_seconds: dict[str, float] = {}

    def abandon(self) -> None:
        self._abandoned = time.monotonic()

    def _begin(self, name: str, tensor: Any) -> Any:
        return self._hvd.allreduce_async_(tensor, name=name, op=self._hvd.Sum)

    def _finish(self, handle: RingHandle) -> None:
        """Wait for a sum: sleep for most of the usual time, then poll.

        Horovod's own wait sleeps a whole millisecond at a time, and continuous polling takes the core from the ranks
        that sum."""
        began = time.perf_counter()
        if not self._hvd.poll(handle.work):
            time.sleep(FIRST_SLEEP * self._usual_seconds.get(handle.name, 0.0))
        while not self._hvd.poll(handle.work):
            time.sleep(POLL_SECONDS)
            if self._abandoned is not None and time.monotonic() > self._abandoned + PATIENCE_SECONDS:
                raise TimeoutError
        self._hvd.synchronize(handle.work)
        self._update_usual(handle.name, time.perf_counter() - began)

    def _update_usual(self, name: str, seconds: float) -> None:
        """Update the average duration of waits; a wait prolonged by a straggler counts as LONGEST_USUAL."""
        usual = self._usual_seconds.get(name, 0.0)
        self._usual_seconds[name] = usual + ADAPTING * (min(seconds, LONGEST_USUAL) - usual)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._hvd.shutdown()


MAX_BODY = 1 << 20
MOST_VISITORS = 128
VISIT_SECONDS = 10.0  # limit of one request, however slowly it is written


def require_own_name() -> None:
    """Raise ConfigError if this machine's host name resolves to no address on which Horovod could listen.

    The ring that sums would listen there, and its process would end without a message."""
    if not address_of_own_name():
        name = socket.gethostname()
        raise ConfigError(
            f"This machine's own name {name} has no address here, and collective=horovod listens where it points to; "
            f"put the line `127.0.0.1 {name}` into /etc/hosts, or type collective=shm."
        )


def slots_on_this_host(size: int, interface: str) -> list[RankSlot]:
    """Return the RankSlot of every rank of a group with all ranks on this host."""
    return [RankSlot("localhost", rank, size, 0, 1, size, interface) for rank in range(size)]


def _handler(secret: str, refuse: Any) -> Any:
    """Create the HTTP request handler class that accepts only requests with the secret."""
    from horovod.runner.http.http_server import RendezvousHandler

    class Handler(RendezvousHandler):  # type: ignore[misc]
        path: str

        def _guarded(self, method: Any) -> None:
            parts = self.path.split("/")
            given = parts[1].rpartition(":")[0] if len(parts) == 4 else ""
            length = self.headers.get("Content-Length", "0")
            allowed = hmac.compare_digest(given.encode(), secret.encode())
            if not allowed or not length.isdigit() or int(length) > MAX_BODY:
                refuse()
                self.close_connection = True
                self.send_status_code(403)
                return
            self.path = "/".join(["", *parts[2:]])
            method(self)

        def do_GET(self) -> None:
            self._guarded(RendezvousHandler.do_GET)

        def do_PUT(self) -> None:
            self._guarded(RendezvousHandler.do_PUT)

        def do_DELETE(self) -> None:
            self._guarded(RendezvousHandler.do_DELETE)

        def do_HEAD(self) -> None:  # the base class would serve files
            refuse()
            self.send_status_code(403)

    return Handler


def _server(bind: str, handler: Any, visitors: RequestLimit) -> Any:
    """Create Horovod's HTTP server on address `bind`, at a free port, with a limit on open requests."""
    from horovod.runner.http.http_server import RendezvousHTTPServer

    class Server(RendezvousHTTPServer):  # type: ignore[misc]
        daemon_threads = True
        request_queue_size = 128  # the base class has 5, with which many ranks would wait for seconds

        def server_bind(self) -> None:
            socketserver.TCPServer.server_bind(self)  # HTTPServer.server_bind asks the name service, which can hang

        def process_request(self, request: Any, client_address: Any) -> None:
            visitors.register(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            visitors.unregister(request)
            super().shutdown_request(request)

        def service_actions(self) -> None:
            visitors.close_overdue()

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore a client that disconnects during a request; the base class would print a stack trace."""

    try:
        return Server((bind, 0), handler, 0)
    except OSError as error:
        reason = error.strerror
        raise ClusterError(f"cannot listen on {bind} ({reason}); type cluster.bind=127.0.0.1.") from error


class HorovodRendezvous(Rendezvous):
    """Rendezvous of Horovod's ranks: its RendezvousServer on one address, behind a per-run secret.

    `rank_slots`: rank -> seat; None: all on this host."""

    name = "horovod"

    def __init__(
        self, size: int, bind: str, cycle_time_ms: float, rank_slots: Sequence[RankSlot] | None = None
    ) -> None:
        try:
            from horovod.runner.http.http_server import RendezvousServer
        except ImportError as error:
            raise missing_horovod_error(error) from error
        super().__init__(size)
        self.bind, self.cycle_time_ms = bind, cycle_time_ms
        self.rank_slots = list(rank_slots or slots_on_this_host(size, interface_of(bind)))
        self.secret = secrets.token_hex(16)
        self._lock = threading.Lock()
        self._server: Any = RendezvousServer()
        self.visitors = RequestLimit(self._refuse)
        self._server._httpd = httpd = _server(bind, _handler(self.secret, self._refuse), self.visitors)
        self.port: int = httpd.server_address[1]
        self._server.init(self.rank_slots)
        self._server._listen_thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        self._server._listen_thread.start()

    def _refuse(self) -> None:
        with self._lock:
            self.refused += 1

    def own(self, rank: int) -> dict[str, str]:
        """Return a rank's environment variables; they disable fusion and autotuning for deterministic sums."""
        seat = self.rank_slots[rank]
        values = {
            "HOROVOD_RANK": rank,
            "HOROVOD_SIZE": self.size,
            "HOROVOD_LOCAL_RANK": seat.local_rank,
            "HOROVOD_LOCAL_SIZE": seat.local_size,
            "HOROVOD_CROSS_RANK": seat.cross_rank,
            "HOROVOD_CROSS_SIZE": seat.cross_size,
            "HOROVOD_HOSTNAME": seat.hostname,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": seat.interface,
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": f"{self.bind}:{self.port}/{self.secret}",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": self.port,
            "HOROVOD_GLOO_TIMEOUT_SECONDS": FORMING_SECONDS,
            "HOROVOD_FUSION_THRESHOLD": 0,
            "HOROVOD_CYCLE_TIME": self.cycle_time_ms,
            "HOROVOD_AUTOTUNE": 0,
            "HOROVOD_HIERARCHICAL_ALLREDUCE": 0,
            "HOROVOD_ELASTIC": 0,
            "HOROVOD_LOG_LEVEL": "error",
        }
        return {key: str(value) for key, value in values.items()}

    def release(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.stop()
            server._httpd.server_close()


class RequestLimit:
    """Limit on open rendezvous requests: beyond it the oldest is closed, and `refuse` is called."""

    def __init__(self, refuse: Callable[[], None], most: int = MOST_VISITORS, seconds: float = VISIT_SECONDS) -> None:
        self.most, self.seconds, self._refuse = most, seconds, refuse
        self._lock = threading.Lock()
        self._deadlines: dict[socket.socket, float] = {}  # deadlines, in order of arrival

    def register(self, visitor: socket.socket) -> None:
        """Register a new connection; at the limit, close the oldest connection."""
        with self._lock:
            if len(self._deadlines) >= self.most:
                self._shut_down(next(iter(self._deadlines)))
            self._deadlines[visitor] = time.monotonic() + self.seconds

    def unregister(self, visitor: socket.socket) -> None:
        """Unregister a connection whose request was answered."""
        with self._lock:
            self._deadlines.pop(visitor, None)

    def close_overdue(self) -> None:
        """Close all connections whose deadline has passed."""
        now = time.monotonic()
        with self._lock:
            for visitor in [visitor for visitor, deadline in self._deadlines.items() if deadline <= now]:
                self._shut_down(visitor)

    def _shut_down(self, visitor: socket.socket) -> None:
        """Shut a connection down, which ends the thread that reads from it."""
        del self._deadlines[visitor]
        self._refuse()
        with contextlib.suppress(OSError):
            visitor.shutdown(socket.SHUT_RDWR)
