"""Log of a node: what does not fit on the disk hides no error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gbactl.nodes.child_main import node_log


def test_a_log_on_a_full_disk_does_not_hide_the_error_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "W0.log").symlink_to("/dev/full")
    with pytest.raises(ValueError, match="diverged"), node_log(tmp_path, "W0"):
        logging.getLogger("gbactl.worker").warning("a line")
        raise ValueError("diverged")
