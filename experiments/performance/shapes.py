"""How large a table is: from the rows that are wanted to the option of data=synthetic, and to bytes."""

from __future__ import annotations

from gbactl.data.synthetic import SMALLEST, Synthetic

FLOAT = 4


def table_rows(cardinality: int, fields: int = 26) -> int:
    """Rows of the fused table of data.max_cardinality=CARDINALITY."""
    return sum(Synthetic(max_cardinality=cardinality, fields=fields).cardinalities)


def max_cardinality(rows: int, fields: int = 26) -> int:
    """The smallest data.max_cardinality whose table has at least `rows` rows."""
    low, high = SMALLEST, max(SMALLEST, rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if table_rows(middle, fields) >= rows else (middle + 1, high)
    return low


def bytes_a_row(dim: int) -> int:
    """Row, first-order weight, two moments of Adam and its count of steps."""
    return 3 * FLOAT * (dim + 1) + FLOAT
