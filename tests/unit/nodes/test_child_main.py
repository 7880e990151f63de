"""Exit code and log of a node that fails; what does not fit on the disk hides no error."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from gbactl.errors import ConfigError, DataError, OwnCodeError, PeerGoneError
from gbactl.nodes.child_main import ENDS_RUN, FAILED, NOTICED, _run_role, node_log
from gbactl.wire.startup_document import StartupDocument


def test_a_log_on_a_full_disk_does_not_hide_the_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "W0.log").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="diverged"), node_log(tmp_path, "W0"):
        logging.getLogger("gbactl.worker").warning("a line")
        raise ValueError("diverged")


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (OwnCodeError("model.target=own.Model fails."), "model.target=own.Model fails.", ENDS_RUN),
        (ConfigError("model.target=own.Model is no model."), "model.target=own.Model is no model.", ENDS_RUN),
        (DataError("A file is missing."), "A file is missing.", FAILED),
        (PeerGoneError("S0 is gone."), "S0 is gone.", NOTICED),
        (ValueError("a bug"), "ValueError: a bug", FAILED),
    ],
)
def test_the_log_tells_why_a_process_failed_and_its_exit_code_whether_another_would_fail_too(
    error: Exception, reason: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(boot: StartupDocument) -> None:
        raise error

    (tmp_path / "logs").mkdir()
    monkeypatch.setattr("gbactl.nodes.role_setup.run_node", fail)
    boot = StartupDocument("worker", 0, "", "", str(tmp_path), "", {})
    monkeypatch.setattr("os._exit", sys.exit)
    with pytest.raises(SystemExit) as ended, node_log(tmp_path, "W0"):
        _run_role(boot)
    assert ended.value.code == code
    lines = (tmp_path / "logs" / "W0.log").read_text().splitlines()
    assert [each.partition(" W0 CRITICAL ")[2] for each in lines if " CRITICAL " in each] == [reason]
