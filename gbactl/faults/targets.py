"""Which workers (or servers) a fault is for: indices, all, so many, or a share; the choice is seeded. Pure."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from gbactl.errors import ConfigError
from gbactl.faults.random_streams import key_of

_CHOICE = 1  # keeps the choice's numbers apart from those of the batches


def choose(wanted: Any, total: int, where: str, *seeds: int, kind: str = "worker") -> tuple[int, ...]:
    """Sorted indices below `total`. A share is rounded, to at least one of a `kind`. Raises ConfigError."""
    if wanted is None:
        return ()
    if wanted == "all":
        return tuple(range(total))
    wanted = 1 if wanted == "random" else wanted
    if isinstance(wanted, list):
        return _named(wanted, total, where, kind)
    count = wanted if isinstance(wanted, int) else _share(wanted, total, f"{where}.{kind}s")
    if not 1 <= count <= total:
        raise ConfigError(f"{where}.{kind}s={wanted} cannot be chosen; type 1 to {total}, or all.")
    order = sorted(range(total), key=lambda index: key_of(_CHOICE, *seeds, index))
    return tuple(sorted(order[:count]))


def _named(wanted: list[int], total: int, where: str, kind: str) -> tuple[int, ...]:
    strange = sorted({index for index in wanted if not 0 <= index < total})
    if strange or len(set(wanted)) < len(wanted):
        what = f"no {kind} {', '.join(map(str, strange))}" if strange else f"a {kind} twice"
        raise ConfigError(f"{where}.{kind}s has {what}; {kind}s are numbered 0 to {total - 1}.")
    return tuple(sorted(wanted))


def _share(wanted: str | float, total: int, where: str) -> int:
    try:
        share = Fraction(wanted)
    except (ValueError, ZeroDivisionError, OverflowError):
        share = Fraction(-1)
    if not 0 < share <= 1:
        raise ConfigError(
            f'{where}={wanted!r} is not understood; type indices ([0, 3]), "all", "random", how many, or a share (1/8).'
        )
    return max(1, int(share * total + Fraction(1, 2)))
