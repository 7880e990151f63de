"""Whether a value from a configuration has the type that a dataclass field is annotated with."""

from __future__ import annotations

import types
from typing import Any, Union, get_args, get_origin


def matches(value: Any, hint: Any) -> bool:
    """A whole number may stand for a float; a bool is never a number."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(matches(value, part) for part in inside)
    if origin is list:
        return isinstance(value, list) and all(matches(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(matches(item, inside[1]) for item in value.values())
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def shown(hint: Any) -> str:
    """The type as a user would say it."""
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(shown(part) for part in inside)
    if origin is list:
        return "a list"
    return "keys with values" if origin is dict else names.get(hint, str(hint))
