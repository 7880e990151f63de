"""A tracked run against a store that lives in memory and can go away; the machine's load under MLflow's names."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import mlflow.system_metrics.metrics.cpu_monitor as cpu_monitor
import mlflow.system_metrics.metrics.network_monitor as network_monitor
import pytest

from gbactl.errors import TrackingError
from gbactl.tracking.delivery import FILE_NAME, Backlog, send_backlog
from gbactl.tracking.tracked_run import SystemMetrics, TrackedRun
from tests.support.processes import wait_for


class MemoryStore:
    """Takes what a real one takes; `broken` makes it unreachable, `gate` makes it slow."""

    def __init__(self) -> None:
        self.broken = False
        self.gate: threading.Event | None = None
        self.run_id = ""
        self.rows: dict[tuple[str, int, int], float] = {}
        self.sizes: list[int] = []
        self.artifacts: list[str] = []
        self.models: list[tuple] = []
        self.status: str | None = None
        self.params: dict[str, str] = {}
        self.tags: dict[str, str] = {}

    def _reach(self) -> None:
        if self.gate is not None:
            self.gate.wait(20)
        if self.broken:
            raise ConnectionError("nobody there\nsecond line")

    def open(self, run: dict, run_id: str | None) -> str:
        self._reach()
        self.run_id = self.run_id or f"remote-{run['local_id'][:4]}"
        self.params, self.tags = run["params"], dict(run["tags"])
        return self.run_id

    def metrics(self, rows: list) -> None:
        self._reach()
        self.sizes.append(len(rows))
        self.rows.update({(name, time_, step): value for name, value, time_, step in rows})

    def artifact(self, path: Path) -> None:
        self._reach()
        self.artifacts.append(path.name)

    def model(self, told: dict) -> None:
        self._reach()
        self.models.append((told["name"], told["params"], told["on"]))

    def tag(self, tags: dict) -> None:
        self._reach()
        self.tags |= tags

    def reopen(self) -> None:
        self._reach()
        self.status = "RUNNING"

    def finish(self, status: str, end_ms: int) -> None:
        self._reach()
        self.status = status


def start(run_dir: Path, store: MemoryStore, said: list[str] | None = None) -> TrackedRun:
    warn = (said if said is not None else []).append
    params = {"mode.name": "gba", "seed": 3, "bad{key": None}
    return TrackedRun("memory", "e", "r", params, {"t": "1"}, run_dir, warn, sender=store)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_everything_arrives_and_nothing_stays_behind(tmp_path: Path, store: MemoryStore) -> None:
    run = start(tmp_path, store)
    run.log({"auc": 0.7, "eps": None, "worker_eps/W0": 5}, step=1, seconds=2.5)
    run.artifact(tmp_path / "result.json")
    run.model("deepfm", {"dim": 8}, {}, {"auc": 0.7}, step=1)
    assert run.finish("FINISHED") is None
    assert run.run_id == store.run_id and store.models == [("deepfm", {"dim": "8"}, [None, None])]
    assert {(name, step): value for (name, _, step), value in store.rows.items()} == {
        ("auc", 1): 0.7,
        ("train/worker_eps W0", 1): 5.0,
    }
    assert (store.status, store.artifacts) == ("FINISHED", ["result.json"])
    assert store.params == {"mode.name": "gba", "mode": "gba", "seed": "3", "bad_key": "None"}
    assert not (tmp_path / FILE_NAME).exists()


def test_metrics_carry_the_time_they_were_made(tmp_path: Path, store: MemoryStore) -> None:
    run = start(tmp_path, store)
    run.log({"a": 1.0}, step=0, seconds=0.0)
    run.log({"a": 1.0}, step=1, seconds=7.25)
    run.finish("FINISHED")
    first, second = sorted(at for _, at, _ in store.rows)
    assert second - first == 7250


def test_batches_hold_at_most_a_thousand(tmp_path: Path, store: MemoryStore) -> None:
    store.gate = threading.Event()
    run = start(tmp_path, store)
    for step in range(1500):
        run.log({"a": 1.0, "b": 2.0}, step=step, seconds=0.0)
    run.log({f"m{i}": float(i) for i in range(1200)}, step=0, seconds=0.0)
    store.gate.set()
    assert run.finish("FINISHED") is None
    assert max(store.sizes) <= 1000
    assert len(store.sizes) <= 8
    assert sum(store.sizes) == len(store.rows) == 4200


def test_logging_does_not_wait_for_a_slow_store(tmp_path: Path, store: MemoryStore) -> None:
    store.gate, folder = threading.Event(), tmp_path / "a b"
    folder.mkdir()
    run = start(folder, store)
    for step in range(100):
        run.log({"a": 1.0}, step=step, seconds=0.0)  # would hang here if it waited
    assert store.rows == {}
    sentence = run.finish("FINISHED", wait=0.2)
    assert sentence is not None and sentence.endswith(f"gbactl report --send '{folder}'")
    store.gate.set()
    assert run.finish("FINISHED") is None
    assert len(store.rows) == 100


def test_a_store_that_goes_away_loses_nothing(tmp_path: Path, store: MemoryStore) -> None:
    said: list[str] = []
    run = start(tmp_path, store, said)
    run.log({"auc": 0.7}, step=1, seconds=1.0)
    wait_for(lambda: bool(store.rows), 20)
    store.broken = True
    run.log({"auc": 0.8}, step=2, seconds=2.0)
    run.artifact(tmp_path / "plot.png")
    sentence = run.finish("FAILED")
    assert sentence is not None
    assert f"gbactl report --send {tmp_path}" in sentence
    assert len(said) == 1
    assert said[0].endswith("(ConnectionError: nobody there)")
    assert (len(store.rows), store.status) == (1, None)

    with pytest.raises(TrackingError, match="nobody there"):
        send_backlog(tmp_path, sender=store, uri="http://x")
    store.broken = False
    sent = send_backlog(tmp_path, sender=store, uri="http://x")
    assert sent is not None
    assert sent.records == 3
    assert (len(store.rows), store.status, store.artifacts) == (2, "FAILED", ["plot.png"])
    assert store.sizes == [1, 1]
    assert send_backlog(tmp_path, sender=store, uri="http://x") is None


def test_a_run_that_is_sent_later_has_its_id_in_the_store_in_its_result(tmp_path: Path, store: MemoryStore) -> None:
    store.broken = True
    run = start(tmp_path, store)
    local = run.run_id
    (tmp_path / "result.json").write_text(json.dumps({"status": "KILLED", "run_id": local}))
    assert run.finish("KILLED") is not None
    store.broken = False
    assert send_backlog(tmp_path, uri="http://x", sender=store) is not None
    found = json.loads((tmp_path / "result.json").read_text())
    assert found == {"status": "KILLED", "run_id": store.run_id} and store.run_id != local


def test_a_store_that_comes_back_gets_the_rest_in_the_same_run(tmp_path: Path, store: MemoryStore) -> None:
    said: list[str] = []
    store.broken = True
    run = start(tmp_path, store, said)
    wait_for(lambda: bool(said), 20)
    local = run.run_id
    store.broken = False
    run.log({"auc": 0.7}, step=1, seconds=1.0)
    assert run.finish("FINISHED") is None
    assert run.run_id == store.run_id != local
    assert len(store.rows) == 1


def test_a_store_that_lost_the_run_gets_all_of_it_again(tmp_path: Path) -> None:
    first = MemoryStore()
    run = start(tmp_path, first)
    run.log({"auc": 0.7}, step=1, seconds=1.0)
    wait_for(lambda: bool(first.rows), 20)
    first.broken = True
    run.finish("FINISHED")
    other = MemoryStore()
    other.run_id = "somewhere-else"
    send_backlog(tmp_path, sender=other, uri="http://x")
    assert (len(other.rows), other.status) == (1, "FINISHED")


OPENED = {
    "kind": "run", "local_id": "l", "uri": "http://x", "experiment": "e", "run_name": None, "start_ms": 5, "params": {},
    "tags": {},
}  # fmt: skip


def test_a_killed_launcher_leaves_a_backlog_that_can_be_sent(tmp_path: Path, store: MemoryStore) -> None:
    backlog = Backlog(tmp_path)
    backlog.append([OPENED])
    backlog.append([{"kind": "metrics", "rows": [["auc", 0.5, 9, 1]]}])
    with backlog.path.open("a") as file:
        file.write('{"kind": "metr')
    assert send_backlog(tmp_path, sender=store) is not None
    assert (store.status, len(store.rows)) == ("KILLED", 1)


def test_the_status_of_a_killed_launcher_comes_from_its_result(tmp_path: Path, store: MemoryStore) -> None:
    Backlog(tmp_path).append([OPENED])
    (tmp_path / "result.json").write_text(json.dumps({"status": "FINISHED"}))
    send_backlog(tmp_path, sender=store)
    assert store.status == "FINISHED"


def test_what_cannot_be_sent_says_why(tmp_path: Path) -> None:
    with pytest.raises(TrackingError, match="no run directory"):
        send_backlog(tmp_path / "nowhere")
    assert send_backlog(tmp_path) is None
    (tmp_path / FILE_NAME).write_text('{"kind": "metrics", "rows": []}\n')
    with pytest.raises(TrackingError, match="begin with a run"):
        send_backlog(tmp_path)
    (tmp_path / FILE_NAME).write_text('nonsense\n{"kind": "metrics", "rows": []}\n')
    with pytest.raises(TrackingError, match="line 1, is damaged"):
        send_backlog(tmp_path)


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path, store: MemoryStore) -> None:
    run = start(tmp_path, store)
    with pytest.raises(TrackingError, match="still goes on"):
        send_backlog(tmp_path)
    run.finish("FINISHED")


def test_a_tag_is_changed_on_the_way(tmp_path: Path, store: MemoryStore) -> None:
    run = start(tmp_path, store)
    run.tag({"gbactl.phases": "sync"})
    run.tag({"gbactl.phases": "sync; gba from day 1, sample 0"})
    assert run.finish("FINISHED") is None
    assert store.tags["gbactl.phases"] == "sync; gba from day 1, sample 0"


def test_a_tag_that_was_changed_before_the_store_went_away_stays_changed(tmp_path: Path, store: MemoryStore) -> None:
    run = start(tmp_path, store)
    run.tag({"t": "2"})
    wait_for(lambda: store.tags.get("t") == "2", 20)
    store.broken = True
    assert run.finish("FINISHED") is not None
    store.broken = False
    assert send_backlog(tmp_path, sender=store, uri="sqlite:///m.db") is not None
    assert (store.status, store.tags["t"]) == ("FINISHED", "2")


@pytest.mark.parametrize("cut_off", [False, True])
def test_a_run_goes_on_as_the_same_one(tmp_path: Path, store: MemoryStore, cut_off: bool) -> None:
    """Its id is known, or stands in the backlog of one that was killed, of which nothing is lost."""
    first = start(tmp_path, store)
    first.log({"auc": 0.7}, step=1, seconds=1.0)
    run_id = first.run_id
    if cut_off:
        wait_for(lambda: bool(store.rows), 20)
        store.broken = True
        first.log({"auc": 0.75}, step=2, seconds=2.0)
    left = first.finish("KILLED", 2.0)
    assert (left is None) == (not cut_off)
    first._lock.release()
    store.broken = False
    known = "" if cut_off else run_id
    again = TrackedRun("memory", "e", "r", {"seed": 4}, {"t": "2"}, tmp_path, print, sender=store, resumed=known)
    again.log({"auc": 0.8}, step=3, seconds=0.5)
    wait_for(lambda: store.status == "RUNNING", 20)
    assert again.run_id == run_id
    assert again.finish("FINISHED") is None
    assert store.status == "FINISHED" and store.tags["t"] == "2"
    assert store.params.get("seed") != "4", "parameters of a run stand"
    assert sorted(store.rows.values()) == ([0.7, 0.75, 0.8] if cut_off else [0.7, 0.8])
    assert not (tmp_path / FILE_NAME).exists()


def test_a_machine_without_a_network_interface_has_no_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_io_counters", lambda: None)
    assert SystemMetrics().measure()["system/network_receive_megabytes"] == 0


def test_the_names_are_mlflows() -> None:
    own = {}
    for monitor in (cpu_monitor.CPUMonitor(), network_monitor.NetworkMonitor()):
        monitor.collect_metrics()
        own |= monitor.aggregate_metrics()
    found = SystemMetrics().measure()
    assert set(found) == {f"system/{name}" for name in own}
    assert 0 <= found["system/cpu_utilization_percentage"] <= 100
    assert 0 < found["system/system_memory_usage_percentage"] < 100
    measured = SystemMetrics()
    assert measured.measure() and not measured.measure(), "a short interval has no CPU use"
    assert found["system/network_receive_megabytes"] >= 0
