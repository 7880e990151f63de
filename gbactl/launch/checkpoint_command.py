"""Implementation of `gbactl checkpoint`: list, verify and export."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gbactl.checkpoint.folder import CheckpointFolder, Manifest, read_manifest
from gbactl.errors import CheckpointError
from gbactl.launch import resume


def show_list(run: str, as_json: bool) -> None:
    """Print one line for each checkpoint of a run. Raises UsageError for an unknown run."""
    folder = CheckpointFolder(resume.folder_of(run))
    names = folder.names()
    for name in names:
        try:
            told = row(read_manifest(folder.path / name))
        except CheckpointError as error:
            told = {"name": name, "error": str(error)}
        print(json.dumps(told) if as_json else line(told))
    if not names:
        print(f"{folder.path} holds no complete checkpoint.", file=sys.stderr)


def row(manifest: Manifest) -> dict[str, Any]:
    """Summarise a checkpoint's manifest."""
    position = manifest.position
    return {
        "name": manifest.name, "step": manifest.step, "kind": manifest.kind, "at": position.get("label", ""),
        "samples": position.get("ledger", {}).get("read"), "mode": position.get("mode", {}).get("name"),
        "servers": manifest.shards, "bytes": manifest.bytes, "rests_on": manifest.base,
    }  # fmt: skip


def line(told: dict[str, Any]) -> str:
    """Format a checkpoint's summary as one line."""
    if "error" in told:
        return f"{told['name']}  {told['error']}"
    base = f", on {len(told['rests_on'])} before it" if told["rests_on"] else ""
    return (
        f"{told['name']}  step {told['step']}  {told['at']}  {told['samples']:,} samples  {told['mode']}, "
        f"{told['servers']} servers  {told['bytes'] / 1e6:,.1f} MB  {told['kind']}{base}"
    )


def verify_all(run: str) -> None:
    """Verify every checkpoint of a run and print the results. Raises CheckpointError at the end if one is damaged."""
    folder = resume.own(run)
    bad = 0
    for name in folder.names():
        try:
            folder.verified(name)
            print(f"{name}  good")
        except CheckpointError as error:
            bad += 1
            print(f"{name}  {error}")
    if not folder.names():
        raise CheckpointError(f"{folder.path} holds no complete checkpoint.")
    if bad:
        told = f"{bad} of {len(folder.names())} checkpoints"
        raise CheckpointError(f"{told} are not good; resume uses the newest that is.")


def export_newest(run: str, out: Path | None) -> None:
    """Export the newest valid checkpoint's model and print the file names. Raises CheckpointError, UsageError."""
    from gbactl.launch.export import export

    chain = resume.find(run)
    for path in export(chain, out or resume.run_of(chain) / "export"):
        print(path)
