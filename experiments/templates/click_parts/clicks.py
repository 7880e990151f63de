"""Reader of `clicks`: CSV lines of label (0 or 1), user and item (integers), in time order, without a header."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gbactl.checked_dataclasses import Days, TableRows
from gbactl.data.cache_writer import WrittenArrays, equal_days, write_all
from gbactl.data.dataset import Batch, Progress, Schema
from gbactl.data.text_files import find, read_all
from gbactl.errors import DataError

FIELDS = ["user", "item"]


@dataclass(frozen=True)
class Clicks:
    """Options of data=clicks."""

    path: str | None = None
    rows: TableRows = 10_000
    days: Days | None = None

    def sources(self) -> list[Path]:
        """Find the files."""
        return find(self.path, ["*.csv*"])

    def _chunks(self, progress: Progress) -> Iterator[Batch]:
        for _, block in read_all(self.sources(), progress):
            try:
                table = np.loadtxt(io.BytesIO(block.data), np.int64, delimiter=",", ndmin=2)
            except ValueError as error:
                raise DataError(f"{block.path}, from line {block.first_line} on: {error}.") from error
            labels = table[:, 0].astype(np.uint8)
            ids = (table[:, 1:3] % self.rows).astype(np.int32)
            yield Batch(labels, np.empty((len(table), 0), np.float32), ids)

    def build(self, folder: Path, progress: Progress) -> WrittenArrays:
        """Write the arrays of all files into the folder."""
        total = write_all(folder, self._chunks(progress))
        schema = Schema(0, (self.rows, self.rows))
        return WrittenArrays("days", schema, equal_days(total, self.days), [], FIELDS, days_by_rows=True)
