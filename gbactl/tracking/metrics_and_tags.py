"""Names of a run's metrics in MLflow, its final metrics, read from a result.json, and its MLflow tags.

Names are in groups: train/, eval/, staleness/, wire/, recovery/, rounds/; five names have no group. system/, advise/
and replay/ are the groups of metrics that are logged with their prefix. Within gbactl and in older runs a metric has a
plain name, for a process or a round with a label: wire_shared_memory, worker_batches/W0, auc/day 3. The MLflow UI draws
one section for each group.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import math
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gbactl.install import version

PLAIN = ("auc", "logloss", "loss", "eps")  # metrics without a group; the fifth one is the mean staleness
STALENESS = "staleness"
_ROUND_LABEL = re.compile(r"(day|epoch) \d+")
_GROUPS = {  # families of a group; those that end in "_" are beginnings of families
    "train": (
        "samples", "samples_", "gradients_", "global_step", "wall_seconds", "virtual_seconds", "eps_now", "round_eps",
        "mode_id", "pause_ms", "auto_", "elp", "worker_", "progressive_auc",
    ),
    "eval": ("ne", "calibration", "gauc", "best_possible_auc", "train_", "validation_", "test_"),
    "staleness": ("token_staleness_", "sync_gap_", "replica_distance"),
    "wire": ("refused_frames", "exchanges", "exchange_ms", "foreground_seconds", "bytes_exchanged"),
    "recovery": ("checkpoint_", "fault_"),
}  # fmt: skip
_BEGINNINGS = ("staleness", "wire", "recovery")  # groups with families that begin with the group's name


def logged_name(metric: str) -> str:
    """Return a metric's name in MLflow, with its group; a metric that is in no group keeps its plain name."""
    family, _, label = metric.partition("/")
    if _ROUND_LABEL.fullmatch(label):
        return f"rounds/{family} {label}"
    if family == "staleness_mean" and not label:
        return STALENESS
    for group in _BEGINNINGS:
        if family.startswith(f"{group}_"):
            return _joined(group, family.removeprefix(f"{group}_"), label)
    for group, families in _GROUPS.items():
        if family in families or family.startswith(tuple(each for each in families if each[-1] == "_")):
            return _joined(group, family, label)
    return metric


def _joined(group: str, family: str, label: str) -> str:
    return f"{group}/{family} {label}".rstrip()


def plain_name(logged: str) -> str:
    """Return the plain name of a metric in MLflow; a plain name, as older runs have it, is returned unchanged."""
    if logged == STALENESS:
        return "staleness_mean"
    group, _, rest = logged.partition("/")
    if group not in (*_GROUPS, "rounds"):
        return logged
    family, _, label = rest.partition(" ")
    if group in _BEGINNINGS and not logged_name(family).startswith(f"{group}/"):
        family = f"{group}_{family}"
    return f"{family}/{label}" if label else family


_TOP = (
    "auc", "logloss", "ne", "calibration", "eps", "wall_seconds", "virtual_seconds", "best_possible_auc",
    "global_step", "refused_frames", "gauc",
)  # fmt: skip
_ROUND = {
    "auc": "auc",
    "logloss": "logloss",
    "ne": "ne",
    "gauc": "gauc",
    "eps": "eps",
    "samples": "samples_trained",
    "decayed": "samples_decayed",
    "lost": "samples_lost",
}  # fields of a round, and their metrics without the round's label
_LIBRARIES = ("torch", "numpy", "mlflow-skinny", "horovod")
FAILURE_KINDS = (
    "count", "detected_s", "loaded_s", "useful_s", "samples_undone", "pls", "row_updates_undone", "samples_rolled_back",
)  # fmt: skip
ORIGIN_RUN = "gbactl.origin_run"  # tag of a resumed run: the MLflow id of the run whose checkpoint it began from
ORIGIN = "gbactl.origin"  # tag of a resumed run: the checkpoint that it began from, without its seed
RUN_DIR = "gbactl.run_dir"  # tag of every run: its directory
DAYS_TAG = "gbactl.days"  # tag of a run on data without a time: rows, by whose count its days are cut
SLOW_WORKER = "gbactl.slow_worker"  # tag of a finished run: a sentence on its slow worker, where it has one
OWN_SAMPLES = "samples_own"  # metric of a run that began from another run's checkpoint: samples since its last resume
_NOT_CONFIGURATION = ("tracking", "run_dir")


