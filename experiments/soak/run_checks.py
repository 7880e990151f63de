"""Checks of a training that was hit by faults: its accounting, the faults themselves, its replay, its model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from gbactl.checkpoint.folder import CHECKPOINTS, CheckpointChain, CheckpointFolder
from gbactl.checkpoint.restore import dense_state
from gbactl.config import from_dict
from gbactl.errors import GbactlError
from gbactl.hashes_and_random_numbers import MODULUS, row_sum
from gbactl.launch.checkpoint_command import whole_rows
from gbactl.store.optimizer_settings import MOMENTS, OptimizerSpec

CANNOT = "cannot be replayed"
DENSE_SALT = 100  # as in DenseBlock.model_sum


class Wrong(Exception):
    """Violation of a property that must hold."""


def accounts(result: dict[str, Any], rows: int) -> None:
    """Check that every sample of the job has one fate. Raises Wrong."""
    counted = result["samples"]
    if not counted["read"] == counted["trained"] + counted["decayed"] + counted["lost"] == rows:
        raise Wrong(f"the samples do not add up: {counted}")


def struck(run_dir: Path, must: Iterable[tuple[str, str]]) -> None:
    """Check that every fault bound to a step was injected.

    A worker may be dead already when its own is due. Raises Wrong.
    """
    plan = run_dir / "faults.json"
    told = json.loads(plan.read_text()).get("injected", []) if plan.exists() else []
    done = Counter((each["kind"], each["process"][0]) for each in told if each["done"] or each["process"][0] == "W")
    if missing := Counter(must) - done:
        raise Wrong(f"of the plan this was not done: {dict(missing)}; it was: {told}")


def replayed(done: CompletedProcess[str], expected: bool) -> bool:
    """Whether `gbactl replay` gave the same bits. Raises Wrong if it gave others, or refused an `expected` replay."""
    if done.returncode == 0:
        return True
    if expected or CANNOT not in done.stderr:
        raise Wrong(f"gbactl replay: {(done.stdout + done.stderr).strip().splitlines()[-1:]}")
    return False


def model(run_dir: Path, result: dict[str, Any]) -> None:
    """Check the last checkpoint and all workers against the model that the nodes summed up in memory. Raises Wrong.

    The last checkpoint must be of the run's end, and its files, every byte of which is read, must have that model's
    checksum. All other checkpoints must match their own checksums. All workers that hold the dense parameters must
    agree.
    """
    folder = CheckpointFolder(run_dir / CHECKPOINTS)
    try:
        chain = [folder.verified(name) for name in folder.names()][-1]
        own = model_sum(chain)
    except (IndexError, GbactlError) as error:
        raise Wrong(f"the checkpoints cannot be read: {error}") from error
    last, told = chain.last, result["checksums"]
    if not last.position["ended"] or last.step != result["global_step"]:
        raise Wrong(f"the last checkpoint is of step {last.step}, the run ended at step {result['global_step']}")
    if own != told["model"]:
        raise Wrong(f"the last checkpoint's model is {own}, that of the run {told['model']}")
    copies = {checksum for name, checksum in told.items() if name.startswith("W")}
    if len(copies) != (last.home == "workers"):
        raise Wrong(f"the workers' dense parts: {copies or 'nobody has one'}")


def model_sum(chain: CheckpointChain) -> str:
    """Compute `checksums.model` of result.json from a checkpoint's files alone (see Shard.model_sum): hex."""
    cfg, dense = from_dict(chain.last.config), dense_state(chain)
    moments = MOMENTS[OptimizerSpec(cfg.optim.name).for_dense().name]
    vectors = [dense["value"], *(dense[f"moment.{name}"] for name in moments)]
    total = sum(row_sum(array, 0, 1, salt) for salt, array in enumerate(whole_rows(chain, cfg).values()))
    total += sum(row_sum(array, 0, 1, salt) for salt, array in enumerate(vectors, DENSE_SALT))
    return f"{total % MODULUS:016x}"
