"""Options of a data source: a frozen dataclass beside its reader, filled from the `data` group.

Every mistake is a ConfigError that says which key, what was expected and what there is.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gbactl.errors import ConfigError

T = TypeVar("T")
COMMON = ("name", "cache")


def _matches(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_matches(value, part) for part in get_args(hint))
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_matches(item, get_args(hint)[0]) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _shown(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(_shown(part) for part in get_args(hint))
    return "a list" if get_origin(hint) is list else names.get(hint, str(hint))


def fill(cls: type[T], values: Mapping[str, Any]) -> T:
    """The options dataclass, filled from the `data` group. Raises ConfigError on bad keys and types."""
    hints = {f.name: get_type_hints(cls)[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    given = {key: value for key, value in values.items() if key not in COMMON}
    for key, value in given.items():
        if key not in hints:
            raise ConfigError(
                f"data={values.get('name')} has no option data.{key}; it has: {', '.join(hints)}."
            )
        if not _matches(value, hints[key]):
            raise ConfigError(f"data.{key}={value!r} is not {_shown(hints[key])}.")
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
