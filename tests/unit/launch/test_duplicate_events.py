from gbactl.launch.duplicate_events import loss_known, switch_known
from gbactl.wire.messages import Event

LOST = {"process": "W1", "epoch": 0, "step": 7}
DONE = {"state": "done", "step": 40, "from": "sync", "to": "gba", "pause_ms": 12.5}


def test_a_loss_is_known_by_process_and_epoch() -> None:
    assert loss_known(Event("lost", {**LOST, "step": 9}), [LOST])
    assert not loss_known(Event("lost", {**LOST, "epoch": 1}), [LOST])
    assert not loss_known(Event("joined", LOST), [LOST])


def test_a_switch_is_known_by_its_step_and_modes_whatever_its_pause() -> None:
    assert switch_known(Event("switch", {**DONE, "pause_ms": None}), [DONE])
    assert not switch_known(Event("switch", {**DONE, "step": 41}), [DONE])
    assert not switch_known(Event("switch", {**DONE, "state": "stayed"}), [DONE])
    assert not switch_known(Event("switch", DONE), [])
