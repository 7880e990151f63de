"""Table sizes: from the number of rows wanted to the option of data=synthetic, and to bytes."""

from __future__ import annotations

from gbactl.data.synthetic import SMALLEST, Synthetic

FLOAT, FIELDS = 4, 26


def table_rows(cardinality: int) -> int:
    """Rows of the fused table of data.max_cardinality=CARDINALITY."""
    return sum(Synthetic(max_cardinality=cardinality, fields=FIELDS).cardinalities)


def max_cardinality(rows: int) -> int:
    """Smallest data.max_cardinality whose table has at least `rows` rows."""
    low, high = SMALLEST, max(SMALLEST, rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if table_rows(middle) >= rows else (middle + 1, high)
    return low


def bytes_a_row(dim: int) -> int:
    """Bytes of a row with its first-order weight, Adam's two moments and step count."""
    return 3 * FLOAT * (dim + 1) + FLOAT
