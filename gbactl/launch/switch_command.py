"""Implementation of `gbactl switch`: a training with a schedule, or a request to a running job."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from gbactl.config import RunConfig
from gbactl.config.engine_capabilities import place_of
from gbactl.errors import ConfigError, GbactlError, UsageError, WireError
from gbactl.launch.control import FILE, LAST, ROLE
from gbactl.launch.find_run import find
from gbactl.launch.rundir import CONFIG, LOG, RESULT, lock
from gbactl.policies.base import names
from gbactl.switching import messages
from gbactl.wire.auth import Peer
from gbactl.wire.event_loop import SocketHub
from gbactl.wire.frames import CLOSED, Frame
from gbactl.wire.messages import Event, decode

ANSWER_SECONDS = 15.0


def train_switching(overrides: list[str]) -> None:
    """Train like `gbactl train`, but require a switch schedule. Raises UsageError without one."""
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
    """Ask a running job to switch to another mode, and print its answer. Raises GbactlError where it does not."""
    mode = mode_with(to, changes)
    with ControlClient(find(run, uri, holding=CONFIG)) as asking:
        found = asking.switch(mode, wait)
    machine = as_json or not sys.stdout.isatty()
    if machine:
        print(json.dumps(found), flush=True)
    print(messages.answer(found), file=sys.stderr if machine else sys.stdout, flush=True)


def tell_status(run: str, as_json: bool, uri: str | None) -> None:
    """Print the status of a running job."""
    run_dir = find(run, uri, holding=CONFIG)
    with ControlClient(run_dir) as asking:
        found = asking.status()
    print(json.dumps(found) if as_json else messages.status(run_dir, found), flush=True)


class ControlClient:
    """Connection to the control socket of a run. Raises UsageError, one sentence, where the run does not listen."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        address, key = _door(run_dir)
        self.hub = SocketHub(key, Peer(ROLE, 0))
        self._frames: deque[Frame] = deque()
        try:
            self.channel = self.hub.connect(address, peer=Peer("launcher", 0))
        except WireError as error:
            self.hub.close()
            raise UsageError(_gone(run_dir)) from error

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.close()

    def status(self) -> dict[str, Any]:
        """Request the last progress of the run and its switches."""
        self.channel.send(Event("status", {}))
        return self._heard(ANSWER_SECONDS)

    def switch(self, mode: dict[str, Any], wait: bool) -> dict[str, Any]:
        """Request a switch to a mode, given with all its keys, and return the last answer.

        `wait`: until the first gradient in it. Raises GbactlError if the run ends without an answer."""
        self.channel.send(Event("switch", {"mode": mode}))
        limit: float | None = ANSWER_SECONDS
        while True:
            answer = self._heard(limit)
            if answer["state"] in LAST or not wait:
                return answer
            limit = None

    def _heard(self, seconds: float | None) -> dict[str, Any]:
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._frames:
            if deadline is not None and time.monotonic() > deadline:
                raise GbactlError(f"The run in {self.run_dir} does not answer; look into its logs.")
            self._frames.extend(frame for _, frame in self.hub.poll(0.5))
        frame = self._frames.popleft()
        if frame.kind == CLOSED:
            raise GbactlError(f"The run in {self.run_dir} ended before it answered.")
        message = decode(frame)
        assert isinstance(message, Event)
        return message.fields


def _door(run_dir: Path) -> tuple[str, bytes]:
    """Read (address, key) of a run's control socket."""
    try:
        fields = json.loads((run_dir / FILE).read_text())
        return str(fields["address"]), bytes.fromhex(fields["key"])
    except FileNotFoundError:
        raise UsageError(_gone(run_dir)) from None
    except PermissionError:
        raise UsageError(f"{run_dir / FILE} belongs to somebody else; only who started a run may switch it.") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{run_dir / FILE} cannot be read ({error}).") from error


def _gone(run_dir: Path) -> str:
    if (run_dir / RESULT).is_file():
        return f"The run in {run_dir} has ended; type gbactl train to start another."
    if _virtual(run_dir):
        return f"The run in {run_dir} is virtual: it follows its switch.schedule, or switch=auto, and cannot be asked."
    try:
        lock(run_dir).release()
    except UsageError:
        if (run_dir / LOG).is_file():
            return f"The run in {run_dir} has trained and writes its result; wait for {run_dir / RESULT}."
        return f"The run in {run_dir} is about to start; ask again in a few seconds."
    return f"The run in {run_dir} is not running: it ended without a result, for instance because it was killed."


def _virtual(run_dir: Path) -> bool:
    import yaml

    try:
        config = yaml.safe_load((run_dir / CONFIG).read_text())
        return not place_of(str(config["cluster"]["name"])).real
    except (OSError, yaml.YAMLError, KeyError, TypeError, ConfigError):
        return False


def mode_with(to: str, changes: tuple[str, ...]) -> dict[str, Any]:
    """Load every key of conf/mode/TO.yaml, with KEY=VALUE changes.

    Raises UsageError for an unknown mode, and for a change that is no such pair."""
    import yaml

    from gbactl.launch.compose import mode_file

    if to not in names():
        raise UsageError(f"--to {to} is no mode; type --to one of: {', '.join(names())}.")
    values = mode_file(to)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {change} is no KEY=VALUE; type for instance --set iota=4.")
        try:
            values[key.removeprefix("mode.")] = _number(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise UsageError(f"--set {change} has a value that cannot be read.") from error
    return {**values, "name": to}


def _number(value: Any) -> Any:
    """Convert a value such as inf or 3e6, which YAML reads as text, to a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
