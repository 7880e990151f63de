"""Backlog file of records for the tracking store, written to disk before they are sent: one JSON object a line.

Kinds: run (first), metrics, tags, artifact, finish; between them `opened` (the store's run id) and `sent` (how
many records the store has accepted). The file is removed when all records were accepted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gbactl.errors import TrackingError

FILE_NAME = "tracking_backlog.jsonl"
Record = dict[str, Any]


@dataclass
class BacklogContents:
    """Contents of a backlog file: all records, the store's run id if known, the number of records accepted."""

    records: list[Record] = field(default_factory=list)
    run_id: str | None = None
    sent: int = 0


class Backlog:
    """Append-only backlog file of a run directory.

    It survives the process, not a power cut (no fsync). Write errors (a full disk) are ignored.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME

    def _write(self, records: list[Record]) -> None:
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))

    def append(self, records: list[Record]) -> None:
        """Append records that are to be sent."""
        if records:
            self._write(records)

    def opened(self, run_id: str) -> None:
        """Record the store's id of the run; records accepted under another id no longer count as sent."""
        self._write([{"kind": "opened", "run_id": run_id}])

    def sent(self, count: int) -> None:
        """Record that the store has accepted the first `count` records."""
        self._write([{"kind": "sent", "count": count}])

    def remove(self) -> None:
        """Remove the file, after everything was accepted."""
        self.path.unlink(missing_ok=True)

    def read(self) -> BacklogContents:
        """Read the whole file. A truncated last line is ignored; any other damage raises TrackingError."""
        contents = BacklogContents()
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError as error:
                if number == len(lines):
                    break
                raise TrackingError(f"{self.path}, line {number}, is damaged; remove that line.") from error
            _take(contents, record)
        return contents


def _take(contents: BacklogContents, record: Record) -> None:
    if record["kind"] == "opened":
        if contents.run_id not in (None, record["run_id"]):
            contents.sent = 0
        contents.run_id = record["run_id"]
    elif record["kind"] == "sent":
        contents.sent = record["count"]
    else:
        contents.records.append(record)
