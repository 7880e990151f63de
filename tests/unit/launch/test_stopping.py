"""Signals that end a run: raised where they come, and not lost where Python drops what is raised."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gbactl.launch.stopping import Stopped, look, stoppable, whole

BOTH = pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)])


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Ctrl-C raises, as it does for who types a command; what handles a signal is the same afterwards."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    outside = [signal.getsignal(number) for number in numbers]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = [signal.getsignal(number) for number in numbers]
    yield
    found = [signal.getsignal(number) for number in numbers]
    for number, handler in zip(numbers, outside, strict=True):
        signal.signal(number, handler)
    assert found == before


class Late:
    """Sends a signal when it is thrown away: what its handler raises then is dropped."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


@BOTH
def test_a_signal_raises_where_it_comes(number: int, raised: type[BaseException]) -> None:
    with pytest.raises(KeyboardInterrupt), stoppable():
        try:
            os.kill(os.getpid(), number)
        except BaseException as error:
            assert type(error) is raised
            raise
    look()


@BOTH
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_python_drops_is_raised_when_somebody_looks(number: int, raised: type[BaseException]) -> None:
    came = []
    with pytest.raises(KeyboardInterrupt), stoppable():
        late = Late(number)
        del late
        came.append("it went on")
        with pytest.raises(raised):
            look()
        look()
    assert came == ["it went on"]
    look()


@BOTH
def test_what_is_to_be_whole_is_done_to_its_end(number: int, raised: type[BaseException]) -> None:
    came = []
    with pytest.raises(KeyboardInterrupt), stoppable():
        try:
            with whole():
                with whole():
                    os.kill(os.getpid(), number)
                came.append("to its end")
        except BaseException as error:
            assert type(error) is raised
            raise
    assert came == ["to its end"]


def test_an_error_in_there_is_told_before_a_signal() -> None:
    with pytest.raises(ValueError, match="no"), stoppable(), whole():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("no")


def test_nothing_was_asked_for() -> None:
    with stoppable():
        look()


def test_ctrl_c_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGINT)
            look()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
