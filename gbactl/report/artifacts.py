"""Reads result.json back from where MLflow keeps it: one small file a run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from gbactl.report.compare import Report
from gbactl.report.curves import Curves, curves_of
from gbactl.tracking.runs import Run
from gbactl.tracking.store import connect


def read_curves(uri: str, runs: list[Run], report: Report) -> tuple[list[Curves], list[str]]:
    """Curves of the runs in the report's lines, in its order, and the runs that have no readable result.json."""
    client, missing = connect(uri), []
    found: dict[tuple[str, ...], list[Curves]] = {group.key: [] for group in report.groups}
    keys = {run_id: group.key for group in report.groups for run_id in group.runs}
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            key = keys.get(run.run_id)
            if key is None:
                continue
            result = _result(client, run.run_id, Path(folder) / run.run_id)
            if result is None:
                missing.append(run.label)
            else:
                found[key].append(curves_of(", ".join(filter(None, key)), run.seed, result))
    return [curves for each in found.values() for curves in each], missing


def _result(client: Any, run_id: str, folder: Path) -> dict[str, Any] | None:
    folder.mkdir()
    try:
        path = client.download_artifacts(run_id, "result.json", str(folder))
        return dict(json.loads(Path(path).read_text(encoding="utf-8")))
    except Exception:  # whatever the artifact store raises, the table is there without this run's curve
        return None
