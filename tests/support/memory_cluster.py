"""A whole cluster in threads of one process, on the in-memory twins of sockets and all-reduce."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gbactl.collective.base import ring_item
from gbactl.config import RunConfig, to_dict
from gbactl.coordinator.message_loop import Coordinator
from gbactl.coordinator.state import JournalState
from gbactl.data.dataset import open_dataset
from gbactl.errors import PeerGoneError, WireError
from gbactl.nodes.role_setup import header, serve, wrapped_hub
from gbactl.nodes.worker_process import work
from gbactl.wire.auth import Peer
from gbactl.wire.channel_interface import Hub
from gbactl.wire.frames import CLOSED
from gbactl.wire.messages import Event, Hello, unpack
from gbactl.wire.reliable import with_message_faults
from gbactl.wire.startup_document import StartupDocument
from tests.support.in_memory import MemoryHub
from tests.support.in_memory_collective import MemoryGroup

LIMIT_SECONDS = 60.0


class Killed(Exception):
    """Raised in a node's thread, it is gone as if it had been killed."""


class Node(MemoryHub):
    """A node's end, until all that belongs to a failed run is killed, as the launcher does."""

    def __init__(self, network: dict[str, MemoryHub], me: Peer, failed: threading.Event) -> None:
        super().__init__(network, me)
        self._failed = failed

    def connect(self, *args: Any, **more: Any) -> Any:
        """See MemoryHub. Raises Killed."""
        self._look()
        return super().connect(*args, **more)

    def poll(self, timeout: float | None) -> Any:
        """See MemoryHub. Raises Killed."""
        self._look()
        found = super().poll(timeout)
        self._look()
        return found

    def _look(self) -> None:
        if self._failed.is_set():
            raise Killed


def run_in_memory(
    cfg: RunConfig, data: Path, run_dir: Path, wishes: Sequence[Event] = (), events: list[Event] | None = None
) -> dict[str, Any]:
    """Train as `cfg` says; returns the result event's fields. Raises what any node raised.

    `wishes` come from the launcher at the start; `events` gets everything that it hears."""
    run_dir.mkdir(parents=True, exist_ok=True)
    network: dict[str, MemoryHub] = {}
    item = ring_item(cfg.collective.name, cfg.transport.wire_dtype)
    dataset, group = open_dataset(data), MemoryGroup(cfg.processes, item=item)
    plan = cfg.fault_plan()

    def open_hub(peer: Peer) -> Hub:
        return with_message_faults(MemoryHub(network, peer), peer, plan)

    def joined(me: Peer) -> Hub:
        return wrapped_hub(Node(network, me, failed), cfg, me)

    hub = open_hub(Peer("coordinator", 0))
    launcher = MemoryHub(network, Peer("launcher", 0))
    to_coordinator = launcher.connect("C")
    for message in (Hello("launcher", 0, ""), *wishes):
        to_coordinator.send(message)
    errors: list[BaseException] = []
    received: list[Event] = []
    over, failed = threading.Event(), threading.Event()
    epochs: Counter[str] = Counter()

    def boot(role: str, index: int) -> StartupDocument:
        return StartupDocument(role, index, "", "C", str(run_dir), str(data), to_dict(cfg))

    def server(index: int, epoch: int = 0) -> None:
        mine = joined(Peer("server", index, epoch))
        try:
            serve(mine, mine.connect("C"), replace(boot("server", index), incarnation=epoch), dataset)
        except Killed:
            pass
        except (PeerGoneError, WireError):
            if not epoch:  # else it came when the run was over
                raise
        mine.close()

    def worker(index: int, epoch: int = 0) -> None:
        mine = joined(Peer("worker", index, epoch))
        booted = replace(boot("worker", index), incarnation=epoch)
        try:
            work(mine, mine.connect("C"), booted, dataset, group.member(index))
        except Killed:
            pass
        except (PeerGoneError, WireError):
            if not epochs[f"W{index}"]:  # else it was given up, or came when the run was over
                raise
        mine.close()

    def meet_again() -> None:
        while not over.is_set():
            try:
                launcher.connect("C").send(Hello("launcher", 0, ""))
                return
            except WireError:
                time.sleep(0.01)

    def listen() -> None:
        """The launcher: starts who takes the place of one that is gone."""
        heard, ended = True, False
        while heard or not ended:
            ended, frames = over.is_set(), launcher.poll(0.02)
            heard = bool(frames)
            for _, frame in frames:
                if frame.kind == CLOSED:
                    meet_again()
                event = unpack(frame.kind, frame.descriptor) if frame.kind else None
                if isinstance(event, Event):
                    received.append(event)
                    if event.name == "lost" and event.fields["replaced"]:
                        name = event.fields["process"]
                        if event.fields.get("epoch", epochs[name]) < epochs[name]:
                            continue  # told again by another coordinator
                        epochs[name] += 1
                        role, args = worker if name[0] == "W" else server, (int(name[1:]), epochs[name])
                        successor = threading.Thread(target=guarded, args=(role, *args), daemon=True)
                        threads.append(successor)
                        successor.start()

    def coordinate() -> None:
        """The coordinator, and those that take its place."""
        nonlocal hub
        incarnation, found = 0, None
        while True:
            try:
                Coordinator(hub, cfg, dataset, run_dir, header(cfg, dataset), found).run()
                break
            except Killed:
                hub.close()
                incarnation += 1
                found = JournalState.of(run_dir, incarnation, time.monotonic())
                hub = open_hub(Peer("coordinator", 0, incarnation))
        hub.close()

    def guarded(run: Any, *args: Any) -> None:
        try:
            run(*args)
        except BaseException as error:
            errors.append(error)
            hub.close()

    threads = [threading.Thread(target=guarded, args=(coordinate,), daemon=True)]
    for role, count in ((server, cfg.cluster.servers), (worker, cfg.processes)):
        threads += [threading.Thread(target=guarded, args=(role, i), daemon=True) for i in range(count)]
    listener = threading.Thread(target=listen, daemon=True)
    for thread in (*threads, listener):
        thread.start()
    deadline = time.monotonic() + LIMIT_SECONDS
    for thread in threads:
        while thread.is_alive() and time.monotonic() < deadline and not errors:
            thread.join(0.05)
    over.set()
    listener.join()
    if errors:
        failed.set()
        for node in list(network.values()):
            node.close()
        for thread in threads:
            thread.join(1.0)  # a later test would count what they do; one that hangs is left
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "the cluster did not end"
    if events is not None:
        events += received
    results = [event.fields for event in received if event.name == "result"]
    assert len(results) == 1
    return results[0]
