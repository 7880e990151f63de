"""Peak memory of the preparation of a table: CSV and Parquet, by number of rows and by length of a row's text or list.

Each table is prepared in a process of its own. *Private* memory is without pages of files that are mapped, which the
kernel can drop: those of the arrays that are written. The bare process, with all modules, counts too.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet
from process_group import apart
from tsv_preparation import MEGABYTE

SCHEMA = """columns:
  y: label
  x: numeric
  z: {kind: numeric, transform: standardize}
  a: categorical
  b: categorical
  text: categorical
  list: {kind: multi, max_length: 500}
"""
AT_ONCE = 20_000  # rows that are generated
CASES = ((200_000, 8, 2), (2_000_000, 8, 2), (4_000_000, 8, 2), (200_000, 2000, 2), (200_000, 8, 100))


def some_rows(rng: np.random.Generator, rows: int, characters: int, values: int, csv: bool) -> pl.DataFrame:
    """Generate rows with a text of some characters and a list of some values."""
    lists = rng.integers(0, 10_000, (rows, values)).tolist()
    return pl.DataFrame({
        "y": rng.integers(0, 2, rows), "x": rng.random(rows).round(4), "z": rng.integers(0, 1000, rows),
        "a": rng.integers(0, 10_000, rows), "b": [f"v{i}" for i in rng.integers(0, 10_000, rows)],
        "text": [f"{i:08}" * (characters // 8) for i in rng.integers(0, 10_000, rows)],
        "list": ["|".join(map(str, each)) for each in lists] if csv else lists,
    })  # fmt: skip


def write(path: Path, rows: int, characters: int, values: int) -> None:
    """Write a table, as CSV or Parquet by the suffix of its path."""
    rng, writer = np.random.default_rng(0), None
    with path.open("wb") as file:
        for low in range(0, rows, AT_ONCE):
            frame = some_rows(rng, min(AT_ONCE, rows - low), characters, values, path.suffix == ".csv")
            if path.suffix == ".csv":
                frame.write_csv(file, include_header=not low)
                continue
            table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
            writer = writer or pa.parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()


def status(field: str) -> float:
    """A field of this process's memory, in MB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / MEGABYTE for line in lines if line.startswith(field))


def prepare_here(path: Path) -> tuple[float, float]:
    """Prepare a table in this process; return its peak resident and its peak private memory, in MB."""
    from gbactl.data.cache import prepare

    schema = path.with_name("schema.yaml")
    schema.write_text(SCHEMA)
    options = {"name": "table", "path": str(path), "schema": str(schema), "cache": str(path.parent / "cache")}
    private, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.01):
            private.append(status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        prepare(options)
    finally:
        ended.set()
        watcher.join()
    return status("VmHWM"), max(private)


def main() -> None:
    """Print a row for each table."""
    print("| rows | characters of a text | values of a list | form | file, MB | peak, MB | private, MB |")
    for case in CASES:
        for form in ("csv", "parquet"):
            with tempfile.TemporaryDirectory(prefix="gbactl-table-") as folder:
                path = Path(folder) / f"table.{form}"
                write(path, *case)
                shown = (*case, form, path.stat().st_size / MEGABYTE, *apart(prepare_here, path))
            print("|", " | ".join(f"{each:,.0f}" if each != form else form for each in shown), "|", flush=True)


if __name__ == "__main__":
    main()
