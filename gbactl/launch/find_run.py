"""Search for a run directory: by path, by the start of a name in runs/, or by the start of an MLflow run id."""

from __future__ import annotations

from pathlib import Path

from gbactl.errors import TrackingError, UsageError
from gbactl.launch.orphans import end_orphans
from gbactl.tracking.mlflow_store import connect, tracking_uri

LOG = "events.log"
_MOST = 5


def find(run: str, uri: str | None = None, runs: Path = Path("runs"), holding: str = LOG) -> Path:
    """Return the directory of a run that has the file `holding`, by default its event log.

    Raises UsageError if there is none or more than one."""
    path = Path(run)
    if path.name == LOG and path.is_file():
        return path.parent
    if path.is_dir():
        return _with(holding, path)
    found = {entry.resolve() for entry in _named(run, runs, holding)} | _tracked(run, uri)
    if len(found) > 1:
        some = ", ".join(sorted(entry.name for entry in found)[:_MOST])
        raise UsageError(f"{run} is the beginning of {len(found)} runs ({some}, ...); type more of it.")
    if not found:
        raise UsageError(f"There is no run {run}; type a run directory (runs/...) or an MLflow run id.")
    return _with(holding, found.pop())


def _with(file: str, path: Path) -> Path:
    if not (path / file).is_file():
        raise UsageError(f"{path} holds no {file}; type the directory of a run, as result.json's run_dir names it.")
    return path


def _named(run: str, runs: Path, file: str) -> list[Path]:
    if "/" in run or not runs.is_dir():
        return []
    return [entry for entry in runs.iterdir() if entry.name.startswith(run) and (entry / file).is_file()]


def _tracked(run: str, uri: str | None) -> set[Path]:
    """Return the directories of MLflow runs whose id starts so; none where there is no store."""
    if not run.isalnum():
        return set()
    try:
        client = connect(tracking_uri(uri=uri))
    except TrackingError:
        if uri is not None:
            raise
        return set()
    end_orphans(tracking_uri(uri=uri))
    experiments = [each.experiment_id for each in client.search_experiments()]
    where = f"attributes.run_id LIKE '{run}%'"
    found = client.search_runs(experiments, where, max_results=_MOST + 1) if experiments else []
    return {Path(each.data.tags["gbactl.run_dir"]) for each in found if "gbactl.run_dir" in each.data.tags}
