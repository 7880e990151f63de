"""What `gbactl replay` prints: a sentence for a person, JSON for a pipe, an error where it went wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gbactl.coordinator.phase_log import Divergence, DivergenceError
from gbactl.launch.find_run import find
from gbactl.launch.progress import Show
from gbactl.replay.command import failed, replay, sentence


def run_and_show(run: str, until: int | None, keep: Path | None, uri: str | None) -> None:
    """Find, replay, print. Raises DivergenceError, after printing, where the run is not reproduced."""
    show = Show()
    try:
        verdict = replay(find(run, uri), until, keep, show.step)
    finally:
        show.clear()
    if not sys.stdout.isatty():
        print(json.dumps(verdict), flush=True)
    if failed(verdict):
        found = verdict["divergence"]
        raise DivergenceError(Divergence(found["kind"], found["step"], sentence(verdict)))
    if sys.stdout.isatty():
        print(sentence(verdict))
    else:
        show.say(sentence(verdict))
