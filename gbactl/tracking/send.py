"""Send the backlog of a finished run to its tracking store (`gbactl report --send RUN_DIR`). May be repeated."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from gbactl.errors import TrackingError
from gbactl.tracking.backlog import Backlog, BacklogContents, Record
from gbactl.tracking.run import LOCK_NAME
from gbactl.tracking.sender import Delivery, MlflowSender, Sender
from gbactl.tracking.store import absolute


@dataclass(frozen=True)
class SendResult:
    """Result of sending a backlog: store, run id, number of records."""

    uri: str
    run_id: str
    records: int


def send_backlog(run_dir: Path, uri: str | None = None, sender: Sender | None = None) -> SendResult | None:
    """Send a run's backlog to the store it was meant for, or to `uri`; None if nothing is left.

    Raises TrackingError if there is no such run, it is still running, or the store does not answer.
    """
    if not run_dir.is_dir():
        raise TrackingError(f"There is no run directory {run_dir}.")
    backlog = Backlog(run_dir)
    if not backlog.path.exists():
        return None
    try:
        with FileLock(run_dir / LOCK_NAME, timeout=0):
            return _send(backlog, run_dir, uri, sender)
    except Timeout as error:
        raise TrackingError(f"The run in {run_dir} still goes on; send its backlog when it has ended.") from error


def _send(backlog: Backlog, run_dir: Path, uri: str | None, sender: Sender | None) -> SendResult:
    contents = backlog.read()
    if not contents.records or contents.records[0]["kind"] != "run":
        raise TrackingError(f"{backlog.path} does not begin with a run; it cannot be sent.")
    _complete(backlog, contents, run_dir)
    where = absolute(uri or contents.records[0]["uri"])
    delivery = Delivery(sender or MlflowSender(where), backlog, contents.records)
    delivery.resume(contents.run_id, contents.sent)
    try:
        delivery.push()
    except Exception as error:
        raise TrackingError(f"{where} did not take the run ({error}); it is kept, type the same again.") from error
    return SendResult(where, str(delivery.run_id), len(contents.records) - contents.sent)


def _complete(backlog: Backlog, contents: BacklogContents, run_dir: Path) -> None:
    """Add the `finish` record that a killed launcher could not write."""
    if contents.records[-1]["kind"] == "finish":
        return
    last: Record = {"kind": "finish", "status": status_of(run_dir), "end_ms": _last_ms(contents)}
    backlog.append([last])
    contents.records.append(last)


def status_of(run_dir: Path) -> str:
    """Status of a run according to its result.json; KILLED where there is none."""
    try:
        status = json.loads((run_dir / "result.json").read_text(encoding="utf-8")).get("status")
    except (OSError, ValueError):
        return "KILLED"
    return status if status in ("FINISHED", "FAILED", "KILLED") else "KILLED"


def _last_ms(contents: BacklogContents) -> int:
    times: list[int] = [row[2] for record in contents.records if record["kind"] == "metrics" for row in record["rows"]]
    return max([int(contents.records[0]["start_ms"]), *times])
