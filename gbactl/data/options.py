"""Options of a data source: a frozen dataclass beside its reader, filled from the `data` group.

Every mistake is a ConfigError that says which key, what was expected and what there is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from gbactl.errors import ConfigError
from gbactl.typed import matches, shown

T = TypeVar("T")
COMMON = ("name", "cache")


def fill(cls: type[T], values: Mapping[str, Any]) -> T:
    """The options dataclass, filled from the `data` group. Raises ConfigError on bad keys and types."""
    hints = {f.name: get_type_hints(cls)[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given = {key: value for key, value in values.items() if key not in COMMON}
    for key, value in given.items():
        if key not in hints:
            raise ConfigError(
                f"data={values.get('name')} has no option data.{key}; it has: {', '.join(hints)}."
            )
        if not matches(value, hints[key]):
            raise ConfigError(f"data.{key}={value!r} is not {shown(hints[key])}.")
    return cls(**given)


def require(ok: bool, message: str) -> None:
    """Raise ConfigError(message) unless ok."""
    if not ok:
        raise ConfigError(message)


def at_least(options: Any, **limits: float) -> None:
    """Raise ConfigError for the first option that is below its limit; None passes."""
    for key, limit in limits.items():
        value = getattr(options, key)
        require(
            value is None or value >= limit, f"data.{key}={value} is too small; it must be at least {limit}."
        )
