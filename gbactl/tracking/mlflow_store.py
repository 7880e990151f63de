"""MLflow store: its location, its creation by one of several launchers, a quiet client, and its runs.

Creating a SQLite store takes about 3 s once; connecting to one 0.2 s, after 1 s for importing mlflow. Reading its
finished runs costs about 1 ms a run.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gbactl.checked_dataclasses import flatten
from gbactl.errors import TrackingError, UsageError, first_line
from gbactl.tracking.metrics_and_tags import plain_name, user
from gbactl.tracking.run_description import CONFIG_TAG, VIEW_TAG, folded, saved_view, view_path

if TYPE_CHECKING:
    from mlflow import MlflowClient as MlflowClient  # re-exported for modules that hold a client

DEFAULT_FILE = "mlflow.db"
BUSY_SECONDS = 30
NOTE, PARENT = "mlflow.note.content", "mlflow.parentRunId"
RUN_KIND, SWEEP = "gbactl.kind", "sweep"  # tag of a run that is no training, and its value for a sweep's parent run
COMMAND = "gbactl.command"
CELL = "gbactl.cell"  # tag of a training run: hashes of its configuration, its data and its code, joined by "-"
TAKEN = "gbactl.taken_by."  # tag of a run that a sweep took as it was, while it is another one's child; id of the sweep
_CREATE_SECONDS = 120
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}


def tracking_uri(uri: str | None = None) -> str:
    """Return the URI of the tracking store: `uri`, else MLFLOW_TRACKING_URI, else ./mlflow.db.

    A relative SQLite file becomes absolute. Raises TrackingError for a file store.
    """
    return absolute(uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{DEFAULT_FILE}")


def absolute(uri: str) -> str:
    """Make a SQLite URI's path absolute; others are returned unchanged. Raises TrackingError for a file store."""
    path = sqlite_path(uri)
    if path is not None:
        query = uri.partition("?")[2]
        return f"sqlite:///{path}" + (f"?{query}" if query else "")
    if uri.startswith("file:") or ("://" not in uri and not uri.startswith("databricks")):
        raise TrackingError(
            f"MLflow no longer writes to a folder such as {uri}; type tracking.uri=sqlite:///mlflow.db "
            "(or --uri, or set MLFLOW_TRACKING_URI to it)."
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """Return the absolute path of a SQLite URI's file; None for any other store."""
    scheme, found, rest = uri.partition(":///")
    if not found or scheme.partition("+")[0] != "sqlite":
        return None
    return Path(os.path.abspath(rest.partition("?")[0]))


def artifact_root(uri: str) -> str | None:
    """Return the artifact folder beside a SQLite store's file; None for other stores, which choose their own."""
    path = sqlite_path(uri)
    return None if path is None else (path.parent / "mlartifacts").as_uri()


def quiet_mlflow() -> None:
    """Switch off MLflow's telemetry, network retries, migration messages, and tqdm's warning about ipywidgets.

    Call it before and after importing mlflow."""
    import logging
    import warnings

    # MLflow imports tqdm's bar for notebooks, which asks for ipywidgets; no such bar is shown
    warnings.filterwarnings("ignore", message="IProgress not found")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)


def connect(uri: str) -> MlflowClient:
    """Create an MLflow client whose SQLite connections wait for locks.

    Raises TrackingError where the store does not exist or does not answer."""
    quiet_mlflow()
    from mlflow import MlflowClient

    quiet_mlflow()  # importing mlflow sets its own level
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        raise TrackingError(f"The tracking store {path} does not exist.")
    if path is not None and "timeout=" not in uri:
        uri += f"{'&' if '?' in uri else '?'}timeout={BUSY_SECONDS}"
    try:
        client = MlflowClient(tracking_uri=uri)
        if path is None:
            client.search_experiments(max_results=1)  # asks a server for the first time
        return client
    except Exception as error:
        raise TrackingError(_explained(uri, error)) from error


def _explained(uri: str, error: Exception) -> str:
    first = first_line(error)
    if "schema" in first:
        return f"{uri} was written by another MLflow version; type: mlflow db upgrade {uri.partition('?')[0]}"
    return f"The tracking store {uri} cannot be opened: {first}"


