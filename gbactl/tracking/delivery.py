"""Moves records from a backlog to a sender, in order, and remembers on disk how far it came.

Used while a run lives and by `gbactl report --send` afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from gbactl.tracking.backlog import Backlog, Record
from gbactl.tracking.sender import MetricRow, Sender

BATCH = 1000


class Delivery:
    """`push` sends all that waits; an exception of the sender leaves the rest waiting."""

    def __init__(self, sender: Sender, backlog: Backlog, records: Sequence[Record] = ()) -> None:
        """`records`: those that are on disk already, the first being the run itself."""
        self._sender = sender
        self._backlog = backlog
        self._waiting = deque(records)
        self._known: str | None = None
        self._open = False
        self._sent = 0
        self.done = False

    @property
    def run_id(self) -> str | None:
        """The store's id of the run, once there is one."""
        return self._known

    def resume(self, run_id: str | None, sent: int) -> None:
        """Go on where an earlier delivery stopped, if the store still knows that run."""
        self._known, self._sent = run_id, sent

    def add(self, records: Sequence[Record]) -> None:
        """Queue, and keep on disk; without a disk they are at least still sent."""
        self._waiting.extend(records)
        self._backlog.append(list(records))

    def push(self) -> None:
        """Send everything. Raises what the sender raises."""
        if not self._open:
            self._begin()
        while self._waiting:
            head = self._waiting[0]
            count = self._send_metrics() if head["kind"] == "metrics" else self._send_one(head)
            for _ in range(count):
                self._waiting.popleft()
            self._sent += count
            self._backlog.sent(self._sent)
        if self.done:
            self._backlog.remove()

    def _begin(self) -> None:
        run_id = self._sender.open(self._waiting[0], self._known)
        if run_id != self._known:
            self._backlog.opened(run_id)
            self._sent = 0
        for _ in range(min(self._sent, len(self._waiting))):
            taken = self._waiting.popleft()
            self.done |= taken["kind"] == "finish"
            if taken["kind"] == "tags":  # opening has set the first ones again
                self._sender.tag(taken["tags"])
        self._known, self._open = run_id, True

    def _send_one(self, record: Record) -> int:
        if record["kind"] == "artifact":
            self._sender.artifact(Path(record["path"]))
        elif record["kind"] == "tags":
            self._sender.tag(record["tags"])
        elif record["kind"] == "reopen":
            self._sender.reopen()
            self.done = False
        elif record["kind"] == "finish":
            self._sender.finish(record["status"], record["end_ms"])
            self.done = True
        return 1

    def _send_metrics(self) -> int:
        """One batch of as many neighbouring metrics records as fit; a larger record in several."""
        rows: list[MetricRow] = []
        count = 0
        for record in takewhile(lambda waiting: waiting["kind"] == "metrics", self._waiting):
            if count and len(rows) + len(record["rows"]) > BATCH:
                break
            rows += [(name, value, time, step) for name, value, time, step in record["rows"]]
            count += 1
        for part in _parts(rows):
            self._sender.metrics(part)
        return count


def _parts(rows: list[MetricRow]) -> Iterator[list[MetricRow]]:
    for low in range(0, len(rows), BATCH):
        yield rows[low : low + BATCH]
