"""One training as one MLflow run, sent by a background thread, so that no call waits for the store.

Everything is written to the run directory first, so that an unreachable store loses nothing. The module also measures
the load of this machine while a run goes on.
"""

from __future__ import annotations

import queue
import re
import shlex
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from gbactl.errors import first_line
from gbactl.tracking.delivery import LOCK_NAME, Backlog, BacklogContents, Delivery, MlflowSender, Record
from gbactl.tracking.metrics_and_tags import logged_name

_FLUSH_SECONDS = 1.0
_SYSTEM_SECONDS = 1.0
_LONGEST_PAUSE = 30.0
_NOT_ALLOWED = re.compile(r"[^\w\-. /:]")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _name(key: str) -> str:
    return _NOT_ALLOWED.sub("_", key)


def _run_record(
    local_id: str, experiment: str, run_name: str | None, params: Mapping[str, Any], tags: Mapping[str, str],
    datasets: Sequence[Mapping[str, str]],
) -> Record:  # fmt: skip
    known = {_name(key): str(value)[:6000] for key, value in params.items()}
    if "mode.name" in known:
        # so that a filter can say params.mode, without the quotes that params.`mode.name` needs
        known.setdefault("mode", known["mode.name"])
    return {
        "kind": "run",
        "local_id": local_id,
        "experiment": experiment,
        "run_name": run_name,
        "start_ms": _now_ms(),
        "params": known,
        "tags": {_name(key): str(value)[:5000] for key, value in tags.items()},
        "datasets": list(map(dict, datasets)),
    }


