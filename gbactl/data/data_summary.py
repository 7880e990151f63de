"""Summary of a prepared data set: rows and click rate by day, distinct ids and skew by field.

Reads labels and ids once, in chunks, one field at a time (about 300 M ids/s). Memory is one count for each id
of the largest field.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gbactl.data.dataset import DAYS_BY_ROWS, Batch, Dataset

if TYPE_CHECKING:
    from gbactl.data.schema_inference import Inferred

CHUNK = 1 << 20
WIDTH = 80


def _splits(dataset: Dataset) -> list[dict[str, Any]]:
    return [
        {
            "name": split.name,
            "rows": split.rows,
            "ctr": float(split.slice(0, split.rows).labels.mean()) if split.rows else 0.0,
            "best_possible_auc": dataset.best_auc.get(split.name),
        }
        for split in dataset.splits
    ]


def _ids(batch: Batch, field: int) -> NDArray[np.int32]:
    """Return the ids of a field in a batch, int32[n]."""
    if field < batch.ids.shape[1]:
        return batch.ids[:, field]
    assert batch.jagged is not None
    return batch.jagged.of_field(field - batch.ids.shape[1]).values


def _counts(dataset: Dataset, field: int) -> NDArray[np.int64]:
    counts = np.zeros(dataset.schema.cardinalities[field], np.int64)
    for split in dataset.splits:
        for lo in range(0, split.rows, CHUNK):
            found = np.bincount(_ids(split.slice(lo, min(lo + CHUNK, split.rows)), field))
            counts[: len(found)] += found
    return counts


def _field(dataset: Dataset, field: int) -> dict[str, Any]:
    counts = np.sort(_counts(dataset, field))[::-1]
    total, distinct = max(1, int(counts.sum())), int((counts > 0).sum())
    names, schema = dataset.meta["field_names"], dataset.schema
    place = field - schema.columns
    return {
        "name": names[field],
        "cardinality": schema.cardinalities[field],
        "table": names[schema.table_of.index(schema.table_of[field])],
        "pooling": schema.lists[place].pooling if place >= 0 else None,
        "longest": schema.lists[place].max_length if place >= 0 else 1,
        "mean_length": int(counts.sum()) / max(1, dataset.rows),
        "distinct": distinct,
        "top_id_share": float(counts[:1].sum() / total),
        "top_1_percent_share": float(counts[: -(-distinct // 100)].sum() / total),
    }


def summarise(dataset: Dataset) -> dict[str, Any]:
    """Collect everything that `gbactl data describe` shows, in plain containers."""
    return {
        "name": dataset.meta["name"],
        "kind": dataset.kind,
        "rows": dataset.rows,
        "numeric": dataset.schema.numeric,
        "table_rows": dataset.schema.rows,
        "bad_lines": dataset.meta["bad_lines"],
        "days_by_rows": dataset.days_by_rows,
        "fingerprint": dataset.fingerprint,
        "path": str(dataset.path),
        "splits": _splits(dataset),
        "fields": [_field(dataset, field) for field in range(dataset.schema.fields)],
    }


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        name = column in ("name", "table of")  # of any length, and one may copy it
        table.add_column(column, justify="right" if i else "left", no_wrap=not name, overflow="fold")
    return table


def splits_table(summary: dict[str, Any]) -> Table:
    """Build the table of rows, click rate and best possible AUC of each day or split."""
    known = any(split["best_possible_auc"] is not None for split in summary["splits"])
    word = "Days" if summary["kind"] == "days" else "Splits"
    table = _table(word, "name", "rows", "CTR", *(["best possible AUC"] if known else []))
    for split in summary["splits"]:
        best = [f"{split['best_possible_auc']:.4f}"] if known else []
        table.add_row(split["name"], f"{split['rows']:,}", f"{split['ctr']:.4f}", *best)
    return table


def fields_table(summary: dict[str, Any]) -> Table:
    """Build the table of each field's distinct ids and skew."""
    fields = summary["fields"]
    lists = any(field["pooling"] for field in fields)
    shared = 1 < len({field["table"] for field in fields}) < len(fields)
    further = [*(["a sample"] if lists else []), *(["table of"] if shared else [])]
    table = _table("Fields", "name", "ids", "seen", "top id", "top 1 % of ids", *further)
    for field in fields:
        shares = [f"{100 * field[key]:.1f} %" for key in ("top_id_share", "top_1_percent_share")]
        own = [f"{field['mean_length']:.1f}"] if lists else []
        own += [field["table"] if field["table"] != field["name"] else ""] if shared else []
        table.add_row(field["name"], f"{field['cardinality']:,}", f"{field['distinct']:,}", *shares, *own)
    return table


def overview(dataset: Dataset) -> Text:
    """Write one paragraph about a data set: name, size, cache path."""
    schema, bad = dataset.schema, dataset.meta["bad_lines"]
    shared = ", shared by all fields" if len(schema.spans) == 1 < schema.fields else ""
    lines = [
        f"{dataset.meta['name']}: {dataset.rows:,} rows, {schema.numeric} numeric features, "
        f"{schema.fields} fields, {schema.rows:,} table rows{shared}",
        f"cache: {dataset.path}",
        *([f"{bad:,} bad lines were left out"] if bad else []),
        *([DAYS_BY_ROWS] if dataset.days_by_rows else []),
    ]
    return Text("\n".join(lines))


def _printed(*parts: RenderableType) -> None:
    """Print to the terminal, or 80 columns wide on a pipe."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(Group(*parts))


def show_guesses(inferred: Inferred) -> None:
    """Print the guess for each column of a table, with the reason."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, numeric in (("column", False), ("read as", False), ("distinct", True), ("missing", True)):
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    table.add_column("why", ratio=1)
    for each in inferred.guesses:
        table.add_row(Text(each.name), Text(each.read_as), f"{each.distinct:,}", f"{each.missing:.1%}", Text(each.why))
    _printed(table)


def show(dataset: Dataset, *, fields: bool) -> None:
    """Print a data set's summary."""
    summary = summarise(dataset) if fields else {"kind": dataset.kind, "splits": _splits(dataset)}
    parts: list[RenderableType] = [Text(""), splits_table(summary)]
    if fields:
        parts += [Text(""), fields_table(summary)]
    Console(highlight=False).print(overview(dataset), soft_wrap=True)
    _printed(*parts)
