"""Data sets of a run as MLflow lists them: name, digest, source, schema, rows, and what they were used for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any

from gbactl.data.dataset import Dataset

CONTEXT = "mlflow.data.context"
MOST_FIELDS = 1000  # columns that a schema lists


def dataset_inputs(
    dataset: Dataset, data: Mapping[str, Any], trained: Collection[int], evaluated: Collection[int]
) -> list[dict[str, str]]:
    """Describe the splits (by place) that a run trains on and evaluates, as two data sets.

    `data`: the configuration's group of that name."""
    found = []
    for context, places in (("train", trained), ("eval", evaluated)):
        splits = [dataset.splits[place] for place in sorted(places)]
        names = [split.name for split in splits]
        digest = hashlib.sha256(json.dumps([dataset.fingerprint, names]).encode()).hexdigest()[:8]
        profile = {"num_rows": sum(split.rows for split in splits), "splits": names}
        found.append({
            "name": str(data["name"]), "digest": digest, **_source(data), "schema": json.dumps(_schema(dataset)),
            "profile": json.dumps(profile), "context": context,
        })  # fmt: skip
    return found


def _source(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the type of source and the source: the file or folder that was read, or the command that generates it."""
    paths = [value for key, value in data.items() if isinstance(value, str) and "/" in value and key != "cache"]
    if paths:
        return {"source_type": "local", "source": json.dumps({"uri": ", ".join(paths)})}
    keys = " ".join(f"data.{key}={value}" for key, value in data.items() if key not in ("name", "cache"))
    tags = {"mlflow.source.name": f"gbactl data prepare data={data['name']} {keys}", "mlflow.source.type": "LOCAL"}
    return {"source_type": "code", "source": json.dumps({"tags": tags})}


def _schema(dataset: Dataset) -> dict[str, list[dict[str, object]]]:
    """Return the columns of a data set: label, numeric features, categorical fields."""
    columns = [("label", "integer")]
    columns += [(str(name), "float") for name in dataset.meta["numeric_names"]]
    columns += [(str(name), "integer") for name in dataset.meta["field_names"]]
    return {"mlflow_colspec": [{"name": name, "type": kind, "required": True} for name, kind in columns[:MOST_FIELDS]]}
