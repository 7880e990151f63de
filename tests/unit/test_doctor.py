"""`gbactl doctor`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from gbactl import doctor
from gbactl.cli import commands_before_training
from gbactl.doctor import Check
from gbactl.engine import host_agents
from gbactl.engine.host_agents import HostFindings
from gbactl.engine.host_and_network_facts import LinkMeasurement
from gbactl.engine.preflight import HostReport
from gbactl.errors import UsageError
from tests.support.processes import collective


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory with no tracking settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def test_only_something_essential_that_is_missing_fails() -> None:
    good = Check("a", "1")
    note = Check("b", "none", ok=False, essential=False, advice="do")
    bad = Check("c", "none", ok=False, essential=True, advice="do")
    assert doctor.exit_code([good, note]) == 0
    assert doctor.exit_code([good, note, bad]) == 1


def test_every_item_of_the_list_is_there_and_what_is_not_ok_says_what_to_do(here: Path) -> None:
    checks = doctor.examine()
    names = [check.name for check in checks]
    assert names == [
        "Python", "torch", "Horovod", "row kernels", "cores", "processor", "threads", "shared memory",
        "own name", "data cache", "tracking store", "C++ compiler", "cmake",
    ]  # fmt: skip
    assert all(check.ok or check.advice for check in checks)
    assert list(here.iterdir()) == []


def test_a_piped_table_is_at_most_80_columns_and_plain(here: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from gbactl.cli.commands_before_training import doctor; doctor()"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert any(line.startswith("tracking store") for line in lines)


def test_json_has_the_same_checks_and_the_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("torch", "none", False, True, "type make install"),))
    outcome = CliRunner().invoke(commands_before_training.doctor, ["--json"])
    assert outcome.exit_code == 1
    answer = json.loads(outcome.output)
    assert answer["ok"] is False
    assert answer["checks"][0]["advice"] == "type make install"


def test_a_table_shows_the_advice_beside_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("cmake", "none [x]", False, False, "install it"),))
    outcome = CliRunner().invoke(commands_before_training.doctor, [])
    assert outcome.exit_code == 0
    assert "note: install it" in outcome.output
    assert "none [x]" in outcome.output


def test_without_horovod_it_is_a_note_that_names_the_alternative(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("horovod")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "horovod", None)
    check = doctor.check_horovod()
    assert not check.ok
    assert not check.essential
    assert "collective=gloo" in check.advice


def test_a_store_that_can_be_made_is_ok_and_is_not_made(here: Path) -> None:
    check = doctor.check_tracking()
    assert check.ok
    assert "will be made" in check.found
    assert not (here / "mlflow.db").exists()


def test_a_damaged_store_is_reported(here: Path) -> None:
    (here / "mlflow.db").write_bytes(b"no database at all" * 100)
    check = doctor.check_tracking()
    assert not check.ok
    assert check.essential


def test_a_server_is_reached_or_not_and_its_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:hush@127.0.0.1:{port}")
        check = doctor.check_tracking()
        assert check.ok
        assert "hush" not in check.found
    assert not doctor.check_tracking().ok


def test_a_check_that_breaks_is_a_line_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_shared_memory() -> Check:
        raise RuntimeError("unforeseen\nsecond line")

    monkeypatch.setattr(doctor, "CHECKS", (check_shared_memory,))
    (check,) = doctor.examine()
    assert (check.name, check.found, check.ok) == ("shared memory", "unforeseen", False)


def test_measurements_that_are_not_written_are_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", ())
    alone = CliRunner().invoke(commands_before_training.doctor, ["--out", "network.yaml"]).exception
    assert isinstance(alone, UsageError) and "type for instance cluster=hosts" in str(alone)
    measured = HostFindings({"a": HostReport("a", lines={"b": LinkMeasurement(10.0, 1.0)})})
    monkeypatch.setattr(commands_before_training, "_examine", lambda *_, **__: ([], measured))
    nowhere = CliRunner().invoke(commands_before_training.doctor, ["--out", "no/network.yaml"]).exception
    assert isinstance(nowhere, UsageError) and "no/network.yaml cannot be written (No such file" in str(nowhere)
    assert CliRunner().invoke(commands_before_training.doctor, ["--out", "network.yaml"]).exit_code == 0
    assert host_agents.read(here / "network.yaml") == {"latency_us": 10.0, "bandwidth_gbit": 1.0}


# what ssh, srun or kubectl would do, with a host `far` that is this machine: options and the host are dropped
REACH = """#!/bin/sh
for word; do case $word in -*) [ "$done" ] || shift;; far) shift; done=1;; *) done=1;; esac; done
"""
ENGINES = {
    "hosts": ["cluster.ssh='{path}'"],
    "slurm": [],
    "exec": ["cluster.exec='{path} {{host}} {{agent}}'"],
}


@pytest.fixture
def examined(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, dict[str, Check]]]:
    """Examines an engine whose host `far` is reached by a script that ends with `then`."""
    monkeypatch.setenv("PATH", f"{here}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "far")

    def examine(engine: str, then: str | None, *typed: str) -> tuple[int, dict[str, Check]]:
        if then is None:
            monkeypatch.setenv("PATH", str(here))
        path = here / "srun"
        path.write_text(REACH + (then or ""))
        path.chmod(0o644 if then is None else 0o755)
        words = [f"cluster={engine}", "cluster.hosts=[far:2]", *(each.format(path=path) for each in ENGINES[engine])]
        outcome = CliRunner().invoke(commands_before_training.doctor, [*words, *typed, "--json"])
        return outcome.exit_code, {each["name"]: Check(**each) for each in json.loads(outcome.output)["checks"]}

    return examine


Examine = Callable[..., tuple[int, dict[str, Check]]]
remote = pytest.mark.skipif(collective() != "horovod", reason="hosts need Horovod's launcher")


@remote
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_whose_host_answers_and_has_other_versions(engine: str, examined: Examine, here: Path) -> None:
    other = here / "shim" / "torch-9.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    code, checks = examined(engine, f'PYTHONPATH={here / "shim"}:$PYTHONPATH exec sh -c "$*"')
    assert code == 1 and checks["slots"].ok and checks["run directory"].ok
    assert checks["host far"].found.startswith("Host far has torch 9.9, and this machine has")
    assert checks["host far"].advice.startswith("install the same version there")


@remote
@pytest.mark.parametrize(
    ("hosts", "variable", "warned"),
    [("[far:1,off:1]", "", True), ("[far:1,off:1]", "SBATCH_NO_KILL", False), ("[far:2]", "", False)],
)
def test_an_allocation_that_ends_with_a_node_is_noted(
    hosts: str, variable: str, warned: bool, examined: Examine, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "scontrol").symlink_to("/bin/false")  # it shows no batch script
    if variable:
        monkeypatch.setenv(variable, "1")
    _, checks = examined("slurm", "exit 1", f"cluster.hosts={hosts}")
    notes = [check for check in checks.values() if "--no-kill" in check.found]
    assert [(check.name, check.essential) for check in notes] == [("note", False)] * warned


@pytest.mark.parametrize("typed", ["model.dim=8", "mode.local_batch=256"])
def test_the_batches_of_a_mode_are_checked_only_if_they_were_typed(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", ())
    outcome = CliRunner().invoke(commands_before_training.doctor, ["cluster.workers=3", typed])
    assert outcome.exit_code == typed.startswith("mode."), outcome.output


@pytest.mark.quick(6)
@remote
@pytest.mark.parametrize(
    ("then", "typed", "found", "advice"),
    [
        (None, [], r"Host far cannot be reached without the program \S*srun, which is not on the PATH", "install it"),
        ("echo no such node >&2; exit 1", [], r"Host far cannot be reached \(no such node\)", "see that `.* true` wo"),
        ("", ["cluster.workers=3"], "cluster.workers=3 do not fit into the 2 slots", "type cluster.workers=2"),
        ("", ["cluster.hosts=[far]"], "'far', which is no NAME:SLOTS", "type for instance"),
    ],
    ids=["no program", "lost before it is opened", "too few slots", "no slots"],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_that_cannot_run(
    engine: str, then: str | None, typed: list[str], found: str, advice: str, examined: Examine
) -> None:
    code, checks = examined(engine, then, *typed)
    (failed,) = (check for check in checks.values() if not check.ok)
    assert "run directory" not in checks  # nobody has looked for it
    assert code == 1 and re.search(found, failed.found) and re.search(advice, failed.advice)
