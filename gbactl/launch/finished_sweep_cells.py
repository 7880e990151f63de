"""Index of finished runs by cell (hashes of configuration, data and code), so that a sweep trains no cell twice.

`runs/.finished/CELL` names the directory of the last run of a cell that has finished; the run's own result.json decides
whether it is still there. A look-up costs as much as to fingerprint the source files of the data.
"""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress
from pathlib import Path
from typing import Any

from gbactl.atomic_files import read_result
from gbactl.checkpoint.folder import MANIFEST
from gbactl.config import RunConfig, TrackingConfig, to_dict
from gbactl.configured_classes import top_package
from gbactl.data.cache import data_fingerprint
from gbactl.install import code_version, running_code
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.progress import shown_path
from gbactl.tracking.metrics_and_tags import config_hash, versions
from gbactl.tracking.mlflow_store import tracking_uri

INDEX = run_dirs.RUNS / ".finished"


def cell_of(cfg: RunConfig, data: str) -> str:
    """Name the cell of a run by three hashes: of its configuration, data (given by their fingerprint), and code.

    A resumed run's configuration names the content of its checkpoint. Versions of libraries count as configuration."""
    config = {**to_dict(cfg), "data": None, "versions": versions()}
    foreign = [str(each) for each in (cfg.model.target, *(phase.mode.target for phase in cfg.phases)) if each]
    if packages := {path for target in foreign if (path := top_package(target)) is not None}:
        config["packages"] = sorted(map(code_version, packages))
    if cfg.resume is not None:
        config["resume"] = hashlib.sha256((Path(cfg.resume) / MANIFEST).read_bytes()).hexdigest()
    return f"{config_hash(config)}-{data[:12]}-{running_code()}"


def keep(cell: str, path: Path) -> None:
    """Add a finished run to the index of cells; do nothing if the index folder cannot be written."""
    with suppress(OSError):
        INDEX.mkdir(parents=True, exist_ok=True)
        (INDEX / cell).write_text(shown_path(path))


def find(cfg: RunConfig) -> dict[str, Any] | None:
    """Return the result of a finished run with the same configuration, data and code; None if it must be trained.

    With `run_dir=` only a run in that directory counts; with tracking one that is in the same store and experiment.
    Raises ConfigError and DataError where the data cannot be found."""
    cell = cell_of(cfg, data_fingerprint(cfg.data))
    with suppress(OSError, ValueError):
        path = Path((INDEX / cell).read_text() if cfg.run_dir is None else cfg.run_dir)
        result = read_result(path)
        tracked_alike = not cfg.tracking.enabled or result.get("tracked_in") == tracked_in(cfg.tracking)
        if (result.get("status"), result.get("cell")) == ("FINISHED", cell) and tracked_alike:
            return result
    return None


def tracked_in(tracking: TrackingConfig) -> str | None:
    """Hash the store (tracking.uri or MLFLOW_TRACKING_URI, maybe with a password) and experiment; None if disabled."""
    if not tracking.enabled:
        return None
    return config_hash({"uri": tracking_uri(tracking.uri), "experiment": tracking.experiment})


def set_aside(cfg: RunConfig) -> None:
    """Rename the directory `run_dir=` if it holds a run of the same configuration, so that a sweep can rerun it.

    Raises UsageError if it is still going on."""
    path = None if cfg.run_dir is None else Path(cfg.run_dir)
    if path is None or not run_dirs.is_of(path, cfg):
        return
    if cfg.tracking.enabled:
        run_dirs.end_orphans(tracking_uri(cfg.tracking.uri))  # which looks for them where they were
    with run_dirs.lock(path):
        number = next(n for n in itertools.count(1) if not path.with_name(f"{path.name}.{n}").exists())
        path.rename(path.with_name(f"{path.name}.{number}"))
