"""Membership of a run: channels of servers, workers and the launcher, their heartbeats, fencing of failed workers.

Every node is pinged once per beat and answers from the thread that reads its network, however long it computes: so
processes are detected that hang, keep their connections open and do not answer. Only time in which the coordinator
itself was running counts. The heartbeats cost two small messages per node and second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gbactl.coordinator.state import Incarnations
from gbactl.errors import WireError
from gbactl.wire.channel_interface import Channel
from gbactl.wire.messages import Fence, Fenced, Hello, Ping, Pong, ShardAddresses, WorkerFailed


@dataclass
class Successor:
    """Successor of a failed node that is not a member yet. `requests`: number of batches that it has asked for."""

    channel: Channel
    ready: bool = False
    requests: int = 0


class Membership:
    """Nodes of a run of `workers` workers and `servers` servers, and the channels to them."""

    def __init__(self, workers: int, servers: int) -> None:
        self.expected = {"worker": workers, "server": servers}
        self.channels: dict[tuple[str, int], Channel] = {}
        self.addresses: dict[int, str] = {}
        self.ready: set[tuple[str, int]] = set()
        self.settled = False  # all nodes have joined: a node that connects now is a successor
        self.successors: dict[tuple[str, int], Successor] = {}
        self.informed: set[int] = set()  # workers that know the servers' addresses
        self._uninformed: dict[int, Channel] = {}  # workers that wait for them

    def hello(self, channel: Channel, hello: Hello) -> None:
        """Register a node by its Hello; workers get the servers' addresses once all are known. Raises WireError."""
        number, peer, node = hello.number, channel.peer, (hello.role, hello.number)
        expected = 0 <= number < self.expected.get(hello.role, 0) and node not in self.channels
        earlier = self.successors.get(node)
        later = not self.settled or peer.incarnation > (0 if earlier is None else earlier.channel.peer.incarnation)
        if not expected or not later or node != (peer.role, peer.index):
            raise WireError(f"{peer} does not belong to this run as {hello.role} {number}.")
        if self.settled:
            self.successors[node] = Successor(channel)
        else:
            self.channels[node] = channel
        if hello.role == "server":
            self.addresses[number] = hello.address
        elif self.settled:
            self.informed.discard(number)
        if hello.role == "worker" and number not in self.informed:
            self._uninformed[number] = channel
        self._tell_addresses()

    def successor(self, channel: Channel, role: str, number: int) -> Successor | None:
        """Successor of a failed node, not yet a member, to which a channel belongs; None if there is none."""
        successor = self.successors.get((role, number))
        return successor if successor is not None and successor.channel is channel else None

    def forget_successor(self, channel: Channel) -> bool:
        """Forget a successor that failed before it was a member. Returns whether the lost channel was a successor's."""
        node = (channel.peer.role, channel.peer.index)
        if self.successor(channel, *node) is None:
            return False
        del self.successors[node]
        return True

    def admit(self, role: str, number: int) -> Successor:
        """Make a failed node's successor a member, and tell the workers that wait for all servers."""
        successor = self.successors.pop((role, number))
        self.channels[role, number] = successor.channel
        self._tell_addresses()
        return successor

    def _tell_addresses(self) -> None:
        """Send the servers' addresses to the workers that wait for them, once all servers are members."""
        shards = range(self.expected["server"])
        if not all(("server", shard) in self.channels for shard in shards):
            return
        for number, channel in self._uninformed.items():
            node = ("worker", number)
            if channel is self.channels.get(node) or self.successor(channel, *node) is not None:
                self.informed.add(number)
                channel.send(ShardAddresses([self.addresses[shard] for shard in shards]))
        self._uninformed.clear()

    def tell_successors(self, message: Any) -> None:
        """Send a message to every failed worker's successor that knows the servers' addresses."""
        for (role, number), successor in self.successors.items():
            if role == "worker" and number in self.informed:
                successor.channel.send(message)

    def authentic(self, channel: Channel, role: str, index: int) -> None:
        """Check that a channel belongs to a node. Raises WireError otherwise."""
        if self.channels.get((role, index)) is not channel:
            raise WireError(f"{channel.peer} speaks for {role} {index}.")

    def member(self, channel: Channel) -> None:
        """Check that a channel belongs to some node of the run. Raises WireError otherwise."""
        self.authentic(channel, channel.peer.role, channel.peer.index)

    def forget(self, channel: Channel) -> bool:
        """Remove a lost channel. Returns whether it belonged to a node of the run."""
        node = (channel.peer.role, channel.peer.index)
        if self.channels.get(node) is not channel:
            return False
        del self.channels[node]
        return True

    def channels_of(self, role: str) -> dict[int, Channel]:
        """Channels of all nodes of a role ("server", "worker"), by node index."""
        return {index: c for (r, index), c in self.channels.items() if r == role}

    def complete(self) -> bool:
        """Whether every expected node is ready."""
        return len(self.ready) == sum(self.expected.values())

    def missing(self) -> list[str]:
        """Names of the expected nodes that are not ready."""
        return [
            f"{role[0].upper()}{index}"
            for role, count in self.expected.items()
            for index in range(count)
            if (role, index) not in self.ready
        ]

    def send_to_all(self, role: str, message: Any) -> None:
        """Send a message to every node of a role, in order of index."""
        for _, channel in sorted(self.channels_of(role).items()):
            channel.send(message)


