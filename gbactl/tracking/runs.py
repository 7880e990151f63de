"""Finished runs for reports, read from an existing MLflow store.

Reading costs 1 s for importing mlflow and about 1 ms a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gbactl.errors import TrackingError, UsageError
from gbactl.tracking.store import connect

if TYPE_CHECKING:
    from mlflow import MlflowClient


FORMERLY = {
    "best_auc": "best_possible_auc", "worker_eps": "worker_compute_eps",
    "recovery_samples_lost": "recovery_samples_undone", "recovery_lost_updates": "recovery_row_updates_undone",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training run. `params` are strings as in MLflow; times in milliseconds."""

    run_id: str
    name: str
    status: str
    start_ms: int
    params: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> str:
        """Seed of the run, `-` if it has none."""
        return self.params.get("seed", "-")

    @property
    def label(self) -> str:
        """Short name by which the run can be found in MLflow."""
        return f"{self.name} ({self.run_id[:8]})"


def read_runs(uri: str, experiments: Sequence[str], where: Sequence[str]) -> list[Run]:
    """Read all runs of the experiments that pass every filter, oldest first.

    Raises UsageError for a filter MLflow cannot read, TrackingError if there is no such store or run.
    """
    client = connect(uri)
    ids = [_experiment_id(client, name, uri) for name in experiments]
    found = list(_search(client, ids, " and ".join(where)))
    if not found:
        condition = f" with {' and '.join(where)}" if where else ""
        raise TrackingError(
            f"The experiment {', '.join(experiments)} in {uri} has no runs{condition}; "
            "type: gbactl train experiment=smoke mode=gba"
        )
    return sorted((_run(entity) for entity in found), key=lambda run: run.start_ms)


def _experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    names = [each.name for each in client.search_experiments() if each.name != "Default"]
    hint = f"type --experiment with one of: {', '.join(names)}" if names else "type: gbactl train"
    raise TrackingError(f"There are no runs: {uri} has no experiment {name}; {hint}")


def _search(client: MlflowClient, ids: list[str], condition: str) -> Iterable[Any]:
    from mlflow.exceptions import MlflowException

    token = None
    while True:
        try:
            page = client.search_runs(ids, condition, max_results=1000, page_token=token)
        except MlflowException as error:
            raise UsageError(
                f"--where {condition!r} is no filter ({_first(error)}); type for instance: "
                """--where "params.mode = 'gba'" """.strip()
            ) from error
        yield from page
        token = page.token
        if not token:
            return


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _run(entity: Any) -> Run:
    info, data = entity.info, entity.data
    return Run(
        run_id=info.run_id,
        name=info.run_name or info.run_id[:8],
        status=info.status,
        start_ms=info.start_time or 0,
        params=dict(data.params),
        metrics={_name(metric): value for metric, value in data.metrics.items()},
        tags=dict(data.tags),
    )


def _name(metric: str) -> str:
    """Current name of a metric that older runs logged under another name; a suffix after `/` stays."""
    family, slash, rest = metric.partition("/")
    return FORMERLY.get(family, family) + slash + rest
