"""Cleanup of tracked runs whose launcher was killed: MLflow shows them as RUNNING until a command finds them unlocked.

A run holds its directory's lock from before it is tracked to its end. Costs a query, and nothing more where no run of
this machine is RUNNING.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from gbactl.launch.rundir import LOCK, RESULT, tracked_as, write_result
from gbactl.tracking.delivery import Backlog, send_backlog, status_of
from gbactl.tracking.mlflow_store import connect

if TYPE_CHECKING:
    from gbactl.tracking.mlflow_store import MlflowClient

REACHED = "gbactl.reached"
TOLD = ("loss", "auc")  # metrics of a killed run that are reported beside its samples


def end_orphans(uri: str) -> None:
    """Mark every unlocked RUNNING run of a store as KILLED, with the progress that it had reached.

    Raises nothing: the caller has opened the store for another purpose."""
    with suppress(Exception):
        client = connect(uri)
        experiments = [each.experiment_id for each in client.search_experiments()]
        for run in client.search_runs(experiments, "attributes.status = 'RUNNING'"):
            run_dir = Path(run.data.tags.get("gbactl.run_dir", ""))
            if run_dir.is_absolute() and run_dir.is_dir():
                with suppress(Exception), FileLock(run_dir / LOCK, timeout=0):
                    _end(client, uri, run.info.run_id, run_dir)


def _end(client: MlflowClient, uri: str, run_id: str, run_dir: Path) -> None:
    """End one orphaned run, whose lock is held. Skip a directory of another run, as on another machine."""
    backlog = Backlog(run_dir)
    waiting = backlog.read().run_id if backlog.path.exists() else None
    if {waiting, tracked_as(run_dir)} - {None, run_id} or client.get_run(run_id).info.status != "RUNNING":
        return
    if waiting is not None:
        send_backlog(run_dir, uri)
    run = client.get_run(run_id)
    reached = {name: value for name, value in run.data.metrics.items() if name in ("samples", *TOLD)}
    if run.info.status == "RUNNING":
        client.set_terminated(run_id, status_of(run_dir))
    client.set_tag(run_id, REACHED, _sentence(reached))
    if not (run_dir / RESULT).exists():
        write_result(run_dir, _result(run, run_dir, reached))


def _sentence(reached: dict[str, float]) -> str:
    told = [f"{reached.get('samples', 0):,.0f} samples"]
    return ", ".join([*told, *(f"{name} {reached[name]:.5g}" for name in TOLD if name in reached)])


def _result(run: Any, run_dir: Path, reached: dict[str, float]) -> dict[str, Any]:
    """Build a result from what is known of a run that could not write its own."""
    seed = run.data.params.get("seed", "")
    return {
        "mode": run.data.tags.get("gbactl.mode"), "seed": int(seed) if seed.isdecimal() else None, "status": "KILLED",
        "error": "the launcher was killed", "reached": reached, "run_dir": str(run_dir), "run_id": run.info.run_id,
    }  # fmt: skip
