"""Implementation of `gbactl checkpoint`: list, verify and export.

An export writes a checkpoint's model in formats of other programs: safetensors, a torch state dict, JSON. It needs the
memory of all servers' rows and optimizer state, and writes the rows twice.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.atomic_files import replacing
from gbactl.checkpoint.folder import CheckpointChain, CheckpointFolder, Manifest, read_manifest
from gbactl.checkpoint.restore import dense_state, load_shard
from gbactl.checkpoint.tensor_file_writer import write_tensors
from gbactl.config import RunConfig, from_dict
from gbactl.config.shard_specs import shard_spec
from gbactl.data.dataset import Schema
from gbactl.errors import CheckpointError, UsageError
from gbactl.launch import resume
from gbactl.models import build, dimension_mask
from gbactl.store.shard import Shard

if TYPE_CHECKING:
    from gbactl.models.flat_parameters import TrainedModel


def show_list(run: str, as_json: bool) -> None:
    """Print one line for each checkpoint of a run. Raises UsageError for an unknown run."""
    folder = CheckpointFolder(resume.folder_of(run))
    names = folder.names()
    for name in names:
        try:
            fields = row(read_manifest(folder.path / name))
        except CheckpointError as error:
            fields = {"name": name, "error": str(error)}
        print(json.dumps(fields) if as_json else line(fields))
    if not names:
        print(f"{folder.path} holds no complete checkpoint.", file=sys.stderr)


def row(manifest: Manifest) -> dict[str, Any]:
    """Extract from a checkpoint's manifest the values that `gbactl checkpoint ls` shows."""
    position = manifest.position
    return {
        "name": manifest.name, "step": manifest.step, "kind": manifest.kind, "at": position.get("label", ""),
        "samples": position.get("ledger", {}).get("read"), "mode": position.get("mode", {}).get("name"),
        "servers": manifest.shards, "bytes": manifest.bytes, "rests_on": manifest.base,
    }  # fmt: skip


def line(fields: dict[str, Any]) -> str:
    """Format one checkpoint, as described by `row`, as a line of text."""
    if "error" in fields:
        return f"{fields['name']}  {fields['error']}"
    base = f", on {len(fields['rests_on'])} before it" if fields["rests_on"] else ""
    return (
        f"{fields['name']}  step {fields['step']}  {fields['at']}  {fields['samples']:,} samples  {fields['mode']}, "
        f"{fields['servers']} servers  {fields['bytes'] / 1e6:,.1f} MB  {fields['kind']}{base}"
    )


def verify_all(run: str) -> None:
    """Verify every checkpoint of a run and print the results. Raises CheckpointError if any is damaged."""
    folder = resume.own_checkpoints(run)
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
        bad_ones = f"{bad} of {len(folder.names())} checkpoints"
        raise CheckpointError(f"{bad_ones} are not good; resume uses the newest that is.")


def export_newest(run: str, out: Path | None) -> None:
    """Export the model of a run's newest valid checkpoint and print the file names.

    Raises CheckpointError, UsageError."""

    chain = resume.find(run)
    for path in export(chain, out or resume.run_of(chain) / "export"):
        print(path)


NAMES = ("model.safetensors", "model.pt", "model.json")


def export(chain: CheckpointChain, out: Path) -> list[Path]:
    """Write a checkpoint's model as three files into folder `out` and return their paths.

    Raises CheckpointError, UsageError."""
    import torch

    last = chain.last
    cfg = from_dict(last.config)
    rows, dense = whole_rows(chain, cfg), dense_state(chain)
    tensors = {**rows, **{f"dense.{name}": values for name, values in dense.items()}}
    state = state_dict(cfg, Schema.from_stored(last.schema), rows["rows"], dense["value"], list(last.schema["fields"]))
    paths = [out / name for name in NAMES]
    description = {
        "step": last.step, "identity": last.identity, "position": {**last.position, "curve": []}, "schema": last.schema,
        "tensors": {name: list(values.shape) for name, values in tensors.items()},
        "state_dict": {name: list(values.shape) for name, values in state.items()}, "config": last.config,
    }  # fmt: skip
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_tensors(paths[0], tensors, {"format": "np", "step": str(last.step)})
        with replacing(paths[1]) as partial:
            torch.save(state, partial)
        paths[2].write_text(json.dumps(description, indent=2) + "\n")
    except OSError as error:
        raise UsageError(f"{out} cannot be written ({error.strerror}); type another --out FOLDER.") from error
    return paths


def trained_model(run: str) -> TrainedModel:
    """Load the model of a run's newest valid checkpoint. Raises CheckpointError, UsageError."""
    import torch

    from gbactl.models.flat_parameters import TrainedModel

    chain = resume.find(run)
    cfg, schema = from_dict(chain.last.config), Schema.from_stored(chain.last.schema)
    rows = torch.from_numpy(whole_rows(chain, cfg)["rows"])
    model = build(cfg.model, schema.numeric, schema.fields, cfg.seed, schema.list_targets)
    return TrainedModel(model, dense_state(chain)["value"], rows, schema)


def whole_rows(chain: CheckpointChain, cfg: RunConfig) -> dict[str, Any]:
    """Load the whole table of a checkpoint as arrays named as in its files; unsaved rows get initial values.

    Rows are in the order of their global numbers. Their values beyond a field's dimension are zeros."""
    alone = dataclasses.replace(cfg, cluster=dataclasses.replace(cfg.cluster, servers=1, dense_servers=None))
    spec = dataclasses.replace(shard_spec(alone, chain.last.table_rows, 0), row_l2="touched")
    shard = Shard(spec)
    load_shard(shard, chain, with_dense=False)
    schema = Schema.from_stored(chain.last.schema)
    mask = dimension_mask(cfg.model, schema, chain.last.schema["fields"])
    if mask is not None:
        for table, (low, high) in enumerate(schema.spans):
            shard.rows.table[low:high] *= mask[schema.table_of.index(table)]
    return shard.rows.arrays


def state_dict(cfg: RunConfig, schema: Schema, rows: Any, dense: Any, names: list[str]) -> dict[str, Any]:
    """Build a state dict: the model's own tensors, and each field's rows as tables.<field> float32[cardinality, W].

    A table that several fields share has the name of the first one. A table's last column is its first-order weight."""
    import torch

    from gbactl.models.flat_parameters import FlatModel

    model = build(cfg.model, schema.numeric, schema.fields, cfg.seed, schema.list_targets)
    FlatModel(model).load(dense)
    found: dict[str, Any] = model.state_dict()  # same object: it holds the versions of the layers
    for name, tensor in list(found.items()):
        found[name] = tensor.detach().clone()
    if len(schema.spans) == 1 < schema.fields:
        found["tables.shared"] = torch.from_numpy(rows)
        return found
    for table, (low, high) in enumerate(schema.spans):
        field = schema.table_of.index(table)
        name = names[field] if field < len(names) else str(field)
        found[f"tables.{name}"] = torch.from_numpy(rows[low:high].copy())
    return found