def phases_since_resume(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the phases of a result.json that were trained after the run resumed; all phases if it did not resume."""
    first = (result.get("checkpoint") or {}).get("resumed_at") or 0
    return [phase for phase in result.get("phases") or [] if phase.get("first_step", first) >= first]


def own_phases(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the phases of a result.json without those of another run from whose checkpoint the run began.

    Of a run that resumed in its own directory all phases are its own. If it had begun from another run's checkpoint,
    too, only those after the last resume are returned."""
    in_own_directory = (result.get("time") or {}).get("since_second") == 0  # its times are known from its beginning on
    return list(result.get("phases") or []) if in_own_directory else phases_since_resume(result)


def _pairs(result: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name in _TOP:
        yield name, result.get(name)
    own = own_phases(result)
    if len(own) < len(result.get("phases") or []):  # samples.trained includes another run's samples, eps does not
        yield OWN_SAMPLES, sum(phase.get("samples") or 0 for phase in own)
    for group in ("samples", "gradients", "staleness", "token_staleness"):
        for name, value in (result.get(group) or {}).items():
            yield f"{group}_{name}", value
    yield from _replicas(result.get("replicas") or {})
    yield from _wire(result.get("wire") or {})
    for worker, values in (result.get("per_worker") or {}).items():
        for name, value in values.items():
            yield f"worker_{name}/{worker}", value
    for each in result.get("rounds") or []:
        for name, value in _of_round(each):
            yield f"{name}/{each.get('day')}", value


def _of_round(summary: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the metrics of one round."""
    for field, name in _ROUND.items():
        yield name, summary.get(field)
    for name, value in (summary.get("staleness") or {}).items():
        yield f"staleness_{name}", value


def _wire(wire: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the metrics of bytes sent: wire_bytes_per_step_dense, ..., wire_shared_memory."""
    for kind, value in (wire.get("bytes_per_step") or {}).items():
        yield f"wire_bytes_per_step_{kind}", value
    yield "wire_shared_memory", wire.get("shared_memory")


def _replicas(replicas: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Iterate over the final metrics of trainers with replicas: elp (example-level parallelism), sync_gap_mean, ..."""
    for name, value in (replicas.get("sync_gap") or {}).items():
        yield f"sync_gap_{name}", value
    for name in ("elp", "exchanges", "exchange_ms", "foreground_seconds", "bytes_exchanged"):
        yield name, replicas.get(name)
    distance = replicas.get("distance") or []
    yield "replica_distance", distance[-1][1] if distance else None


def replica_metrics(phase: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the metrics that a phase of trainers with replicas adds to the run's curves."""
    metrics = dict(_replicas(phase.get("replicas") or {}))
    return {name: metrics[name] for name in ("sync_gap_mean", "exchange_ms", "replica_distance") if name in metrics}


def metrics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Extract the final metrics from a result.json: auc, staleness_p99, worker_compute_eps/W0, auc/day 3, ...

    Missing values, None and non-numbers are left out.
    """
    numbers = {
        name: float(value)
        for name, value in _pairs(result)
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def failure_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Count failures by process and kind (recovery_count/W1.kill), and average their other values."""
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for each in result.get("recovery") or ():
        found[f"{each['process']}.{each['failure']}"].append(each)
    metrics = {f"recovery_count/{name}": float(len(all_)) for name, all_ in found.items()}
    for name, all_ in found.items():
        for kind in FAILURE_KINDS[1:]:
            values = [float(each[kind]) for each in all_ if each.get(kind) is not None]
            if values:
                metrics[f"recovery_{kind}/{name}"] = sum(values) / len(values)
    return metrics


def failed_in_short(result: Mapping[str, Any]) -> str:
    """List a run's failures as the text of an MLflow tag, such as "W1 kill, W1 death, S0 hang"."""
    return ", ".join(f"{each['process']} {each['failure']}" for each in result.get("recovery") or ())


def useless(result: Mapping[str, Any]) -> str:
    """Describe a result that is worse than predicting the base rate, as a warning; "" for any other result."""
    found = result.get("ne")
    if found is None or not found > 1:
        return ""
    return (
        f"The log loss {result['logloss']:.4g} is {found:.4g} times that of always predicting the base rate: this "
        "model is worse than none; train on more data or type another optim.lr."
    )


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash a configuration to 12 hex digits, without its tracking group and run directory."""
    kept = {key: value for key, value in config.items() if key not in _NOT_CONFIGURATION}
    text = json.dumps(kept, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def git_tags(folder: Path) -> dict[str, str]:
    """Return tags with commit and branch of the working tree around `folder`, and whether it has uncommitted changes.

    {} without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return {}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    branch = _git(folder, "branch", "--show-current")
    return {
        "mlflow.source.git.commit": commit,
        **({"mlflow.source.git.branch": branch} if branch else {}),
        "gbactl.git_changed": str(bool(changed)).lower(),
    }


def user() -> str:
    """Return the login name of the user; "unknown" if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def versions() -> dict[str, str]:
    """Return the versions of gbactl, Python and the libraries that affect numerical results."""
    from gbactl import __version__

    libraries = {name.removesuffix("-skinny"): version(name) for name in _LIBRARIES}
    found = {"gbactl": __version__, "python": platform.python_version(), **libraries}
    return {name: value for name, value in found.items() if value}


def tags_of(config: Mapping[str, Any], fingerprint: str | None, source: str) -> dict[str, str]:
    """Return the MLflow tags of a run: user, source, git commit, versions, data fingerprint, host, hash, last start.

    `config` is nested; its tracking.tags win over all others. The commit is that of the current folder. `source`: the
    command.
    """
    tags = {
        "mlflow.user": user(),
        "mlflow.source.name": source,
        "mlflow.source.type": "LOCAL",
        "gbactl.config_hash": config_hash(config),
        "gbactl.time": datetime.now(UTC).isoformat(timespec="seconds"),
        "gbactl.host": platform.node(),
        **{f"gbactl.version.{name}": version for name, version in versions().items()},
        **git_tags(Path.cwd()),
    }
    if fingerprint:
        tags["gbactl.data_fingerprint"] = fingerprint
    return tags | dict((config.get("tracking") or {}).get("tags") or {})
