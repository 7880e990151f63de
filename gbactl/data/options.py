"""Options of a data source: a frozen dataclass beside its reader, filled from the `data` group.

Every mistake is a ConfigError that says which key, what was expected and what there is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

from gbactl.errors import ConfigError
from gbactl.typed import default_of, expect

T = TypeVar("T")
COMMON = ("name", "cache")


def fill(cls: type[T], values: Mapping[str, Any]) -> T:
    """The options dataclass, filled from the `data` group. Raises ConfigError on bad keys and types."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given = {key: value for key, value in values.items() if key not in COMMON}
    for key, value in given.items():
        if key not in fields:
            raise ConfigError(
                f"data={values.get('name')} has no option data.{key}; it has: {', '.join(fields)}."
            )
        expect(f"data.{key}", value, hints[key], default_of(fields[key]))
    return cls(**given)


def require(ok: bool, message: str) -> None:
    """Raise ConfigError(message) unless ok."""
    if not ok:
        raise ConfigError(message)

