"""Commands that the end of a run proposes: compare it, look at it, train another mode, take its model."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from gbactl.config import RunConfig, TrackingConfig
from gbactl.errors import GbactlError
from gbactl.launch.progress import shown_path
from gbactl.tracking.run_description import CommandLine


def after_run(cfg: RunConfig, command: CommandLine, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List what to type after a finished run, as pairs of a purpose and a command."""
    run_dir = Path(result["run_dir"])
    found = []
    if command.verb == "train" and not cfg.switch.schedule:
        other = _in_mode(command, "gba" if cfg.mode.name == "sync" else "sync")
        found += [] if other is None else [("another mode", other.text)]
    found += after_runs(cfg.tracking) if cfg.tracking.enabled else []
    if CheckpointFolder(run_dir / CHECKPOINTS).names():
        found.append(("take its model", f"gbactl checkpoint export {shlex.quote(shown_path(run_dir))}"))
    return found


def after_runs(tracking: TrackingConfig) -> list[tuple[str, str]]:
    """List the commands that show tracked runs beside each other."""
    store = "" if tracking.uri is None else f" --uri {shlex.quote(tracking.uri)}"
    experiment = "" if tracking.experiment == "gbactl" else f" --experiment {shlex.quote(tracking.experiment)}"
    return [("compare runs", f"gbactl report{experiment}{store}"), ("look at them", f"gbactl ui{store}")]


def _in_mode(command: CommandLine, mode: str) -> CommandLine | None:
    """Return the command of the same run in another mode, without the keys of `mode`; None if that is refused."""
    from gbactl.launch.hydra_config import compose

    kept = tuple(each for each in command.overrides if not each.lstrip("+").startswith(("mode=", "mode.")))
    other = replace(command, overrides=(*kept, f"mode={mode}"))
    try:
        compose(list(other.overrides))
    except GbactlError:
        return None
    return other
