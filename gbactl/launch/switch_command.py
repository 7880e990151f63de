"""`gbactl switch`: a training with a schedule, or a word to a training that runs."""

from __future__ import annotations

import json
import sys
from typing import Any

from gbactl.config import RunConfig
from gbactl.errors import UsageError
from gbactl.launch.find_run import find
from gbactl.launch.rundir import CONFIG
from gbactl.launch.switch_client import Asking, mode_with
from gbactl.switching import messages


def train_switching(overrides: list[str]) -> None:
    """`gbactl train`, which insists on a schedule. Raises UsageError without one."""
    from gbactl.launch.compose import run_hydra
    from gbactl.launch.run import train

    def job(cfg: RunConfig) -> Any:
        if not cfg.switch.schedule and not cfg.candidates:
            raise UsageError(
                "There is nothing to switch: type switch.schedule='[{at: {day: 1}, to: gba}]', switch=auto, or "
                "--run RUN --to MODE for a run that goes on already."
            )
        return train(cfg)

    run_hydra(overrides, job)


def ask(run: str, to: str, changes: tuple[str, ...], wait: bool, as_json: bool, uri: str | None) -> None:
    """Ask a running job to go on in another mode, and print what it says. Raises GbactlError where it does not."""
    mode = mode_with(to, changes)
    with Asking(find(run, uri, holding=CONFIG)) as asking:
        found = asking.switch(mode, wait)
    machine = as_json or not sys.stdout.isatty()
    if machine:
        print(json.dumps(found), flush=True)
    print(messages.answer(found), file=sys.stderr if machine else sys.stdout, flush=True)


def tell_status(run: str, as_json: bool, uri: str | None) -> None:
    """Print how a running job is."""
    run_dir = find(run, uri, holding=CONFIG)
    with Asking(run_dir) as asking:
        found = asking.status()
    print(json.dumps(found) if as_json else messages.status(run_dir, found), flush=True)
