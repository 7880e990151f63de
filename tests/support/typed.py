"""A `gbactl` command in this process, for mistakes that are told before anything starts."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gbactl.cli import main


@dataclass(frozen=True)
class Typed:
    """What a command said."""

    code: int
    out: str
    err: str


class Typist:
    """Types commands in one directory."""

    def __init__(self, cwd: Path, cache: Path, patch: pytest.MonkeyPatch, heard: pytest.CaptureFixture[str]) -> None:
        self.cwd, self._patch, self._heard = cwd, patch, heard
        patch.chdir(cwd)
        for name in [name for name in os.environ if name.startswith(("MLFLOW_", "GBACTL_"))]:
            patch.delenv(name)
        patch.setenv("GBACTL_CACHE", str(cache))
        patch.setattr("gbactl.engine.fork_server.open_fork_server", lambda: None)

    def __call__(self, *arguments: str) -> Typed:
        """Type `gbactl ARGUMENTS`."""
        self._patch.setattr(sys, "argv", ["gbactl", *arguments])
        self._heard.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._heard.readouterr()
        return Typed(int(ended.value.code or 0), out, err)
