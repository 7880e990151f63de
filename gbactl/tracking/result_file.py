"""Result of a run in its directory: result.json, written whole, into disk space that was reserved for it."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from gbactl.atomic_files import replacing, room_needed

RESULT = "result.json"
ROOM = ".room"  # file of a run directory that holds the disk space reserved for the result


def read_result(path: Path) -> dict[str, Any]:
    """Read a run directory's result.json; {} without one that can be read."""
    with suppress(OSError, ValueError):
        found = json.loads((path / RESULT).read_text())
        return found if isinstance(found, dict) else {}
    return {}


def plain(value: Any) -> Any:
    """Replace infinities and NaN by None, as JSON has no form for them."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write result.json atomically into the reserved disk space. Raises NoRoomError."""
    target = path / RESULT
    with room_needed(target), replacing(target) as partial:
        with suppress(FileNotFoundError):  # overwritten, not freed: on a full disk others could take what is free
            (path / ROOM).replace(partial)
        partial.touch()
        with partial.open("r+") as file:
            file.write(json.dumps(result, indent=2) + "\n")
            file.truncate()