class TrackedRun:
    """MLflow run of one training, sent to the store while it runs; `finish` must be called in every case."""

    def __init__(
        self,
        uri: str,
        experiment: str,
        run_name: str | None,
        params: Mapping[str, Any],
        tags: Mapping[str, str],
        run_dir: Path,
        warn: Callable[[str], None],
        sender: MlflowSender | None = None,
        resumed: str | None = None,
        beside: Callable[[str], None] | None = None,
        datasets: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Create the run's backlog file and start the sending thread.

        `params`: the flattened configuration. `datasets`: what was trained and evaluated on, as
        `dataset_inputs` describes it. `warn` gets a sentence when the store becomes unreachable. `resumed`:
        continue the run of this id, or with "" the run of the directory's backlog. `beside` is called once with the
        store's URI, in the thread, when the store has answered.
        """
        self._uri, self._run_dir = uri, Path(run_dir)
        self._local_id = uuid.uuid4().hex
        self._beside, self._datasets = beside, datasets
        self._warn = warn
        self._lock = FileLock(self._run_dir / LOCK_NAME, thread_local=False)
        self._lock.acquire(timeout=5)
        backlog = Backlog(self._run_dir)
        old = backlog.read() if resumed is not None and backlog.path.exists() else BacklogContents()
        old.run_id = resumed or old.run_id
        self._delivery = Delivery(sender or MlflowSender(uri), backlog, old)
        first = _run_record(self._local_id, experiment, run_name, {} if old.run_id else params, tags, datasets)
        self._start_ms: int = first["start_ms"]
        if not old.records:
            self._delivery.add([first | {"uri": uri}])
        if old.run_id:
            self._delivery.add([{"kind": "reopen"}, {"kind": "tags", "tags": first["tags"]}])
        self._queue: queue.SimpleQueue[Record] = queue.SimpleQueue()
        self._tried, self._ending = threading.Event(), threading.Event()
        self._warned, self._pause, self._next_try = False, 1.0, 0.0
        self._thread = threading.Thread(target=self._loop, name="tracking", daemon=True)
        self._thread.start()

    def opened(self, seconds: float) -> str | None:
        """Wait for the store's first answer, and return the id of the run in it; None if it did not answer."""
        self._tried.wait(seconds)
        return self._delivery.run_id

    @property
    def run_id(self) -> str:
        """Id of the run in the store (waits up to 5 s for its answer); until then the local id."""
        self._tried.wait(5)
        return self._delivery.run_id or self._local_id

    def log(self, metrics: Mapping[str, float | None], step: int, seconds: float) -> None:
        """Queue metrics at `step`, `seconds` after the run's start; None values are left out.

        They are logged under the names that `logged_name` gives them."""
        at = self._start_ms + int(seconds * 1000)
        found = {_name(logged_name(key)): float(value) for key, value in metrics.items() if value is not None}
        rows = [[name, value, at, step] for name, value in found.items()]
        if rows:
            self._queue.put({"kind": "metrics", "rows": rows})

    def tag(self, tags: Mapping[str, str]) -> None:
        """Queue tags."""
        self._queue.put({"kind": "tags", "tags": {_name(key): value[:5000] for key, value in tags.items()}})

    def artifact(self, path: Path) -> None:
        """Queue a file for upload; it must stay in place until it was sent."""
        self._queue.put({"kind": "artifact", "path": str(Path(path).resolve())})

    def model(
        self, name: str, params: Mapping[str, Any], tags: Mapping[str, str], metrics: Mapping[str, float], step: int
    ) -> None:
        """Queue an MLflow model entry for the run, with its metrics at `step` on the evaluation data set."""
        judged = [each for each in self._datasets if each["context"] == "eval"]
        self._queue.put({
            "kind": "model", "name": name, "params": {key: str(value) for key, value in params.items()},
            "tags": dict(tags), "metrics": {logged_name(key): value for key, value in metrics.items()},
            "step": step, "at": _now_ms(), "on": [judged[0][key] if judged else None for key in ("name", "digest")],
        })  # fmt: skip

    def finish(self, status: str, wait: float = 20.0) -> str | None:
        """End the run as FINISHED, FAILED or KILLED; return a sentence on records that could not be sent, else None.

        Waits for the store `wait` seconds at most; unsent records stay in the run directory. A second call only waits
        again.
        """
        if not self._ending.is_set():
            self._queue.put({"kind": "finish", "status": status, "end_ms": _now_ms()})
            self._ending.set()
            self._queue.put({})  # wakes the thread
        self._thread.join(wait)
        if not self._thread.is_alive():
            self._lock.release()
        return None if self._delivery.done else self._sentence()

    def _sentence(self) -> str:
        return (
            f"The tracking store {self._uri} did not take everything; the rest is kept, send it later with: "
            f"gbactl report --send {shlex.quote(str(self._run_dir))}"
        )

    def _loop(self) -> None:
        while True:
            ending = self._ending.is_set()
            self._delivery.add(self._collected())
            if ending or time.monotonic() >= self._next_try:
                self._try()
            self._tried.set()
            if self._beside is not None and self._delivery.run_id is not None:
                self._beside(self._uri)
                self._beside = None
            if ending:
                return

    def _collected(self) -> list[Record]:
        """Return the records queued within one flush interval, or all remaining ones when the run ends."""
        records: list[Record] = []
        until = time.monotonic() + (_FLUSH_SECONDS if self._tried.is_set() else 0.0)
        while True:
            left = 0.0 if self._ending.is_set() else until - time.monotonic()
            try:
                record = self._queue.get(timeout=left) if left > 0 else self._queue.get_nowait()
            except queue.Empty:
                return records
            if record:
                records.append(record)

    def _try(self) -> None:
        try:
            self._delivery.push()
        except Exception as error:  # whatever the error is, training continues without the store
            self._next_try = time.monotonic() + self._pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if not self._warned:
                self._warned = True
                self._warn(f"{self._sentence()} ({type(error).__name__}: {first_line(error)})")
            return
        self._pause, self._next_try = 1.0, 0.0


class SystemMetrics:
    """Measurements of the whole machine, under the names that MLflow's own monitor gives to system metrics.

    Network traffic counts from the first measurement on. One takes 0.2 ms."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first value is of no interval
        self._network = _network()
        self._next = 0.0

    def measure(self) -> dict[str, float]:
        """Return CPU use since the last measurement, current memory use, and network traffic since the run's start.

        Return {} within a second of the last one: CPU times are counted in steps of 10 ms, so that a shorter interval
        often has a use of 0 or 100 %."""
        if time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + _SYSTEM_SECONDS
        memory, network = psutil.virtual_memory(), _network()
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / 1e6,
            "system/system_memory_usage_percentage": 100 * memory.used / memory.total,
            "system/network_receive_megabytes": (network[0] - self._network[0]) / 1e6,
            "system/network_transmit_megabytes": (network[1] - self._network[1]) / 1e6,
        }


def _network() -> tuple[int, int]:
    """Return the bytes that the machine has received and sent; zeros if it has no network interface."""
    found = psutil.net_io_counters()
    return (0, 0) if found is None else (found.bytes_recv, found.bytes_sent)
