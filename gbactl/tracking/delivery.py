"""Delivery of a run's records to its MLflow store, from a backlog file, during the run or afterwards.

Every call of a sender may be repeated without harm. Records are on disk before they are sent; the backlog has one JSON
object a line. Kinds: run (first), metrics, tags, artifact, model, reopen, finish; between them `opened` (the store's
run id) and `sent` (how many records the store has accepted). The file is removed when all records were accepted;
`gbactl report --send RUN_DIR` sends what is left, and may be repeated.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gbactl.atomic_files import read_result, write_result
from gbactl.errors import NoRoomError, TrackingError
from gbactl.tracking.mlflow_store import absolute, connect, ensure_store, experiment_id, sqlite_path
from gbactl.tracking.run_description import CONTEXT

if TYPE_CHECKING:
    from mlflow import MlflowClient

LOCK_NAME = ".tracking.lock"
LOCAL_ID_TAG = "gbactl.local_id"
MetricRow = tuple[str, float, int, int]  # name, value, milliseconds since the epoch, step
BATCH = 1000  # rows of metrics that a store takes at once


def batches(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Split a list into consecutive lists of at most `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


class MlflowSender:
    """Client that sends one run to an MLflow store.

    Any exception means: not accepted, try again later."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._client: MlflowClient | None = None
        self._run_id = ""
        self._file: tuple[int, int] | None = None

    def open(self, run: Record, run_id: str | None) -> str:
        """Find the run in the store (by id, else by its local id) or create it; return the store's id.

        Creates the store and the experiment if need be."""
        if self._client is None:
            ensure_store(self.uri)
            self._file = self._identity()
            self._client = connect(self.uri)
        self._check()
        experiment = experiment_id(self._client, run["experiment"], self.uri)
        self._run_id = self._found(experiment, run["local_id"], run_id) or self._created(experiment, run)
        self._describe(run)
        return self._run_id

    def metrics(self, rows: Sequence[MetricRow]) -> None:
        """Log at most 1,000 rows of metrics to the store."""
        from mlflow.entities import Metric

        entities = [Metric(name, value, time, step) for name, value, time, step in rows]
        self._live().log_batch(self._run_id, metrics=entities)

    def artifact(self, path: Path) -> None:
        """Upload a file; a file that does not exist is skipped."""
        client = self._live()
        if path.is_file():
            client.log_artifact(self._run_id, str(path))

    def model(self, record: Record) -> None:
        """Register the run's model and its metrics in the store; no effect in a store that does not support models."""
        from mlflow.entities import LoggedModelOutput, Metric
        from mlflow.exceptions import MlflowException

        client, run_id = self._live(), self._run_id
        run = client.get_run(run_id)
        experiment: str = run.info.experiment_id
        try:
            found = client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
            named = record["name"], run_id, record["tags"], record["params"]
            model_id = (found[0] if found else client.create_logged_model(experiment, *named)).model_id
        except MlflowException as error:
            if error.error_code == "ENDPOINT_NOT_FOUND":  # a server older than version 3
                return
            raise
        client.finalize_logged_model(model_id, "READY")
        if not (run.outputs and run.outputs.model_outputs):
            client.log_outputs(run_id, [LoggedModelOutput(model_id, record["step"])])
        at, step, (data, digest) = record["at"], record["step"], record["on"]
        rows = [
            Metric(key, value, at, step, model_id, data, digest, run_id) for key, value in record["metrics"].items()
        ]
        client.log_batch(run_id, metrics=rows)

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags, replacing old ones of the same names."""
        from mlflow.entities import RunTag

        self._live().log_batch(self._run_id, tags=[RunTag(key, value) for key, value in tags.items()])

    def reopen(self) -> None:
        """Set the status of a finished or interrupted run back to running."""
        self._live().update_run(self._run_id, status="RUNNING")

    def finish(self, status: str, end_ms: int) -> None:
        """Set the run's final status: FINISHED, FAILED or KILLED."""
        self._live().set_terminated(self._run_id, status=status, end_time=end_ms)

    def _identity(self) -> tuple[int, int] | None:
        path = sqlite_path(self.uri)
        if path is None:
            return None
        state = os.stat(path)
        return state.st_dev, state.st_ino

    def _check(self) -> None:
        try:
            same = self._identity() == self._file
        except OSError:
            same = False
        if not same:
            raise TrackingError(f"The tracking store {self.uri} was removed or replaced.")

    def _live(self) -> MlflowClient:
        assert self._client is not None, "open() comes first"
        self._check()
        return self._client

    def _found(self, experiment: str, local_id: str, run_id: str | None) -> str | None:
        from mlflow.exceptions import MlflowException

        client = self._live()
        if run_id is not None:
            try:
                return str(client.get_run(run_id).info.run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        runs = client.search_runs([experiment], f"tags.`{LOCAL_ID_TAG}` = '{local_id}'", max_results=1)
        return str(runs[0].info.run_id) if runs else None

    def _created(self, experiment: str, run: Record) -> str:
        made = self._live().create_run(
            experiment,
            start_time=run["start_ms"],
            tags={LOCAL_ID_TAG: run["local_id"]},
            run_name=run["run_name"],
        )
        return str(made.info.run_id)

    def _describe(self, run: Record) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        client = self._live()
        inputs = []
        for each in run.get("datasets", ()):  # a backlog of an older version has none
            described = Dataset(**{key: value for key, value in each.items() if key != "context"})
            inputs.append(DatasetInput(described, [InputTag(CONTEXT, each["context"])]))
        if inputs:
            client.log_inputs(self._run_id, inputs)
        for pairs in batches(run["params"].items(), 100):
            client.log_batch(self._run_id, params=[Param(key, value) for key, value in pairs])
        for pairs in batches(run["tags"].items(), 100):
            client.log_batch(self._run_id, tags=[RunTag(key, value) for key, value in pairs])


class Delivery:
    """Queue of a run's records for a sender, also stored in the backlog file.

    `push` sends all, an exception leaves the rest queued.
    """

    def __init__(self, sender: MlflowSender, backlog: Backlog, contents: BacklogContents) -> None:
        """Start with the backlog's contents; the first record describes the run.

        Those that an earlier delivery sent are skipped, if the store still has the run."""
        self._sender = sender
        self._backlog = backlog
        self._queued, self._sent = deque(contents.records), contents.sent
        self.run_id = contents.run_id  # id of the run in the store; None until the store has answered
        self._open = False
        self.done = False

    def add(self, records: Sequence[Record]) -> None:
        """Queue records and write them to the backlog; records that cannot be written are still sent."""
        self._queued.extend(records)
        self._backlog.append(list(records))

    def push(self) -> None:
        """Send all queued records. Raises any error of the sender."""
        if not self._open:
            self._begin()
        while self._queued:
            head = self._queued[0]
            count = self._send_metrics() if head["kind"] == "metrics" else self._send_one(head)
            for _ in range(count):
                self._queued.popleft()
            self._sent += count
            self._backlog.sent(self._sent)
        if self.done:
            self._backlog.remove()

    def _begin(self) -> None:
        run_id = self._sender.open(self._queued[0], self.run_id)
        if run_id != self.run_id:
            self._backlog.opened(run_id)
            self._sent = 0
        for _ in range(min(self._sent, len(self._queued))):
            taken = self._queued.popleft()
            self.done |= taken["kind"] == "finish"
            if taken["kind"] == "tags":  # opening the run has set its first tags again, over later ones
                self._sender.tag(taken["tags"])
        self.run_id, self._open = run_id, True

    def _send_one(self, record: Record) -> int:
        if record["kind"] == "artifact":
            self._sender.artifact(Path(record["path"]))
        elif record["kind"] == "model":
            self._sender.model(record)
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
        """Send as many queued metrics records as fit into one batch; a larger record takes several batches."""
        rows: list[MetricRow] = []
        count = 0
        for record in takewhile(lambda waiting: waiting["kind"] == "metrics", self._queued):
            if count and len(rows) + len(record["rows"]) > BATCH:
                break
            rows += [(name, value, time, step) for name, value, time, step in record["rows"]]
            count += 1
        for part in batches(rows, BATCH):
            self._sender.metrics(part)
        return count


FILE_NAME = "tracking_backlog.jsonl"
Record = dict[str, Any]


@dataclass
class BacklogContents:
    """Contents of a backlog file: all records, the store's id of the run, the number of accepted records."""

    records: list[Record] = field(default_factory=list)
    run_id: str | None = None
    sent: int = 0


class Backlog:
    """Append-only file in the run directory with the records for the tracking store.

    It survives the process, not a power cut (no fsync). Write errors (a full disk) are ignored.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME

    def _write(self, records: list[Record]) -> None:
        with suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in records))

    def append(self, records: list[Record]) -> None:
        """Append records to the file before they are sent."""
        if records:
            self._write(records)

    def opened(self, run_id: str) -> None:
        """Record the run's id in the MLflow store; under a new id, all records must be sent again."""
        self._write([{"kind": "opened", "run_id": run_id}])

    def sent(self, count: int) -> None:
        """Record that the store has accepted the first `count` records."""
        self._write([{"kind": "sent", "count": count}])

    def remove(self) -> None:
        """Delete the file, after all records were accepted."""
        self.path.unlink(missing_ok=True)

    def read(self) -> BacklogContents:
        """Read the whole file, ignoring a truncated last line. Raises TrackingError for any other damage."""
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


@dataclass(frozen=True)
class SendResult:
    """Result of sending a backlog: the store, the run's id in it, and the number of records sent."""

    uri: str
    run_id: str
    records: int


def send_backlog(run_dir: Path, uri: str | None = None, sender: MlflowSender | None = None) -> SendResult | None:
    """Send a run's backlog to its own store, or to the store `uri`; None if all records were sent before.

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


def _send(backlog: Backlog, run_dir: Path, uri: str | None, sender: MlflowSender | None) -> SendResult:
    contents = backlog.read()
    if not contents.records or contents.records[0]["kind"] != "run":
        raise TrackingError(f"{backlog.path} does not begin with a run; it cannot be sent.")
    _complete(backlog, contents, run_dir)
    where = absolute(uri or contents.records[0]["uri"])
    delivery = Delivery(sender or MlflowSender(where), backlog, contents)
    try:
        delivery.push()
    except Exception as error:
        raise TrackingError(f"{where} did not take the run ({error}); it is kept, type the same again.") from error
    result = read_result(run_dir)  # by its run_id the run is resumed, shown and found: until now perhaps a local id
    if result and result.get("run_id") != delivery.run_id:
        with suppress(OSError, NoRoomError):
            write_result(run_dir, {**result, "run_id": delivery.run_id})
    return SendResult(where, str(delivery.run_id), len(contents.records) - contents.sent)


def _complete(backlog: Backlog, contents: BacklogContents, run_dir: Path) -> None:
    """Append the record `finish` to a run's backlog if the launcher was killed before it wrote that record."""
    if contents.records[-1]["kind"] == "finish":
        return
    last: Record = {"kind": "finish", "status": status_of(run_dir), "end_ms": _last_ms(contents)}
    backlog.append([last])
    contents.records.append(last)


def status_of(run_dir: Path) -> str:
    """Return the status in a run's result.json; KILLED if there is no result."""
    status = read_result(run_dir).get("status")
    return status if status in ("FINISHED", "FAILED", "KILLED") else "KILLED"


def _last_ms(contents: BacklogContents) -> int:
    times: list[int] = [row[2] for record in contents.records if record["kind"] == "metrics" for row in record["rows"]]
    return max([int(contents.records[0]["start_ms"]), *times])
