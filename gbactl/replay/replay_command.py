"""`gbactl replay`: replay a run found by name, print the verdict, and write the model to a file if asked.

The verdict is a sentence, or JSON. Besides the log, the bits depend on the processor, torch and
its number of threads. The model file is one .npz of numpy arrays, no pickle: `rows` f32[rows, width] and `row_<moment>`
by global row id, `row_counts` (Adam), `dense` f32[P + Q], `dense_<moment>` f32[P], `dense_steps`, `step` (optimizer
steps taken), `config` (JSON); it needs the model's memory a second time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gbactl.atomic_files import replacing
from gbactl.config import RunConfig, to_dict
from gbactl.coordinator.training_phase import DivergenceError
from gbactl.data.cache import prepare
from gbactl.data.dataset import Dataset, Progress, open_dataset
from gbactl.engine.preflight import check_model
from gbactl.errors import DataError, EventLogError, UsageError
from gbactl.kernels.native import flushed
from gbactl.launch.progress import ProgressDisplay
from gbactl.launch.run_dir import LOG, find, tracked_as
from gbactl.models.gradient_computer import torch_threads
from gbactl.nodes.role_setup import header
from gbactl.replay.event_log_scan import Recording, scan
from gbactl.replay.replayer import Replayer
from gbactl.store.shard import Shard
from gbactl.tracking.mlflow_store import log_linked_run, tracking_uri


def model_arrays(shards: Sequence[Shard]) -> dict[str, NDArray[Any]]:
    """Collect rows, dense vector and optimizer state of all shards as named arrays."""
    tables, states = [shard.rows.arrays for shard in shards], [shard.dense_state() for shard in shards]
    found = {name.replace("moment.", ""): _rows([each[name] for each in tables]) for name in tables[0]}
    for key in states[0]:
        if key != "step":
            name = "dense" if key == "value" else key.replace("moment.", "dense_")
            found[name] = np.concatenate([state[key] for state in states])
    found["dense_steps"] = states[0]["step"]
    return found


def _rows(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Interleave the shards' rows: row r of the whole table is local row r // shards of shard r % shards."""
    whole = np.empty((sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    for shard, part in enumerate(parts):
        whole[shard :: len(parts)] = part
    return whole


def write_model(path: Path, cfg: RunConfig, shards: Sequence[Shard]) -> None:
    """Write the replayed model to a file, atomically. Raises UsageError if it cannot be written."""
    more = {"step": np.array(shards[0].version), "config": np.array(json.dumps(to_dict(cfg)))}
    try:
        with replacing(path) as partial, partial.open("wb") as file:
            np.savez(file, **model_arrays(shards), **more)  # type: ignore[arg-type]
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); type another --keep PATH.") from error


SAME = {"machine": "processor", "cpu_flags": "processor's vector instructions", "torch": "version of torch"}


def replay(
    run_dir: Path, until: int | None = None, path: Path | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Replay a run's log to its end or to step `until`; return the verdict as plain containers, also on divergence.

    `identical` is None where no checksum stands in the replayed part of the log; `cut_at` is the byte at which the log
    of a stopped run ends. The model is written to `path`, by default in the run directory where `until` is given.
    Raises GbactlError where log, data or arguments make a replay impossible, and after the replay where a torn record
    may be damage.
    """
    began = time.monotonic()
    recording = scan(run_dir / LOG)
    last = _last_step(recording, until)
    dataset = _dataset(recording, progress)
    cfg = recording.cfg
    if (model := check_model(cfg, dataset)) and model.obstacle:
        raise EventLogError(model.obstacle)
    differences = machine_differences(recording.header, header(recording.cfg, dataset))
    with torch_threads(recording.header["threads"]), flushed():
        replayer = Replayer(recording, dataset, last, bool(differences), progress)
        found = _run(replayer)
        kept = _keep(replayer, run_dir, path, until is not None) if found is None else None
    if found is None and until is None and recording.torn:
        before = _size(replayer.step, replayer.computed)
        raise EventLogError(f"{recording.torn} What stands before is as logged: {before}.")
    return {
        "run_dir": str(run_dir), "mode": recording.cfg.mode.name,
        "identical": found is None if found or replayer.checks.compared else None,
        "steps": replayer.step, "of_steps": recording.steps, "gradients": replayer.computed,
        "dropped": replayer.dropped, "shards": recording.shards,
        "cut_at": None if recording.ended or until is not None else recording.path.stat().st_size,
        "checksums": replayer.checks.compared,
        "divergence": None if found is None else asdict(found), "machine_differs": differences,
        "model": None if kept is None else str(kept), "seconds": time.monotonic() - began,
    }  # fmt: skip


def _last_step(recording: Recording, until: int | None) -> int:
    if until is None:
        return recording.steps
    if not 0 <= until <= recording.steps:
        raise UsageError(f"The run took {recording.steps} steps; type --until 0 to {recording.steps}.")
    return until


def _dataset(recording: Recording, progress: Progress | None) -> Dataset:
    dataset = open_dataset(prepare(recording.cfg.data, progress))
    if dataset.fingerprint != recording.header["data"]:
        raise DataError(
            f"The data are not what {recording.path} was made with (fingerprint {dataset.fingerprint[:12]} instead "
            f"of {recording.header['data'][:12]}); put the original files back where data.path says."
        )
    return dataset


def _run(replayer: Replayer) -> DivergenceError | None:
    try:
        replayer.run()
    except DivergenceError as error:
        return error
    return replayer.checks.first


def _keep(replayer: Replayer, run_dir: Path, path: Path | None, wanted: bool) -> Path | None:
    if path is None and not wanted:
        return None
    replayer.replica.move("servers")
    target = path or run_dir / f"replay-{replayer.step}.npz"
    write_model(target, replayer.cfg, replayer.shards)
    return target


def sentence(verdict: dict[str, Any]) -> str:
    """Describe the verdict of a replay in a sentence, for a terminal."""
    found, differs = verdict["divergence"], verdict["machine_differs"]
    size = f"{_size(verdict['steps'], verdict['gradients'])}, {verdict['shards']} shards"
    other = " and another ".join(differs)
    note = f" This machine has another {other} than the run's: bits may differ." if differs else ""
    if found is not None:
        return f"{found['text']}{note}"
    kept = f" The model is in {verdict['model']}." if verdict["model"] else ""
    if verdict["cut_at"] is not None:
        kept += f" The log is cut off at byte {verdict['cut_at']} (the run was stopped); this is a replay to there."
    if verdict["checksums"] == 0:
        return f"Replayed {size}; the log has no checksum to compare with yet.{kept}{note}"
    return f"bit-identical: {size}.{kept}{note}"


def _size(steps: int, gradients: int) -> str:
    return f"{steps} steps, {gradients} gradients"


def failed(verdict: dict[str, Any]) -> bool:
    """Whether a replay did not reproduce the run though it should.

    On another machine bits may differ, but decisions may not.
    """
    found = verdict["divergence"]
    return found is not None and not (verdict["machine_differs"] and found["kind"] == "bits")


def machine_differences(logged: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """List the machine properties that differ from the log's header; [] if the same bits are expected."""
    return [name for key, name in SAME.items() if logged[key] != own[key]]


def _log(run_dir: Path, verdict: dict[str, Any], uri: str | None) -> None:
    """Log the verdict to MLflow as a child of the run; do nothing if no store has the run."""
    run_id = tracked_as(run_dir)
    if run_id is None:
        return
    metrics = {name: float(verdict[name]) for name in ("steps", "gradients", "checksums", "seconds")}
    with contextlib.suppress(Exception):
        status = "FAILED" if failed(verdict) else "FINISHED"
        log_linked_run(tracking_uri(uri), run_id, "replay", sentence(verdict), status, metrics)


def run_and_show(run: str, until: int | None, keep: Path | None, uri: str | None, as_json: bool = False) -> None:
    """Find a run, replay it, and print the verdict.

    Raises DivergenceError, after printing, where it is not reproduced.
    """
    show, run_dir = ProgressDisplay(), find(run, uri)
    try:
        verdict = replay(run_dir, until, keep, show.show_step)
    finally:
        show.clear()
    _log(run_dir, verdict, uri)
    if as_json:
        print(json.dumps(verdict), flush=True)
    if failed(verdict):
        found = verdict["divergence"]
        raise DivergenceError(found["kind"], found["step"], sentence(verdict))
    if as_json:
        show.print_line(sentence(verdict))
    else:
        print(sentence(verdict))
