"""Dataclasses built from plain values, each checked against the type and bounds of its field's annotation.

Bounds are given in the annotation: Annotated[float, Bounds(at_least=0, below=1)], or one of the names below. None of
them accepts NaN, and only at_most=math.inf accepts infinity.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gbactl.errors import ConfigError, require

T = TypeVar("T")

_INT32, _INT64 = 2**31 - 1, 2**63 - 1


@dataclass(frozen=True)
class Bounds:
    """Allowed range of a number; None means no bound."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def holds(self, number: float) -> bool:
        """Return whether a number is within the bounds."""
        return (
            number == number
            and (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """Describe the bounds, as "from 0 to 9" or "above 0 and at most 1"."""
        if self.at_least is not None and self.at_most is not None:
            return f"from {_number(self.at_least)} to {_number(self.at_most)}"
        bounds = zip(("of at least", "above", "at most", "below"), dataclasses.astuple(self), strict=True)
        return " and ".join(f"{word} {_number(bound)}" for word, bound in bounds if bound is not None)


Seed = Annotated[int, Bounds(at_least=0, at_most=_INT64)]  # range that NumPy and torch take
Count = Annotated[int, Bounds(at_least=1, at_most=_INT32)]
Natural = Annotated[int, Bounds(at_least=0, at_most=_INT32)]
Processes = Annotated[int, Bounds(at_least=1, at_most=65_536)]
TableRows = Annotated[int, Bounds(at_least=2, at_most=_INT32)]  # rows of a field's table of hashed ids
Days = Annotated[int, Bounds(at_least=2, at_most=100_000)]  # one day is trained on, the next one evaluated
Seconds = Annotated[float, Bounds(at_least=0, at_most=1e9)]  # 31 years; the range that timers take
Interval = Annotated[float, Bounds(at_least=1e-3, at_most=1e9)]  # seconds between repetitions
NumberOrInfinity = Annotated[float, Bounds(at_least=0, at_most=math.inf)]
Share = Annotated[float, Bounds(at_least=0, at_most=1)]
SomeShare = Annotated[float, Bounds(above=0, at_most=1)]
ShareBelowOne = Annotated[float, Bounds(at_least=0, below=1)]


def build(cls: type[T], values: Mapping[str, Any], path: str, owner: str = "", common: Iterable[str] = ()) -> T:
    """Build a dataclass, and those nested in it, from a group's keys, checked by type and bounds.

    `path`: prefix of the keys, such as "mode.". An error about a key that the class does not have names the `owner` of
    its keys, such as "mode=gba", and lists them, after the `common` keys of all such owners. Raises ConfigError."""
    _check_dataclass(cls)
    known = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(values) - set(known)):
        keys = [*common, *known]
        listed = f"keys are: {', '.join(keys)}" if keys else "it has none of its own"
        problem = f"{owner or path.rstrip('.') or 'The configuration'} has no key {', '.join(unknown)}; {listed}."
        raise ConfigError(f"{problem} {did_you_mean(unknown[0], keys)}".rstrip())
    if lacking := [
        name for name, each in known.items() if name not in values and default_of(each) is dataclasses.MISSING
    ]:
        raise ConfigError(f"{path}{lacking[0]} is needed; type {path}{lacking[0]}=VALUE.")
    hints, made = _annotations(cls), dict[str, Any]()
    for key, value in values.items():
        if dataclasses.is_dataclass(hints[key]):
            require(isinstance(value, dict), f"{path}{key} is a group of keys, not {value!r}.")
            made[key] = build(hints[key], value, f"{path}{key}.")
        else:
            expect(f"{path}{key}", value, hints[key], default_of(known[key]))
            made[key] = value
    return cls(**made)


def _check_dataclass(cls: type[Any]) -> None:
    """Raise ConfigError unless a class is decorated as a dataclass, or inherits from one and adds no annotation."""
    inherited = dataclasses.is_dataclass(cls) and not inspect.get_annotations(cls)
    decorated = "__dataclass_fields__" in vars(cls) or inherited
    what = f"{cls.__module__}.{cls.__qualname__} has options and is no dataclass"
    require(decorated, f"{what}; write @dataclass(frozen=True) above it.")


def _annotations(cls: type[Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields. Raises ConfigError for a string that names no type."""
    try:
        return get_type_hints(cls, include_extras=True)
    except Exception as error:
        what = f"The annotations of {cls.__module__}.{cls.__qualname__} cannot be read"
        raise ConfigError(f"{what} ({type(error).__name__}: {error}); import what they name.") from error


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that proposes known words like `word`: by beginning, last part or spelling; "" without any."""
    words = list(known)
    import difflib  # takes longer than all the rest of this module

    near = [each for each in words if each.startswith(word)] or [each for each in words if each.endswith(f".{word}")]
    near = near[:2] or difflib.get_close_matches(word, words, 2, 0.7)
    return f"Did you mean {' or '.join(near)}?" if near else ""


def expect(key: str, value: Any, hint: Any, default: Any = dataclasses.MISSING) -> None:
    """Raise ConfigError unless `value` fits the type annotation `hint`; the error shows `default` as an example."""
    if matches(value, hint):
        return
    if get_origin(hint) is Literal:
        what = key.removesuffix(".name") if key.count(".") == 1 else key  # GROUP=NAME chooses GROUP.name
        words = list(map(str, get_args(hint)))
        problem = f"{what}={value} is not known; type {what}= one of: {', '.join(words)}."
        raise ConfigError(f"{problem} {did_you_mean(str(value), words)}".rstrip())
    example = "" if default is dataclasses.MISSING else f"; type for instance {key}={_typed(default)}"
    raise ConfigError(f"{key}={value!r} is not {shown(hint)}{example}.")


def python_number(value: Any) -> Any:
    """Convert a real number, such as NumPy's float32, to a float; return an int and any other value as it is."""
    return float(value) if isinstance(value, Real) and not isinstance(value, int) else value


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a dataclass field; MISSING if it has none."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def matches(value: Any, hint: Any) -> bool:
    """Return whether a value fits an annotation; a whole number fits float, a bool is never a number."""
    origin, inside = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        return matches(value, inside[0]) and inside[1].holds(value)
    if origin is Literal:
        return type(value) in (int, float, str) and value in inside
    if origin in (Union, types.UnionType):
        return any(matches(value, part) for part in inside)
    if origin is list:
        return isinstance(value, list) and all(matches(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(matches(item, inside[1]) for item in value.values())
    if hint is float:
        return isinstance(value, float) or (type(value) is int and abs(value) <= _INT64)  # as messages encode
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def shown(hint: Any) -> str:
    """Describe an annotated type in a user's words, such as "a whole number"."""
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{shown(inside[0])} {inside[1]}"
    if origin is Literal:
        return f"one of {', '.join(map(str, inside))}" if len(inside) > 1 else str(inside[0])
    if origin in (Union, types.UnionType):
        return " or ".join(shown(part) for part in inside)
    if origin in (list, dict):
        kind = "a list" if origin is list else "keys with values"
        told = inside and (get_origin(inside[-1]) is Annotated or inside == (str, str))
        return f"{kind}, each {shown(inside[-1])}" if told else kind
    return names.get(hint, str(hint))


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _typed(value: Any) -> str:
    """Format a default value as it is typed on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dictionaries: {'a': {'b': 1}} becomes {'a.b': 1}."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value})
    return flat
