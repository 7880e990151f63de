"""Which child ended a run, in one sentence: the cause before those that only noticed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gbactl.config import RunConfig
from gbactl.launch.children import Child, Children, thread_environment


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Children]:
    children = Children(RunConfig(), tmp_path, b"", tmp_path, {})
    yield children
    children.stop()


def child(family: Children, name: str, code: str, log: str = "") -> Child:
    path = family.run_dir / f"{name}.log"
    path.write_text(log)
    made = Child(name, subprocess.Popen([sys.executable, "-c", code]), path)
    family.running.append(made)
    return made


def ended(one: Child) -> Child:
    one.process.wait(60)
    return one


def test_a_child_that_runs_or_ended_well_has_nothing_to_say(family: Children) -> None:
    assert child(family, "W0", "import time; time.sleep(60)").exit_sentence() is None
    assert ended(child(family, "W1", "")).exit_sentence() is None
    assert family.failure() is None


def test_a_killed_child(family: Children) -> None:
    one = child(family, "W2", "import time; time.sleep(60)")
    one.process.send_signal(signal.SIGKILL)
    assert ended(one).exit_sentence() == f"W2 (pid {one.process.pid}) was killed by SIGKILL."


def test_a_signal_without_a_name(family: Children) -> None:
    one = child(family, "W2", "import time; time.sleep(60)")
    one.process.send_signal(40)
    assert "was killed by signal 40." in (ended(one).exit_sentence() or "")


def test_a_failed_child_tells_its_last_reason(family: Children) -> None:
    log = (
        "10:00 S0 ERROR failed: An older story.\n10:02 S0 ERROR failed: The table is too large.\nTraceback\n"
    )
    one = ended(child(family, "S0", "raise SystemExit(1)", log))
    assert one.exit_sentence() == f"S0 (pid {one.process.pid}) failed: The table is too large."


def test_a_failed_child_without_a_word(family: Children) -> None:
    one = ended(child(family, "S0", "raise SystemExit(3)"))
    assert (one.exit_sentence() or "").endswith(f"failed: it left no message; look into {one.log}.")
    one.log.unlink()
    assert "it left no message" in (one.exit_sentence() or "")


def test_the_cause_comes_before_those_that_noticed(family: Children) -> None:
    fail = "raise SystemExit(1)"
    ended(child(family, "C", fail, "C ERROR noticed: W1 is gone.\n"))
    sentence, is_cause = family.failure() or ("", True)
    assert "W1 is gone." in sentence and not is_cause
    ended(child(family, "W0", fail, "W0 ERROR failed: Out of disk.\n"))
    sentence, is_cause = family.failure() or ("", False)
    assert "Out of disk." in sentence and is_cause
    killed = child(family, "W1", "import time; time.sleep(60)")
    killed.process.kill()
    ended(killed)
    assert family.failure() == (f"W1 (pid {killed.process.pid}) was killed by SIGKILL.", True)


def test_waiting_and_stopping(family: Children) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "print(1, flush=True); time.sleep(600)"
    )
    made = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline()
    family.running.append(Child("W0", made, family.run_dir / "W0.log"))
    child(family, "W1", "import time; time.sleep(600)")
    assert not family.wait(0.05) and not family.ended()
    began = time.monotonic()
    family.stop()
    assert family.ended() and time.monotonic() - began < 30
    assert made.returncode == -signal.SIGKILL
    made.stdout.close()


def test_threads_are_fixed_and_wait_passively() -> None:
    environment = thread_environment(3)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
