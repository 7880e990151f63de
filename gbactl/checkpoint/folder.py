"""Folder of a run's checkpoints and the manifest of each: list, verify and remove them.

A manifest names a checkpoint's files with sizes and checksums, and the job's position. It is written last, synced to
disk before it gets its name, and holds a checksum of itself: a checkpoint without a valid manifest does not exist. All
names in it are names within one folder. Verifying a checkpoint reads every byte (about 1.5 GB/s); an incomplete or
damaged one is never loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from gbactl.atomic_files import replacing, sync_to_disk
from gbactl.checked_dataclasses import matches
from gbactl.checkpoint.tensor_file_writer import PIECE, finite, not_finite
from gbactl.errors import CheckpointError

FORMAT = 1
MANIFEST = "manifest.json"
MOST_BYTES = 64 << 20
CUT = re.compile(r"cut-\d{6,12}")
FILE = re.compile(r"(S\d{1,6}|dense)\.safetensors")


@dataclass(frozen=True)
class FileEntry:
    """File of a checkpoint, with its shard (-1: it has the dense parameters that workers hold).

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
        return checkpoint_name(self.number)

    @property
    def bytes(self) -> int:
        """Size of all files of the checkpoint together."""
        return sum(entry.bytes for entry in self.files)


def checkpoint_name(number: int) -> str:
    """Return the name of the folder of checkpoint `number`."""
    return f"cut-{number:06d}"


