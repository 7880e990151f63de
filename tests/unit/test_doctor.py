"""`gbactl doctor`: what it finds, what it advises, and its exit code."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gbactl import doctor
from gbactl.cli.doctor import command
from gbactl.doctor import Check


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
        [sys.executable, "-c", "from gbactl.cli.doctor import command; command()"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert any(line.startswith("tracking store") for line in lines)


def test_json_has_the_same_checks_and_the_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("torch", "none", False, True, "type make install"),))
    outcome = CliRunner().invoke(command, ["--json"])
    assert outcome.exit_code == 1
    answer = json.loads(outcome.output)
    assert answer["ok"] is False
    assert answer["checks"][0]["advice"] == "type make install"


def test_a_table_shows_the_advice_beside_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CHECKS", (lambda: Check("cmake", "none [x]", False, False, "install it"),))
    outcome = CliRunner().invoke(command, [])
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
