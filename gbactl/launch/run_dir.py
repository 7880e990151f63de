"""Run directories, one per run and never shared: configuration, logs, event log, result; search for one; cleanup.

A run holds its directory's lock from before it is tracked to its end. A launcher that was killed leaves a tracked run
that MLflow shows as RUNNING, until a command finds its directory unlocked and ends it. That costs a query, and nothing
more where no run of this machine is RUNNING.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from gbactl.atomic_files import CONFIG, RESULT, ROOM, read_result, room_needed, take_room, write_result
from gbactl.config import RunConfig, to_dict
from gbactl.coordinator.statistics import NORMS_FILE
from gbactl.errors import TrackingError, UsageError
from gbactl.switching.auto_controller import AUTO_FILE
from gbactl.tracking.delivery import Backlog, send_backlog, status_of
from gbactl.tracking.metrics_and_tags import ORIGIN, RUN_DIR, plain_name
from gbactl.tracking.mlflow_store import COMMAND, connect, tracking_uri

if TYPE_CHECKING:
    from gbactl.tracking.mlflow_store import MlflowClient

RUNS = Path("runs")
FAULTS = "faults.json"
REPORT = "report.html"
LOG = "events.log"
LOCK = ".run.lock"
FILES = ("logs", RESULT, LOG, AUTO_FILE, NORMS_FILE)  # of each start of a run, beside its configuration
CHANGED = "config.*.yaml"  # configurations of earlier starts, where a later one has changed something
ROOM_BYTES = 1 << 17  # reserved for the result in case the disk fills up


def create(cfg: RunConfig) -> Path:
    """Create a run's directory. Raises UsageError when run_dir= names one that already holds a run."""
    path = new_path(cfg)
    try:
        _fill(path, cfg)
    except OSError as error:
        reason = error.strerror
        raise UsageError(f"The run directory {path} cannot be made ({reason}); type another run_dir=.") from error
    return path.resolve()


def new_path(cfg: RunConfig) -> Path:
    """Return the directory for a new run: `run_dir=`, else one named by time, mode and seed in runs/.

    Raises UsageError when run_dir= names one that already holds a run."""
    if cfg.run_dir is None:
        return unused(f"{cfg.mode.name}-s{cfg.seed}")
    path = Path(cfg.run_dir)
    if (path / CONFIG).exists():
        raise UsageError(f"{path} already holds a run; type another run_dir= or remove it.")
    return path


def unused(what: str) -> Path:
    """Return a new name for a directory in runs/: the time, `what` it is for (a mode, say), and six random digits."""
    return RUNS / f"{time.strftime('%Y%m%d-%H%M%S')}-{what}-{secrets.token_hex(3)}"


def is_of(path: Path, cfg: RunConfig) -> bool:
    """Return whether a run directory holds exactly this configuration."""
    with suppress(OSError):
        return (path / CONFIG).read_text() == _as_yaml(cfg)
    return False


def reopen(path: Path, cfg: RunConfig, unchanged: bool) -> None:
    """Reopen a run's directory to resume it; earlier files are kept under numbered names.

    The configuration stays where it is if it is `unchanged`."""
    set_aside(path, FILES if unchanged else (*FILES, CONFIG))
    with room_needed(path):
        _fill(path, cfg)


def _fill(path: Path, cfg: RunConfig) -> None:
    """Make a run's directory: a folder for logs, the configuration, and disk space for result.json. Raises OSError."""
    (path / "logs").mkdir(parents=True, exist_ok=True)
    with (path / ROOM).open("wb") as file:
        take_room(file.fileno(), ROOM_BYTES)
    if not (path / CONFIG).exists():
        (path / CONFIG).write_text(_as_yaml(cfg))


def set_aside(path: Path, files: Sequence[str] = (*FILES, CONFIG)) -> None:
    """Give the files of a run's earlier start numbered names."""
    part = 1 + max((int(old.suffix[1:]) for old in path.glob("logs.*") if old.suffix[1:].isdigit()), default=0)
    for name in files:
        stem, dot, suffix = name.partition(".")
        if (path / name).exists():
            (path / name).replace(path / f"{stem}.{part}{dot}{suffix}")


def lock(path: Path) -> FileLock:
    """Lock a run directory while the run uses it. Raises UsageError if another process holds the lock."""
    held = FileLock(path / LOCK, thread_local=False)
    try:
        held.acquire(timeout=0)
    except Timeout as error:
        raise UsageError(f"The run in {path} is still going on; wait for its end, or end it.") from error
    return held


