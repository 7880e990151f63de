"""Which child ended a run, in one sentence: the cause before those that only noticed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gbactl.config import ModeConfig, RunConfig
from gbactl.engine.fork_server import thread_environment
from gbactl.engine.local_processes import MOST_COORDINATOR_TRIES, ChildProcess, RunProcesses
from gbactl.nodes.child_main import ENDS_RUN, NOTICED
from tests.support.processes import launch_of


@pytest.fixture
def family(tmp_path: Path) -> Iterator[RunProcesses]:
    children = RunProcesses(launch_of(RunConfig(), tmp_path))
    yield children
    children.stop()


def child(family: RunProcesses, name: str, code: str, log: str = "") -> ChildProcess:
    path = family.run_dir / f"{name}.log"
    path.write_text(log)
    made = ChildProcess(name, subprocess.Popen([sys.executable, "-c", code]), path)
    family.running.append(made)
    return made


def ended(one: ChildProcess) -> ChildProcess:
    one.process.wait(60)
    return one


def test_a_child_that_runs_or_ended_well_has_nothing_to_say(family: RunProcesses) -> None:
    assert child(family, "W0", "import time; time.sleep(60)").exit_sentence() is None
    assert ended(child(family, "W1", "")).exit_sentence() is None
    assert family.failure() is None


def test_a_killed_child(family: RunProcesses) -> None:
    one = child(family, "W2", "import time; time.sleep(60)")
    one.process.send_signal(signal.SIGKILL)
    assert ended(one).exit_sentence() == f"W2 (pid {one.process.pid}) was killed by SIGKILL."


def test_a_signal_without_a_name(family: RunProcesses) -> None:
    one = child(family, "W2", "import time; time.sleep(60)")
    one.process.send_signal(40)
    assert "was killed by signal 40." in (ended(one).exit_sentence() or "")


def test_a_failed_child_tells_its_last_reason(family: RunProcesses) -> None:
    log = "10:00 S0 CRITICAL An older story.\n10:02 S0 CRITICAL The table is too large.\nTraceback\n"
    one = ended(child(family, "S0", "raise SystemExit(1)", f"{log}my batch failed: no CRITICAL one\n"))
    assert one.exit_sentence() == f"S0 (pid {one.process.pid}) failed: The table is too large."


def test_a_failed_child_without_a_word(family: RunProcesses) -> None:
    one = ended(child(family, "S0", "raise SystemExit(3)"))
    assert (one.exit_sentence() or "").endswith(f"failed: it left no message; look into {one.log}.")
    one.log.unlink()
    assert "it left no message" in (one.exit_sentence() or "")


def test_the_cause_comes_before_those_that_noticed(family: RunProcesses) -> None:
    ended(child(family, "C", f"raise SystemExit({NOTICED})", "10:00 C CRITICAL W1 is gone.\n"))
    sentence, is_cause = family.failure() or ("", True)
    assert "W1 is gone." in sentence and not is_cause
    ended(child(family, "W0", "raise SystemExit(1)", "10:00 W0 CRITICAL Out of disk.\n"))
    sentence, is_cause = family.failure() or ("", False)
    assert "Out of disk." in sentence and is_cause
    killed = child(family, "W1", "import time; time.sleep(60)")
    killed.process.kill()
    ended(killed)
    assert family.failure() == (f"W1 (pid {killed.process.pid}) was killed by SIGKILL.", True)


def test_waiting_and_stopping(family: RunProcesses) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    made = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
    assert made.stdout is not None and made.stdout.readline()
    family.running.append(ChildProcess("W0", made, family.run_dir / "W0.log"))
    child(family, "W1", "import time; time.sleep(600)")
    assert not family.wait(0.05) and not family.ended()
    began = time.monotonic()
    family.stop()
    assert family.ended() and time.monotonic() - began < 30
    assert made.returncode == -signal.SIGKILL
    made.stdout.close()


@pytest.mark.parametrize("watched", [True, False])
def test_what_a_replacement_would_fail_by_too_ends_the_run(family: RunProcesses, watched: bool) -> None:
    child(family, "C", "import time; time.sleep(60)")
    child(family, "W1", "import time; time.sleep(60)")
    family.all_ready = True
    printed = "10:00 W0 CRITICAL failed: model.target=own.Model fails.\n"  # by the user's own code
    for code in ("raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"):
        ended(child(family, "W0", code, printed))
        assert family.failure() is None, "another one takes its place"
        family.stop_watching("W0")
        assert family.failure() is None
    log = "10:00 W0 CRITICAL model.target=own.Model fails (ValueError, in own.py:3).\n"
    ended(child(family, "W0", f"raise SystemExit({ENDS_RUN})", log))
    if not watched:
        family.stop_watching("W0", kill=True)
    sentence, is_cause = family.failure() or ("", False)
    assert sentence.endswith("failed: model.target=own.Model fails (ValueError, in own.py:3).") and is_cause


class Spawning(RunProcesses):
    """Another coordinator only sleeps."""

    cause: tuple[float, str, float] = (0.0, "", 0.0)

    def _spawn(self, role: str, index: int, coordinator_failure: tuple[float, str, float] = (0.0, "", 0.0)) -> None:
        self.cause = coordinator_failure
        child(self, "C", "import time; time.sleep(60)")


@pytest.fixture
def reviving(tmp_path: Path) -> Iterator[Spawning]:
    children = Spawning(launch_of(RunConfig(mode=ModeConfig("gba")), tmp_path))
    child(children, "C", "import time; time.sleep(60)")
    child(children, "W0", "import time; time.sleep(60)")
    children.all_ready = True
    (tmp_path / "coordinator.json").touch()
    yield children
    children.stop()


def kill(family: RunProcesses) -> None:
    family.running[0].process.kill()
    ended(family.running[0])


def test_a_killed_coordinator_is_no_failure_where_another_one_can_go_on(reviving: Spawning) -> None:
    assert not reviving.coordinator_replaceable
    kill(reviving)
    assert reviving.coordinator_replaceable and reviving.failure() is None
    reviving.replace_coordinator("hang", 12.5)
    assert [one.name for one in reviving.running] == ["C", "W0"] and len(reviving.abandoned) == 1
    assert not reviving.coordinator_replaceable
    assert reviving.cause[1:] == ("hang", 12.5) and 0 < reviving.cause[0] <= time.monotonic()


def test_a_coordinator_that_is_killed_at_that_moment_is_no_failure_either(
    reviving: Spawning, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ChildProcess.exit_sentence

    def sentence(this: ChildProcess) -> str | None:
        if this.name == "C":
            kill(reviving)
        return plain(this)

    monkeypatch.setattr(ChildProcess, "exit_sentence", sentence)
    assert reviving.running[0].process.poll() is None and reviving.failure() is None
    assert reviving.coordinator_replaceable


def test_one_that_dies_before_it_goes_on_is_replaced_a_few_times(reviving: Spawning) -> None:
    for _ in range(MOST_COORDINATOR_TRIES):
        kill(reviving)
        reviving.replace_coordinator("death", 0.0)
    kill(reviving)
    assert not reviving.coordinator_replaceable and "C (pid " in (reviving.failure() or ("",))[0]
    reviving.coordinator_continues()
    assert reviving.coordinator_replaceable


@pytest.mark.parametrize("obstacle", ["unsettled", "no journal", "failed", "not wanted"])
def test_where_no_other_coordinator_can_go_on_it_is_a_failure(reviving: Spawning, obstacle: str) -> None:
    if obstacle == "unsettled":
        reviving.all_ready = False
    elif obstacle == "no journal":
        (reviving.run_dir / "coordinator.json").unlink()
    elif obstacle == "failed":
        reviving.stop()
        reviving.running.clear()
        ended(child(reviving, "C", "raise SystemExit(1)", "10:00 C CRITICAL The model diverged.\n"))
    else:
        reviving.cfg.cluster.lost_coordinator = "end"
    if obstacle != "failed":
        kill(reviving)
    assert not reviving.coordinator_replaceable and "C (pid " in (reviving.failure() or ("",))[0]


def test_threads_are_fixed_and_wait_passively() -> None:
    environment = thread_environment(3)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "3"
    assert environment["OMP_WAIT_POLICY"] == "PASSIVE"
