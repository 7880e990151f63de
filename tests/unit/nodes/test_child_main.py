"""Log of a node: what does not fit on the disk hides no error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gbactl.errors import ConfigError, DataError, PeerGoneError
from gbactl.nodes.child_main import ENDS_RUN, FAILED_LINE, NOTICED_LINE, _run_role, node_log
from gbactl.wire.startup_document import StartupDocument


def test_a_log_on_a_full_disk_does_not_hide_the_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "W0.log").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="diverged"), node_log(tmp_path, "W0"):
        logging.getLogger("gbactl.worker").warning("a line")
        raise ValueError("diverged")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ConfigError("model.target=own.Model fails."), f"{ENDS_RUN}model.target=own.Model fails."),
        (DataError("A file is missing."), f"ERROR {FAILED_LINE}A file is missing."),
        (PeerGoneError("S0 is gone."), f"ERROR {NOTICED_LINE}S0 is gone."),
        (ValueError("a bug"), f"ERROR {FAILED_LINE}ValueError: a bug"),
    ],
)
def test_the_log_tells_why_a_process_failed_and_whether_another_would_fail_too(
    error: Exception, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(boot: StartupDocument) -> None:
        raise error

    (tmp_path / "logs").mkdir()
    monkeypatch.setattr("gbactl.nodes.role_setup.run_node", fail)
    boot = StartupDocument("worker", 0, "", "", str(tmp_path), "", {})
    with pytest.raises(SystemExit), node_log(tmp_path, "W0"):
        _run_role(boot)
    lines = (tmp_path / "logs" / "W0.log").read_text().splitlines()
    assert [each for each in lines if each.endswith(line)] and (ENDS_RUN in line) == any(ENDS_RUN in x for x in lines)