def tracked_as(path: Path) -> str | None:
    """Return the MLflow run id in a run directory's result.json; None without one."""
    found = read_result(path).get("run_id")
    return found if isinstance(found, str) else None


def _as_yaml(cfg: RunConfig) -> str:
    """Write the resolved configuration as YAML that `gbactl train` understands."""
    import yaml

    return yaml.safe_dump(to_dict(cfg), sort_keys=False)


def write_faults(path: Path, cfg: RunConfig, injected: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write faults.json: the plans with defaults and chosen processes; no file if there are no faults.

    `injected`: the kills and hangs so far."""
    plan = cfg.fault_plan()
    if plan.faults:
        more = {"injected": list(injected)} if injected else {}
        (path / FAULTS).write_text(json.dumps({"seed": plan.seed, "plans": plan.to_list(), **more}, indent=2) + "\n")


_MOST = 5


def find(run: str, uri: str | None = None, holding: str = LOG) -> Path:
    """Find the directory of a run by its name, path or MLflow id.

    The directory must have the file `holding`, by default the event log. Raises UsageError if there is none or more
    than one."""
    path = Path(run)
    if path.name == LOG and path.is_file():
        return path.parent
    if path.is_dir():
        return _with(holding, path)
    found = {entry.resolve() for entry in _named(run, holding)} | _tracked(run, uri)
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


def _named(run: str, file: str) -> list[Path]:
    if "/" in run or not RUNS.is_dir():
        return []
    return [entry for entry in RUNS.iterdir() if entry.name.startswith(run) and (entry / file).is_file()]


def _tracked(run: str, uri: str | None) -> set[Path]:
    """Return the directories of the MLflow runs whose id begins with `run`; empty if there is no store."""
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
    return {Path(each.data.tags[RUN_DIR]) for each in found if RUN_DIR in each.data.tags}


REACHED = "gbactl.reached"
METRICS_SHOWN = ("loss", "auc")  # metrics of a killed run that are reported beside its samples


def end_orphans(uri: str) -> None:
    """Mark every run of a store that is RUNNING but not locked as KILLED, with the progress that it had reached.

    Raises nothing: the caller has opened the store for another purpose."""
    with suppress(Exception):
        client = connect(uri)
        experiments = [each.experiment_id for each in client.search_experiments()]
        for run in client.search_runs(experiments, "attributes.status = 'RUNNING'"):
            run_dir = Path(run.data.tags.get(RUN_DIR, ""))
            if run_dir.is_absolute() and run_dir.is_dir():
                with suppress(Exception), FileLock(run_dir / LOCK, timeout=0):
                    _end(client, uri, run.info.run_id, run_dir)


def _end(client: MlflowClient, uri: str, run_id: str, run_dir: Path) -> None:
    """Mark one orphaned run as KILLED and write its result, unless the directory belongs to another run.

    The caller holds the directory's lock. A run of another machine may have used the same path."""
    backlog = Backlog(run_dir)
    waiting = backlog.read().run_id if backlog.path.exists() else None
    if {waiting, tracked_as(run_dir)} - {None, run_id} or client.get_run(run_id).info.status != "RUNNING":
        return
    if waiting is not None:
        send_backlog(run_dir, uri)
    run = client.get_run(run_id)
    plain = {plain_name(name): value for name, value in run.data.metrics.items()}
    reached = {name: value for name, value in plain.items() if name in ("samples", *METRICS_SHOWN)}
    if run.info.status == "RUNNING":
        client.set_terminated(run_id, status_of(run_dir))
    client.set_tag(run_id, REACHED, _sentence(reached))
    if not (run_dir / RESULT).exists():
        write_result(run_dir, _result(run, run_dir, reached))


def _sentence(reached: dict[str, float]) -> str:
    parts = [f"{reached.get('samples', 0):,.0f} samples"]
    return ", ".join([*parts, *(f"{name} {reached[name]:.5g}" for name in METRICS_SHOWN if name in reached)])


def _result(run: Any, run_dir: Path, reached: dict[str, float]) -> dict[str, Any]:
    """Build the result of a killed run from what MLflow knows of it."""
    seed, tags = run.data.params.get("seed", ""), run.data.tags
    return {
        "mode": tags.get("gbactl.mode"), "origin": tags.get(ORIGIN), "command": tags.get(COMMAND),
        "seed": int(seed) if seed.isdecimal() else None, "status": "KILLED", "error": "the launcher was killed",
        "reached": reached, "run_dir": str(run_dir), "run_id": run.info.run_id,
    }  # fmt: skip