class Fencing:
    """Fencing of failed workers: all servers refuse a failed worker's messages before its successor joins."""

    def __init__(self, members: Membership, lives: Incarnations) -> None:
        self.members, self.lives, self.failed_workers = members, lives, lives.failed_workers
        self._confirmed: dict[int, set[int]] = {}

    def fence(self, worker: int, phase: int, batches: list[int], incarnation: int) -> None:
        """Order every server to refuse a failed worker's messages and discard the slices of its unannounced batches."""
        self.failed_workers.append(worker)
        self._confirmed[worker] = set()
        self.lives.workers[worker] = incarnation
        self.members.send_to_all("server", Fence(worker, phase, batches, incarnation))

    def tell_workers(self) -> None:
        """Tell the workers, who form a new all-reduce group, which workers have failed before."""
        for worker in self.failed_workers:
            self.members.send_to_all("worker", WorkerFailed(worker))

    def tell_successor(self, server: Channel) -> None:
        """Tell a failed server's successor which failed workers to refuse."""
        for worker, incarnation in sorted(self.lives.workers.items()):
            ended = incarnation if worker in self.failed_workers else incarnation - 1
            server.send(Fence(worker, -1, [], ended))

    def fencing(self, worker: int) -> bool:
        """Whether some server has yet to confirm that it refuses a failed worker."""
        return worker in self._confirmed

    def on_replaced(self, worker: int, incarnation: int) -> None:
        """Record that a failed worker was replaced: its successor was admitted."""
        self.failed_workers.remove(worker)
        self.lives.workers[worker] = incarnation

    def on_fenced(self, message: Fenced) -> bool:
        """Record that a server refuses a failed worker. Returns whether it was the last server to do so."""
        confirmed = self._confirmed.get(message.worker)
        if confirmed is None:
            return False
        confirmed.add(message.shard)
        if len(confirmed) < self.members.expected["server"]:
            return False
        del self._confirmed[message.worker]
        return True


BEAT_SECONDS = 1.0


def start_heartbeat(tell: Callable[[], None], seconds: float) -> None:
    """Start a thread that calls `tell` every `seconds`, to show other processes that this one is alive."""

    def run() -> None:
        while True:
            time.sleep(seconds)
            tell()

    threading.Thread(target=run, name="beat", daemon=True).start()


class Heartbeat:
    """Heartbeat of one role's nodes. `patience`: seconds of silence after which a node counts as dead.

    `now` in seconds."""

    def __init__(self, patience: float, now: Callable[[], float]) -> None:
        self.patience, self.now = patience, now
        self.beat_seconds = min(BEAT_SECONDS, patience / 4)
        self._beat = 0
        self._last_ping: float | None = None
        self._last_check: float | None = None
        self._last_answers: dict[int, float] = {}

    def on_answer(self, message: Pong) -> None:
        """Record a worker's answer to a ping."""
        if message.worker in self._last_answers:
            self._last_answers[message.worker] = self.now()

    @property
    def due(self) -> bool:
        """Whether it is time to check for silent nodes again: four times per heartbeat interval."""
        return self._last_check is None or self.now() >= self._last_check + self.beat_seconds / 4

    def silent(self, workers: Mapping[int, Channel]) -> list[int]:
        """Ping the given nodes. Returns those that have been silent for longer than `patience`."""
        now = self.now()
        self._extend_deadlines(now)
        self._last_answers = {worker: self._last_answers.get(worker, now) for worker in workers}
        if self._last_ping is None or now >= self._last_ping + self.beat_seconds:
            self._last_ping = now
            self._beat += 1
            for worker in sorted(workers):
                workers[worker].send(Ping(self._beat))
        silent = [worker for worker, last_answer in self._last_answers.items() if now - last_answer > self.patience]
        for worker in silent:
            del self._last_answers[worker]
        return silent

    def _extend_deadlines(self, now: float) -> None:
        """Extend all nodes' deadlines if this coordinator itself was stopped for two beats: answers may be unread."""
        stopped = 0.0 if self._last_check is None else now - self._last_check
        self._last_check = now
        if stopped > 2 * self.beat_seconds:
            self._last_answers = {worker: last_answer + stopped for worker, last_answer in self._last_answers.items()}
