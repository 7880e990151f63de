"""Hypothesis strategies for every message, made from its annotations."""

from __future__ import annotations

import dataclasses
import typing
from typing import Annotated, Any

from hypothesis import strategies as st

from gbactl.wire.messages import MESSAGES

_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    bytes: st.binary(max_size=20),
    str: st.text(max_size=20),
    int: st.integers(-(1 << 62) + 1, (1 << 62) - 1),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
}


def of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:  # a bounded integer
        bounds = inside[1]
        return st.integers(bounds.gt + 1 if bounds.ge is None else bounds.ge, bounds.lt - 1)
    if dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields"):
        return of_class(annotation)
    if origin is tuple and inside[-1] is ...:
        return st.lists(of(inside[0]), max_size=5).map(tuple)
    if origin is tuple:
        return st.tuples(*map(of, inside))
    if origin is list:
        return st.lists(of(inside[0]), max_size=5)
    if origin is dict:
        values = st.integers(-9, 9) if inside[1] is Any else of(inside[1])
        return st.dictionaries(of(inside[0]), values, max_size=5)
    return _LEAVES[annotation]


def of_class(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Instances of one message class."""
    return st.builds(cls, **{name: of(hint) for name, hint in typing.get_type_hints(cls, include_extras=True).items()})


messages = st.one_of([of_class(cls) for cls in MESSAGES])
