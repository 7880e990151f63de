"""Conversion of plain containers to the typed schema, and the error of the configuration's rules."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, get_type_hints

from gbactl.config_types import default_of, expect
from gbactl.errors import ConfigError


def require(ok: bool, message: str) -> None:
    """Raise ConfigError with `message` unless ok."""
    if not ok:
        raise ConfigError(message)


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Prefix configuration errors inside this context with `where`, such as an entry of the switch schedule."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def build(cls: type[Any], values: dict[str, Any], path: str) -> Any:
    """Build a dataclass from a group's keys, checked by type and bounds.

    Raises ConfigError that names the key by `path`."""
    known = {f.name: f for f in dataclasses.fields(cls)}
    unknown = sorted(set(values) - set(known))
    where = path.rstrip(".") or "The configuration"
    require(not unknown, f"{where} has no key {', '.join(unknown)}; keys are: {', '.join(known)}.")
    hints, made = get_type_hints(cls, include_extras=True), {}
    for key, value in values.items():
        if dataclasses.is_dataclass(hints[key]):
            require(isinstance(value, dict), f"{path}{key} is a group of keys, not {value!r}.")
            made[key] = build(hints[key], value, f"{path}{key}.")
        else:
            expect(f"{path}{key}", value, hints[key], default_of(known[key]))
            made[key] = value
    return cls(**made)


def own_keys(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Gather the keys of a mode or a place that its group `kind` does not have under `options`."""
    common = {f.name for f in dataclasses.fields(kind)} - {"options"}
    own = {key: value for key, value in values.items() if key not in common}
    return {**{key: value for key, value in values.items() if key in common}, "options": own}
