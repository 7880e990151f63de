"""Signals that end a run: raised where they come, not lost where Python drops what is raised; the first one waits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gbactl.engine.stop_signals import (
    StopRequest,
    deferred,
    first_signal_recorded,
    raise_if_stopped,
    stop_signal,
    stoppable,
)
from gbactl.errors import ClusterError, Stopped
from gbactl.wire.messages import Event

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ALL = pytest.mark.parametrize("number", NUMBERS)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Ctrl-C raises, as it does for who types a command; what handles a signal is the same afterwards."""
    outside = [signal.getsignal(number) for number in NUMBERS]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    before = [signal.getsignal(number) for number in NUMBERS]
    yield
    found = [signal.getsignal(number) for number in NUMBERS]
    for number, handler in zip(NUMBERS, outside, strict=True):
        signal.signal(number, handler)
    assert found == before


class Late:
    """Sends a signal when it is thrown away: what its handler raises then is dropped."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


@ALL
def test_a_signal_raises_where_it_comes(number: int) -> None:
    with pytest.raises(Stopped) as stopped, stoppable():
        try:
            os.kill(os.getpid(), number)
        except BaseException as error:
            assert type(error) is Stopped
            raise
    assert stopped.value.number == number
    raise_if_stopped()


@ALL
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_python_drops_is_raised_when_somebody_looks(number: int) -> None:
    came = []
    with pytest.raises(Stopped), stoppable():
        late = Late(number)
        del late
        came.append("it went on")
        with pytest.raises(Stopped):
            raise_if_stopped()
        raise_if_stopped()
    assert came == ["it went on"]
    raise_if_stopped()


@ALL
def test_what_is_to_be_whole_is_done_to_its_end(number: int) -> None:
    came = []
    with pytest.raises(Stopped), stoppable():
        try:
            with deferred():
                with deferred():
                    os.kill(os.getpid(), number)
                came.append("to its end")
        except BaseException as error:
            assert type(error) is Stopped
            raise
    assert came == ["to its end"]


def test_an_error_in_there_is_told_before_a_signal() -> None:
    with pytest.raises(ValueError, match="no"), stoppable(), deferred():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("no")


def test_nothing_was_asked_for() -> None:
    with stoppable():
        raise_if_stopped()
        assert stop_signal() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_is_ignored_stays_so(number: int) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), number)
            raise_if_stopped()
            assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


@ALL
def test_who_is_patient_is_told_of_the_first_and_ended_by_the_second(number: int) -> None:
    with pytest.raises(Stopped) as stopped, stoppable(), first_signal_recorded():
        os.kill(os.getpid(), number)
        raise_if_stopped()
        assert stop_signal() == number
        os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.number == number


def test_the_first_signal_has_the_run_saved_and_ends_it_when_that_is_done() -> None:
    said: list[str] = []
    events: list[Event] = []
    stop = StopRequest(30.0, said.append)
    with pytest.raises(Stopped), stoppable(), first_signal_recorded():
        stop.poll(events.append)
        assert events == [] and said == []
        os.kill(os.getpid(), signal.SIGHUP)
        for _ in range(2):
            stop.poll(events.append)
        stop.repeat()
        stop.poll(events.append)
        stop.on_event(Event("stop", {"state": "saved"}))
        stop.poll(events.append)
    assert [(event.name, event.fields) for event in events] == [("stop", {"seconds": 30.0})] * 2
    assert said == ["stopping: saving where the run stands (up to 30 s; Ctrl-C again ends at once)"]


def test_with_no_time_to_stop_it_ends_at_once() -> None:
    events: list[Event] = []
    with pytest.raises(Stopped), stoppable(), first_signal_recorded():
        os.kill(os.getpid(), signal.SIGINT)
        StopRequest(0.0, lambda text: None).poll(events.append)
    assert events == []


@pytest.mark.parametrize(
    ("trains", "found", "sentence"),
    [
        (True, {"state": "saved", "name": "cut-000002", "step": 7, "bytes": 5e6},
         "step 7 is saved in {run}/checkpoints/cut-000002 (5.0 MB); go on with 'gbactl train resume={run}'"),
        (True, {"state": "failed", "why": "no room"}, "where it stood is not saved (no room)"),
        (False, {}, "nothing had been trained yet"),
        (True, {"state": "nothing"}, "nothing had been trained yet"),
    ],
)  # fmt: skip
def test_a_sentence_says_what_became_of_it(
    trains: bool, found: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    stop = StopRequest(30.0, lambda text: None)
    stop.trains, stop.answer = trains, found
    assert stop.sentence(tmp_path) == sentence.format(run=tmp_path)
    odd = tmp_path / "é (1)"
    quoted = sentence.replace("resume={run}", "'resume=\"{run}\"'")
    assert stop.sentence(odd) == quoted.format(run=odd), "as a shell and Hydra take it"


def test_an_older_checkpoint_is_named_where_nothing_newer_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "cut-000003").mkdir(parents=True)
    (tmp_path / "checkpoints" / "cut-000003" / "manifest.json").write_text("{}")
    stop = StopRequest(30.0, lambda text: None)
    stop.trains = True
    older = f"; the newest checkpoint is cut-000003, go on with 'gbactl train resume={tmp_path}'"
    assert stop.sentence(tmp_path) == f"where it stood is not saved (it ended at once){older}"


def test_a_run_that_cannot_be_saved_ends_at_the_first_signal(tmp_path: Path) -> None:
    said, told = list[str](), list[Event]()
    stop = StopRequest(30.0, said.append)
    stop.trains = True
    stop.refuse("nobody sees it")
    with stoppable(), first_signal_recorded():
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.poll(told.append)
    assert said == told == [] and stop.sentence(tmp_path) == "where it stood is not saved (nobody sees it)"


def test_what_fails_while_it_is_saved_is_why_it_is_not() -> None:
    stop = StopRequest(30.0, lambda text: None)
    error = ClusterError("C was killed.")
    assert stop.stopped_by(error) is None and stop.answer == {}
    with stoppable(), first_signal_recorded():
        os.kill(os.getpid(), signal.SIGTERM)
        stopped = stop.stopped_by(error)
        assert stopped is not None and stopped.number == signal.SIGTERM
        assert stop.answer == {"state": "failed", "why": "C was killed"}
        assert stop.stopped_by(ValueError("a mistake in here")) is None
