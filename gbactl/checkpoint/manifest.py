"""Manifest of a checkpoint: its files with sizes and checksums, and the job's position.

It is written last, synced to disk before it gets its name, and holds a checksum of itself: a checkpoint without a valid
manifest does not exist. All names in it are names within one folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from gbactl.checkpoint.tensor_file import sync_folder
from gbactl.config_types import matches
from gbactl.errors import CheckpointError

FORMAT = 1
NAME = "manifest.json"
MOST_BYTES = 64 << 20
CUT = re.compile(r"cut-\d{6,12}")
FILE = re.compile(r"(S\d{1,6}|dense)\.safetensors")


@dataclass(frozen=True)
class FileEntry:
    """File of a checkpoint. `shard`: its shard (-1: the dense parameters that workers hold).

    `rows`: rows in it; `sums`: checksums by tensor ("": the header)."""

    name: str
    shard: int
    bytes: int
    rows: int
    sums: dict[str, str]


@dataclass(frozen=True)
class Manifest:
    """Manifest of one checkpoint of a job: all shards at the same step.

    `number` counts a job's checkpoints. `kind`: whole, rest or chosen. `base`: the checkpoints to load before it,
    oldest first (none for a whole one). `home`: placement of the dense parameters. `position` and `config` of the job,
    `schema` of its data. `identity`: what a job that loads it must have in common."""

    number: int
    step: int
    kind: str
    shards: int
    table_rows: int
    width: int
    home: str
    files: list[FileEntry]
    position: dict[str, Any]
    config: dict[str, Any]
    schema: dict[str, Any]
    identity: str
    base: list[str] = field(default_factory=list)
    gbactl: str = ""
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder."""
        return cut_name(self.number)

    @property
    def bytes(self) -> int:
        """Size of all files of the checkpoint."""
        return sum(entry.bytes for entry in self.files)


def cut_name(number: int) -> str:
    """Return the folder's name of checkpoint `number`."""
    return f"cut-{number:06d}"


def _sum(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, which makes the checkpoint exist. Raises OSError; then it does not exist."""
    values = asdict(manifest)
    text = json.dumps({**values, "sum": _sum(json.loads(json.dumps(values)))}, indent=1) + "\n"
    partial = folder / f".{NAME}.partial"
    try:
        with partial.open("w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(folder / NAME)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def read(folder: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises CheckpointError, with the file's name, where it is missing or damaged."""
    path = folder / NAME
    try:
        if folder.is_symlink() or path.is_symlink():
            raise ValueError("it leads out of its folder")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        values = json.loads(path.read_text("utf-8"))
        return _parsed(values)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no {NAME}: it is not a complete checkpoint.") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}).") from error


def _parsed(values: Any) -> Manifest:
    if not isinstance(values, dict):
        raise ValueError("it is no object")
    if values.get("format") != FORMAT:
        raise ValueError(f"its format is {values.get('format')!r}, this gbactl reads {FORMAT}")
    if values.pop("sum", None) != _sum(values):
        raise ValueError("its checksum is another")
    files = [_built(FileEntry, entry) for entry in values["files"]]
    manifest: Manifest = _built(Manifest, {**values, "files": files})
    if not all(FILE.fullmatch(entry.name) for entry in manifest.files):
        raise ValueError("it names a file that cannot be in a checkpoint")
    if not all(CUT.fullmatch(name) for name in manifest.base):
        raise ValueError("it names a checkpoint that cannot be")
    return manifest


def _built(cls: type[Any], values: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    if set(values) != set(hints):
        raise ValueError(f"it has the keys {', '.join(sorted(values))}")
    for key, value in values.items():
        if key != "files" and not matches(value, hints[key]):
            raise ValueError(f"{key} is of another type")
    return cls(**values)


def identity(config: Mapping[str, Any], data: str) -> str:
    """Hash the values that two jobs must share for one to continue from the other's checkpoint."""
    return _sum(json.loads(json.dumps(shared(config, data))))


def shared(config: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return the values that two such jobs share: model, data fingerprint, optimizer's name, seed."""
    return {"model": config["model"], "optimizer": config["optim"]["name"], "seed": config["seed"], "data": data}
