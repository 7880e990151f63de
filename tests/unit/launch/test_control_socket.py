"""The door of a running job: who may knock, what is answered, what is said when nobody is at home."""

from __future__ import annotations

import json
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gbactl.errors import GbactlError, UsageError
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.control_socket import FILE, ControlClient, ControlSocket, ask, mode_with
from gbactl.wire.auth import Peer
from gbactl.wire.frames import CLOSED
from gbactl.wire.messages import Event, TakeBatch
from gbactl.wire.node_connections import SocketHub

PROGRESS = {"mode": "gba", "step": 7}


@pytest.fixture
def wishes() -> list[Event]:
    return []


@pytest.fixture
def control(tmp_path: Path, wishes: list[Event]) -> Iterator[ControlSocket]:
    """Its coordinator answers at once: accepted, done."""

    def forward(event: Event) -> None:
        wishes.append(event)
        told = {"id": event.fields["id"], "from": "sync", "to": event.fields["mode"]["name"], "step": 7}
        if event.fields["mode"]["name"] == "silent":
            return
        for state in ("accepted", "done"):
            made.on_event(Event("switch", {**told, "state": state, "pause_ms": 5.0}))

    made = ControlSocket(tmp_path, forward)
    yield made
    made.close()


def test_a_wish_is_handed_on_and_answered(tmp_path: Path, control: ControlSocket, wishes: list[Event]) -> None:
    with ControlClient(tmp_path) as asking:
        assert asking.switch({"name": "gba", "iota": float("inf")}, wait=False)["state"] == "accepted"
    with ControlClient(tmp_path) as asking:
        assert asking.switch({"name": "gba"}, wait=True)["state"] == "done"
    assert [wish.fields["id"] for wish in wishes] == [1, 2]
    assert wishes[0].fields["mode"] == {"name": "gba", "iota": float("inf")}


def test_the_answer_is_a_sentence_or_json(
    tmp_path: Path, control: ControlSocket, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").touch()
    ask(str(tmp_path), "gba", (), wait=True, as_json=False, uri=None)
    assert capsys.readouterr().out == "The run goes on in gba from step 7 on, after a pause of 5 ms.\n"
    ask(str(tmp_path), "gba", (), wait=True, as_json=True, uri=None)
    assert json.loads(capsys.readouterr().out)["state"] == "done"


def test_status_is_the_last_progress_and_the_switches(tmp_path: Path, control: ControlSocket) -> None:
    with ControlClient(tmp_path) as asking:
        assert asking.status() == {"switches": [], "failures": []}
        control.on_event(Event("progress", PROGRESS))
        asking.switch({"name": "gba"}, wait=True)
        found = asking.status()
    assert found["mode"] == "gba" and [each["to"] for each in found["switches"]] == ["gba"]
    assert "id" not in found["switches"][0]


def test_who_waits_for_a_run_that_ends_is_told(tmp_path: Path, control: ControlSocket, wishes: list[Event]) -> None:
    def end() -> None:
        while not wishes:
            time.sleep(0.01)
        control.close()

    thread = threading.Thread(target=end)
    thread.start()
    with pytest.raises(GbactlError, match="ended before it answered"), ControlClient(tmp_path) as asking:
        asking.switch({"name": "silent"}, wait=True)
    thread.join()


def refused(run_dir: Path, why: str) -> None:
    """Asking a run is refused, with a sentence that matches `why`."""
    with pytest.raises(UsageError, match=why):
        ControlClient(run_dir)


def test_the_file_is_its_owner_s_and_goes_with_the_run(tmp_path: Path, wishes: list[Event]) -> None:
    control = ControlSocket(tmp_path, wishes.append)
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    control.close()
    assert list(tmp_path.iterdir()) == []
    refused(tmp_path, "is not running")


def test_a_run_that_has_ended_or_was_killed_or_is_virtual_is_one_sentence(tmp_path: Path, wishes: list[Event]) -> None:
    control = ControlSocket(tmp_path, wishes.append)
    left = (tmp_path / FILE).read_text()
    control.close()
    (tmp_path / FILE).write_text(left)
    refused(tmp_path, "is not running")
    held = run_dirs.lock(tmp_path)
    refused(tmp_path, "is about to start; ask again")
    (tmp_path / run_dirs.LOG).touch()
    refused(tmp_path, r"has trained and writes its result; wait for .*result\.json\.$")
    held.release()
    (tmp_path / "config.yaml").write_text("cluster: {name: virtual}\n")
    refused(tmp_path, "is virtual")
    (tmp_path / "result.json").write_text("{}")
    refused(tmp_path, "has ended")
    (tmp_path / FILE).write_text("{}")
    refused(tmp_path, "cannot be read")


@pytest.mark.parametrize("role", ["worker", "launcher", "coordinator"])
def test_other_roles_are_turned_away(tmp_path: Path, control: ControlSocket, wishes: list[Event], role: str) -> None:
    fields = json.loads((tmp_path / FILE).read_text())
    hub = SocketHub(bytes.fromhex(fields["key"]), Peer(role, 0))
    hub.connect(fields["address"], peer=Peer("launcher", 0)).send(Event("switch", {"mode": {"name": "gba"}}))
    assert [frame.kind for _, frame in hub.poll(5)] == [CLOSED]
    assert not wishes
    hub.close()


def test_nobody_without_the_key_controls_a_run(tmp_path: Path, control: ControlSocket, wishes: list[Event]) -> None:
    forged = tmp_path / "forged"
    forged.mkdir()
    (forged / "config.yaml").write_text("cluster: {name: local}\n")
    fields = json.loads((tmp_path / FILE).read_text())
    (forged / FILE).write_text(json.dumps({**fields, "key": "00" * 32}))
    refused(forged, "is not running")
    with ControlClient(tmp_path) as asking:
        assert asking.status() == {"switches": [], "failures": []}
    assert not wishes


@pytest.mark.parametrize("message", [TakeBatch(0), Event("result", {})])
def test_what_is_no_question_does_nothing(
    tmp_path: Path, control: ControlSocket, wishes: list[Event], message: Any
) -> None:
    with ControlClient(tmp_path) as asking:
        asking.channel.send(message)
    with ControlClient(tmp_path) as asking:
        assert asking.status() == {"switches": [], "failures": []}
    assert not wishes


def test_a_mode_is_its_file_and_what_is_set() -> None:
    found = mode_with("gba", ("iota=inf", "mode.decay=exp", "local_batch=256", "decay_rate=0.25"))
    assert (found["name"], found["iota"], found["decay"], found["local_batch"]) == ("gba", float("inf"), "exp", 256)
    assert found["prefetch"] == "data" and found["decay_rate"] == 0.25
    with pytest.raises(UsageError, match=r"^--to gbaa is no mode; type --to one of: async, bsp, .*gba, "):
        mode_with("gbaa", ())
    assert mode_with("own", ("target=a.Own", "size=3")) == {"name": "own", "target": "a.Own", "size": 3}
    assert mode_with("gba", ("iota=3e6", "prefetch='rows'", "decay=null"))["iota"] == 3e6
    for change in ("iota", "=4", "iota={", "iota=3,4", "+iota=4"):
        with pytest.raises(UsageError, match=r"--set .* is no KEY=VALUE"):
            mode_with("gba", (change,))