def ensure_store(uri: str) -> None:
    """Create the file of a SQLite store if it does not exist, under a file lock; other stores are left alone.

    A store is made under another name and renamed into place when complete. Raises TrackingError.
    """
    path = sqlite_path(uri)
    if path is None or path.exists():
        return
    from filelock import FileLock, Timeout

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock", timeout=_CREATE_SECONDS):
            if not path.exists():
                _create(path)
    except Timeout as error:
        raise TrackingError(
            f"Another process has been creating {path} for {_CREATE_SECONDS} s; end it, then type the same again."
        ) from error
    except OSError as error:
        raise TrackingError(
            f"The tracking store {path} cannot be created ({error.strerror}); "
            "type tracking.uri=sqlite:///FILE in a folder you may write to."
        ) from error


def _create(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.touch()
        connect(f"sqlite:///{draft}")
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


KIND, MODEL_DEVELOPMENT = "mlflow.experimentKind", "custom_model_development"
DESCRIPTION = """Which distributed training mode should this model run in, on this cluster?

[AUC, loss, EPS and staleness by mode]({path}): the view "By mode". Every run trains the model in one mode, or changes
the mode on its way. A sweep is a parent run: its page compares its runs, with a table, verdicts and figures.
`gbactl report --experiment {name}` compares all runs here. What the names of metrics and tags mean: {docs}.
"""


def _docs() -> str:
    """Return a link to the page "Compare runs in MLflow", or its file name if the package has no documentation URL."""
    with suppress(metadata.PackageNotFoundError):
        urls = dict(text.split(", ", 1) for text in metadata.metadata("gbactl").get_all("Project-URL", []))
        if "Documentation" in urls:
            return f"[Compare in MLflow]({urls['Documentation'].rstrip('/')}/how-to/compare-in-mlflow/)"
    return "`docs/how-to/compare-in-mlflow.md` (`make docs` builds the documentation)"


def experiment_id(client: MlflowClient, name: str, uri: str) -> str:
    """Create an experiment if it does not exist; return its id. Raises TrackingError if it was deleted.

    The experiment is tagged as model development, described, and has a saved view; an older one gets what it has not
    got, and keeps a description of its own."""
    found: Any = client.get_experiment_by_name(name)
    if found is None:
        from mlflow.exceptions import MlflowException

        try:
            client.create_experiment(name, artifact_location=artifact_root(uri), tags={KIND: MODEL_DEVELOPMENT})
        except MlflowException:
            if client.get_experiment_by_name(name) is None:  # no other process has created it first
                raise
        found = client.get_experiment_by_name(name)
    if found.lifecycle_stage != "active":
        raise TrackingError(
            f"The experiment {name} was deleted in MLflow; type tracking.experiment=ANOTHER_NAME or: "
            f"mlflow experiments restore -x {found.experiment_id}"
        )
    described = DESCRIPTION.format(name=name, path=view_path(str(found.experiment_id)).lstrip("/"), docs=_docs())
    for key, value in {KIND: MODEL_DEVELOPMENT, NOTE: described, VIEW_TAG: saved_view()}.items():
        if found.tags.get(key, "_inferred").endswith("_inferred"):  # the UI has guessed the kind
            client.set_experiment_tag(found.experiment_id, key, value)
    return str(found.experiment_id)


FORMERLY = {
    "best_auc": "best_possible_auc", "worker_eps": "worker_compute_eps",
    "recovery_samples_lost": "recovery_samples_undone", "recovery_lost_updates": "recovery_row_updates_undone",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One training run as read from MLflow; `params` are strings, times are in milliseconds."""

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
    def command(self) -> str:
        """Command that runs the run again; "" for a run of an older version."""
        return self.tags.get(COMMAND, "")

    @property
    def data(self) -> str:
        """First digits of the fingerprint of the run's data; "" if it is unknown."""
        return self.tags.get(CELL, "").partition("-")[2].partition("-")[0]

    @property
    def code(self) -> str:
        """Code version of gbactl that the run was made with; "" if it is unknown."""
        return self.tags.get(CELL, "").rpartition("-")[2]

    @property
    def sweeps(self) -> set[str]:
        """Ids of the sweeps that include this run: its parent sweep, and other sweeps that reused it."""
        taken = {name.removeprefix(TAKEN) for name in self.tags if name.startswith(TAKEN)}
        return taken | ({self.tags[PARENT]} if PARENT in self.tags else set())

    @property
    def label(self) -> str:
        """Short name by which the run can be found in MLflow."""
        return f"{self.name} ({self.run_id[:8]})"


def read_runs(uri: str, experiments: Sequence[str], where: Sequence[str]) -> list[Run]:
    """Read all runs of the experiments that pass every filter, oldest first.

    Raises UsageError for a filter MLflow cannot read, TrackingError if there is no such store or run.
    """
    client = connect(uri)
    ids = [_existing_experiment(client, name, uri) for name in experiments]
    found = list(_search(client, ids, " and ".join(where)))
    if not found:
        condition = f" with {' and '.join(where)}" if where else ""
        raise TrackingError(
            f"The experiment {', '.join(experiments)} in {uri} has no runs{condition}; "
            "type: gbactl train experiment=smoke mode=gba"
        )
    return _oldest_first(found)


def _oldest_first(found: Iterable[Any]) -> list[Run]:
    """Convert runs as MLflow returns them, and leave out those that are no training, such as a sweep's parent run."""
    runs = [_run(entity) for entity in found]
    return sorted((run for run in runs if RUN_KIND not in run.tags), key=lambda run: run.start_ms)


def read_children(uri: str, run_id: str) -> list[Run]:
    """Read a sweep's child runs and the finished runs that it reused, oldest first. Raises TrackingError."""
    client = connect(uri)
    experiments = [each.experiment_id for each in client.search_experiments()]
    conditions = (f"tags.`{PARENT}` = '{run_id}'", f"tags.`{TAKEN}{run_id}` = 'true'")
    return _oldest_first(run for condition in conditions for run in _search(client, experiments, condition))


def read_start_times(uri: str, run_ids: Iterable[str]) -> dict[str, int]:
    """Read when runs started, in milliseconds, such as the parent runs of sweeps; a run that is gone is left out."""
    from mlflow.exceptions import MlflowException

    client, found = connect(uri), dict[str, int]()
    for run_id in run_ids:
        with suppress(MlflowException):
            found[run_id] = client.get_run(run_id).info.start_time or 0
    return found


VERDICT = "gbactl.verdict"
_NOTE_BEGINS, _LONGEST_NOTE = "<!-- gbactl report -->", 5000


def log_comparison(
    uri: str, experiments: Sequence[str], table: str, verdicts: Mapping[str, str], outdated: Iterable[str]
) -> None:
    """Write a comparison's table (Markdown) into the experiments' notes, and each run's verdict as its tag.

    `verdicts`: by run id; `outdated`: ids of runs whose tag of an earlier comparison is removed. A note's own text
    stays above the table. Raises TrackingError."""
    from mlflow.exceptions import MlflowException

    client = connect(uri)
    try:
        for name in experiments:
            found = client.get_experiment(_existing_experiment(client, name, uri))
            own = found.tags.get(NOTE, "").partition(_NOTE_BEGINS)[0].rstrip()
            note = f"{own}\n\n{_NOTE_BEGINS}\n{table}".lstrip()
            client.set_experiment_tag(found.experiment_id, NOTE, _cut(note, _LONGEST_NOTE))
        for run_id, words in verdicts.items():
            client.set_tag(run_id, VERDICT, words)
        for run_id in outdated:
            client.delete_tag(run_id, VERDICT)
    except MlflowException as error:
        raise TrackingError(f"The verdicts cannot be written to {uri}: {first_line(error)}") from error


def log_comparison_of_children(uri: str, run_id: str, found: str, table: str, verdicts: Mapping[str, str]) -> None:
    """Write the comparison of a parent run's children to the parent (note, verdict), and each child's verdict to it.

    `found`: what was found, in a sentence. `verdicts`: by run id."""
    client = connect(uri)
    command = client.get_run(run_id).data.tags.get(COMMAND, "")
    client.set_tag(run_id, NOTE, sweep_note(command, table))
    client.set_tag(run_id, VERDICT, _cut(found, _LONGEST_NOTE))
    for child, words in verdicts.items():
        client.set_tag(child, VERDICT, words)


def log_linked_run(uri: str, parent: str, kind: str, note: str, status: str, metrics: Mapping[str, float]) -> None:
    """Log a finished run as a child of the run that it is about, as "replay of gba s1". Raises TrackingError.

    The metrics are logged in a group of that name."""
    client = connect(uri)
    of = client.get_run(parent)
    tags = {PARENT: parent, RUN_KIND: kind, NOTE: note, "mlflow.user": user(), "mlflow.source.name": f"gbactl {kind}"}
    made = client.create_run(of.info.experiment_id, run_name=f"{kind} of {of.info.run_name}", tags=tags).info.run_id
    for name, value in metrics.items():
        client.log_metric(made, f"{kind}/{name}", value)
    client.set_terminated(made, status)


def log_artifacts(uri: str, run_id: str, artifacts: Mapping[Path, str | None]) -> None:
    """Upload files to a run's artifacts, each into the artifact folder that `artifacts` maps it to."""
    client = connect(uri)
    for path, folder in artifacts.items():
        client.log_artifact(run_id, str(path), folder)


def sweep_note(command: str, comparison: str = "") -> str:
    """Write a parent run's note in Markdown: the comparison of its children, and the command that runs it again."""
    more = "The artifact report.html has the table with its figures." if comparison else "No run has ended yet."
    end = f"{more}\n\nRun it again:\n\n```sh\n{folded(command)}\n```"
    return f"{_cut(comparison, _LONGEST_NOTE - len(end) - 2)}\n\n{end}".lstrip()


def _cut(text: str, longest: int) -> str:
    """Cut a text after its last line that fits, and mark the cut by three dots."""
    return text if len(text) <= longest else text[: longest - 4].rpartition("\n")[0] + "\n..."


def start_page(uri: str) -> str:
    """Return path and query of the UI's page to begin with: the view of the experiment with the newest run."""
    client = connect(uri)
    experiments = client.search_experiments()
    ids = [each.experiment_id for each in experiments if VIEW_TAG in each.tags]
    newest = client.search_runs(ids, order_by=["attributes.start_time DESC"], max_results=1) if ids else []
    return view_path(newest[0].info.experiment_id) if newest else "/#/experiments?workflowType=machine_learning"


def _existing_experiment(client: MlflowClient, name: str, uri: str) -> str:
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
            if bare := re.match(r"Invalid attribute key '(\w+)'", str(error)):  # MLflow lists a set of all attributes
                meant = re.sub(rf"(?<![\w.]){bare[1]}\b", f"metrics.{bare[1]}", condition)
                raise UsageError(
                    f"--where {condition!r} is no filter ({bare[1]} is no attribute of a run); type for a metric: "
                    f"--where {meant!r}"
                ) from error
            raise UsageError(
                f"--where {condition!r} is no filter ({first_line(error).rstrip('.')}); type for instance: "
                """--where mode=gba, or --where "metrics.auc > 0.7" """.strip()
            ) from error
        yield from page
        token = page.token
        if not token:
            return


def _run(entity: Any) -> Run:
    info, data = entity.info, entity.data
    return Run(
        run_id=info.run_id,
        name=info.run_name or info.run_id[:8],
        status=info.status,
        start_ms=info.start_time or 0,
        params=_configuration(data),
        metrics={_current_name(metric): value for metric, value in data.metrics.items()},
        tags=dict(data.tags),
    )


def _configuration(data: Any) -> dict[str, str]:
    """Return a run's whole flattened configuration, from its tag or, for older runs, from its parameters."""
    try:
        config = json.loads(data.tags[CONFIG_TAG])
    except (KeyError, ValueError):
        return dict(data.params)
    return params_of(config)


def params_of(config: dict[str, Any]) -> dict[str, str]:
    """Flatten a nested configuration to a run's parameters, as texts."""
    flat = {key: str(value) for key, value in flatten(config).items()}
    return {**flat, "mode": flat.get("mode.name", "-")}


def _current_name(metric: str) -> str:
    """Return the current plain name of a metric, also if an older run logged it under another name."""
    family, slash, rest = plain_name(metric).partition("/")
    return FORMERLY.get(family, family) + slash + rest
