"""How the MLflow UI is started."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gbactl.errors import UsageError
from gbactl.tracking import mlflow_ui


def test_it_listens_on_loopback_alone() -> None:
    words = mlflow_ui.command_line("sqlite:///mlflow.db", 5001)
    assert words[words.index("--host") + 1] == "127.0.0.1" and words.count("--host") == 1
    assert words[words.index("--port") + 1] == "5001"
    assert "0.0.0.0" not in " ".join(words)


def test_a_port_that_is_taken_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UsageError, match="type --port with another"):
        mlflow_ui.serve("sqlite:///mlflow.db", taken.getsockname()[1], print)