def _sum(values: Mapping[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest, without which a checkpoint counts as not existing. Raises OSError."""
    values = asdict(manifest)
    text = json.dumps({**values, "sum": _sum(json.loads(json.dumps(values)))}, indent=1) + "\n"
    with replacing(folder / MANIFEST) as partial, partial.open("w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    sync_to_disk(folder)


def read_manifest(folder: Path) -> Manifest:
    """Read a checkpoint's manifest. Raises CheckpointError with the file's name if it is missing or damaged."""
    path = folder / MANIFEST
    try:
        if folder.is_symlink() or path.is_symlink():
            raise ValueError("it leads out of its folder")
        if path.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        values = json.loads(path.read_text("utf-8"))
        return _parsed(values)
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no {MANIFEST}: it is not a complete checkpoint.") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}).") from error


def _parsed(values: Any) -> Manifest:
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    if values.get("format") != FORMAT:
        raise ValueError(f"its format is {values.get('format')!r}, this gbactl reads {FORMAT}")
    if values.pop("sum", None) != _sum(values):
        raise ValueError("its content does not match its checksum")
    files = [_built(FileEntry, entry) for entry in values["files"]]
    manifest: Manifest = _built(Manifest, {**values, "files": files})
    if not all(FILE.fullmatch(entry.name) for entry in manifest.files):
        raise ValueError("it names a file whose name is invalid")
    if not all(CUT.fullmatch(name) for name in manifest.base):
        raise ValueError("it names a checkpoint whose name is invalid")
    return manifest


def _built(cls: type[Any], values: dict[str, Any]) -> Any:
    hints = get_type_hints(cls)
    if set(values) != set(hints):
        raise ValueError(f"it has the keys {', '.join(sorted(values))}, not {', '.join(sorted(hints))}")
    for key, value in values.items():
        if key != "files" and not matches(value, hints[key]):
            raise ValueError(f"{key} has a wrong type")
    return cls(**values)


def identity(config: Mapping[str, Any], data: str) -> str:
    """Hash the values that must be equal for a job to continue from another job's checkpoint."""
    return _sum(json.loads(json.dumps(shared_values(config, data))))


def shared_values(config: Mapping[str, Any], data: str) -> dict[str, Any]:
    """Return the values that a job must share with a checkpoint to continue from it.

    They are the model, the data's fingerprint, the optimizer's name and the seed."""
    return {"model": config["model"], "optimizer": config["optim"]["name"], "seed": config["seed"], "data": data}


CHECKPOINTS = "checkpoints"
TRASH = ".gone-"
Refused = Callable[[str], None]
Part = tuple[int, int] | None  # (shard, number of shards); None: all shards


@dataclass(frozen=True)
class CheckpointChain:
    """Checkpoint with the earlier ones that must be loaded before it, oldest first; `folder` contains them all."""

    folder: Path
    manifests: tuple[Manifest, ...]

    @property
    def last(self) -> Manifest:
        """Manifest of the checkpoint itself, the last of the chain."""
        return self.manifests[-1]

    def files(self, shard: int) -> list[Path]:
        """Return a shard's files in all checkpoints of the chain, oldest first."""
        return [
            self.folder / manifest.name / entry.name
            for manifest in self.manifests
            for entry in manifest.files
            if entry.shard == shard
        ]


class CheckpointFolder:
    """Folder of all checkpoints of a run.

    `path` need not exist. `identity`: the run's, as in manifests ("": unknown, any is accepted)."""

    def __init__(self, path: Path, identity: str = "") -> None:
        self.path, self.identity = path, identity

    def names(self) -> list[str]:
        """List every checkpoint that has a manifest, oldest first, without verifying its files."""
        return sorted((name for name in self._found() if (self.path / name / MANIFEST).is_file()), key=number_of)

    def _found(self) -> list[str]:
        """List every checkpoint, complete or not."""
        entries = self.path.iterdir() if self.path.is_dir() else ()
        return [entry.name for entry in entries if CUT.fullmatch(entry.name)]

    def next_number(self) -> int:
        """Return a number larger than the number of any checkpoint, complete or not."""
        return max(map(number_of, self._found()), default=0) + 1

    def chain(self, name: str) -> CheckpointChain:
        """Read the manifests of a checkpoint and of the checkpoints that it builds on. Raises CheckpointError."""
        last = read_manifest(self.path / name)
        if last.name != name:
            raise CheckpointError(f"{self.path / name / MANIFEST} is the manifest of {last.name}, not of {name}.")
        if self.identity and last.identity != self.identity:
            what = "its model, data, optimizer or seed is not that of this one"
            raise CheckpointError(f"{self.path / name} is of another run: {what}.")
        manifests = [*(read_manifest(self.path / base) for base in last.base), last]
        for name_, manifest in zip(last.base, manifests, strict=False):
            if manifest.name != name_ or manifest.identity != last.identity or manifest.shards != last.shards:
                raise CheckpointError(f"{self.path / name_} does not belong to {name}.")
        return CheckpointChain(self.path, tuple(manifests))

    def verified(self, name: str, part: Part = None) -> CheckpointChain:
        """Verify all files of a checkpoint's chain, or those that shard `part` loads; return the chain.

        Raises CheckpointError that names the damaged file."""
        chain = self.chain(name)
        for manifest in chain.manifests:
            for entry in loaded_by(part, manifest):
                check(self.path / manifest.name / entry.name, entry)
        return chain

    def newest(self, refused: Refused = lambda _: None, part: Part = None) -> CheckpointChain:
        """Return the newest checkpoint of this run whose files are valid: all files, or those that shard `part` loads.

        `refused` is called with the error of each invalid checkpoint. Raises CheckpointError if none is valid."""
        for name in reversed(self.names()):
            try:
                return self.verified(name, part)
            except CheckpointError as error:
                refused(str(error))
        raise CheckpointError(f"{self.path} holds no complete checkpoint.")

    def keep(self, count: int) -> None:
        """Remove all checkpoints except the newest `count`, the checkpoints they build on, and one being written."""
        names = self.names()
        needed: set[str] = set()
        for name in names[-count:]:
            needed.add(name)
            try:
                needed.update(read_manifest(self.path / name).base)
            except CheckpointError:
                return  # unknown which checkpoints the newest ones build on: remove none
        for name in self._found() if names else ():
            if name not in needed and number_of(name) < number_of(names[-1]):
                self.remove(name)
        for trash in self.path.glob(f"{TRASH}*"):  # left by a process that ended during a removal
            shutil.rmtree(trash, ignore_errors=True)

    def remove(self, name: str) -> None:
        """Remove a checkpoint: first rename it away atomically, then delete its files."""
        path, trash = self.path / name, self.path / f"{TRASH}{name}"
        if path.is_dir():
            shutil.rmtree(trash, ignore_errors=True)
            path.replace(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def sweep(self) -> None:
        """Remove incomplete checkpoints; call it only while no checkpoint is being written."""
        for path in list(self.path.iterdir()) if self.path.is_dir() else []:
            incomplete = CUT.fullmatch(path.name) and not (path / MANIFEST).exists()
            if incomplete or path.name.startswith(TRASH):
                shutil.rmtree(path, ignore_errors=True)

    def begin(self, number: int) -> Path:
        """Create the folder of a new checkpoint, without a manifest. Raises OSError."""
        path = self.path / checkpoint_name(number)
        path.mkdir(parents=True)
        return path


def number_of(name: str) -> int:
    """Parse the number of a checkpoint from its folder's name."""
    return int(name.partition("-")[2])


def loaded_by(part: Part, manifest: Manifest) -> list[FileEntry]:
    """Return the files of a checkpoint that a shard has to load.

    These are its own file and the dense parameters', or all files where the number of shards differs."""
    if part is None or part[1] != manifest.shards:
        return manifest.files
    return [entry for entry in manifest.files if entry.shard in (part[0], -1)]


def check(path: Path, entry: FileEntry) -> None:
    """Read a checkpoint's file and verify that its values are finite and its checksums match the manifest.

    Raises CheckpointError, with the file's name."""
    try:
        if path.is_symlink():
            raise ValueError("it leads out of its folder")
        if path.stat().st_size != entry.bytes:
            raise ValueError(f"it has {path.stat().st_size} bytes, not {entry.bytes}")
        not_finite_tensor = _check_sums(path, entry)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged ({error}).") from error
    if not_finite_tensor:
        raise not_finite(path, not_finite_tensor)


def _check_sums(path: Path, entry: FileEntry) -> str:
    """Verify all checksums of a file; returns the name of the first tensor with an infinity or NaN, or ""."""
    with path.open("rb") as file:
        length = file.read(8)
        header = file.read(min(int.from_bytes(length, "little"), entry.bytes))
        if hashlib.sha256(length + header).hexdigest() != entry.sums[""]:
            raise ValueError("its header does not match its checksum")
        tensors = {name: info for name, info in json.loads(header).items() if name != "__metadata__"}
        if set(tensors) != set(entry.sums) - {""}:
            raise ValueError("it holds other tensors than its manifest lists")
        not_finite_tensor = ""
        for name, info in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
            low, high = info["data_offsets"]
            file.seek(8 + len(header) + low)
            digest, is_finite = _digest(file, high - low, info["dtype"])
            if digest != entry.sums[name]:
                raise ValueError(f"{name} does not match its checksum")
            not_finite_tensor = not_finite_tensor or ("" if is_finite else name)
    return not_finite_tensor


def _digest(file: object, size: int, kind: str) -> tuple[str, bool]:
    """Compute (SHA-256 of a tensor's bytes, whether its values are finite)."""
    found, is_finite = hashlib.sha256(), True
    while size > 0:
        data: bytes = file.read(min(PIECE, size))  # type: ignore[attr-defined]
        if not data:
            break
        found.update(data)
        is_finite = is_finite and finite(kind, data)
        size -= len(data)
    return found.hexdigest(), is_finite
