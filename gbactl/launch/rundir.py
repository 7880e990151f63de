"""Run directory: resolved configuration, logs, event log, result. One per run, never shared."""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gbactl.config import RunConfig, to_dict
from gbactl.errors import UsageError
from gbactl.paths import room_needed, take_room

RESULT = "result.json"
CONFIG = "config.yaml"
FAULTS = "faults.json"
LOG = "events.log"
LOCK = ".run.lock"
ROOM = ".room"
ROOM_BYTES = 1 << 17  # reserved for the result in case the disk fills up


def create(cfg: RunConfig) -> Path:
    """Create a run's directory. Raises UsageError when run_dir= names one that already holds a run."""
    if cfg.run_dir is not None:
        path = Path(cfg.run_dir)
        if (path / CONFIG).exists():
            raise UsageError(f"{path} already holds a run; type another run_dir= or remove it.")
    else:
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path = Path("runs") / f"{stamp}-{cfg.mode.name}-s{cfg.seed}-{secrets.token_hex(3)}"
    try:
        (path / "logs").mkdir(parents=True, exist_ok=True)
        keep_room(path)
        write_config(path, cfg)
    except OSError as error:
        reason = error.strerror
        raise UsageError(f"The run directory {path} cannot be made ({reason}); type another run_dir=.") from error
    return path.resolve()


def reopen(path: Path, cfg: RunConfig) -> Path:
    """Reopen a run's directory to resume it; earlier files are kept under numbered names."""
    part = 1 + max((int(old.suffix[1:]) for old in path.glob("logs.*") if old.suffix[1:].isdigit()), default=0)
    for name in ("logs", CONFIG, RESULT, LOG):
        stem, dot, suffix = name.partition(".")
        if (path / name).exists():
            (path / name).replace(path / f"{stem}.{part}{dot}{suffix}")
    with room_needed(path):
        (path / "logs").mkdir()
        keep_room(path)
        write_config(path, cfg)
    return path.resolve()


def keep_room(path: Path) -> None:
    """Reserve disk space for the result until it is written. Raises OSError."""
    with (path / ROOM).open("wb") as file:
        take_room(file.fileno(), ROOM_BYTES)


def lock(path: Path) -> FileLock:
    """Lock a run's directory while the run works in it. Raises UsageError if another run has locked it."""
    held = FileLock(path / LOCK, thread_local=False)
    try:
        held.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"The run in {path} is still going on; wait for its end, or end it.") from error
    return held


def tracked_as(path: Path) -> str | None:
    """Return the MLflow id of the run in a directory, from its result, or None."""
    try:
        found = json.loads((path / RESULT).read_text()).get("run_id")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def write_config(path: Path, cfg: RunConfig) -> None:
    """Write the resolved configuration, as YAML that `gbactl train` understands."""
    import yaml

    (path / CONFIG).write_text(yaml.safe_dump(to_dict(cfg), sort_keys=False))


def write_faults(path: Path, cfg: RunConfig, injected: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write faults.json: the plans with defaults and chosen processes; no file where there are no faults.

    `injected`: the kills and hangs so far."""
    plan = cfg.fault_plan()
    if plan.faults:
        more = {"injected": list(injected)} if injected else {}
        (path / FAULTS).write_text(json.dumps({"seed": plan.seed, "plans": plan.told(), **more}, indent=2) + "\n")


def plain(value: Any) -> Any:
    """Replace numbers that are not finite by None, as JSON has no form for them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_result(path: Path, result: dict[str, Any]) -> Path:
    """Write result.json, atomically and in the space reserved for it. Raises NoRoomError."""
    target, partial = path / RESULT, path / f".{RESULT}.partial"
    (path / ROOM).unlink(missing_ok=True)
    with room_needed(target):
        try:
            partial.write_text(json.dumps(result, indent=2) + "\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    return target
