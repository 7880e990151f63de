"""A run's modes as MLflow can show them: a number per mode for a curve, a name, and a sentence that lists the phases.

A run that was switched is named by what it did: sync>gba@day2, where @ tells the point. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gbactl.policies.base import names, policy_class


def mode_id(mode: str) -> float | None:
    """The mode's number in the metric `mode_id`; None for one that has none."""
    number = policy_class(mode).number if mode in names() else None
    return None if number is None else float(number)


def legend() -> str:
    """What the numbers mean."""
    numbered = sorted((number, mode) for mode in names() if (number := policy_class(mode).number) is not None)
    return ", ".join(f"{number} {mode}" for number, mode in numbered)


def switched(modes: str, to: str, point: str, fresh: bool = False) -> str:
    """The name of a run that was named `modes` and goes on in `to`; `fresh`: with an optimizer state begun anew."""
    return f"{modes}>{to}@{point}{'+fresh' if fresh else ''}"


def each_mode(name: str) -> list[str]:
    """The modes of a run's name in their order."""
    return [part.partition("@")[0] for part in name.split(">")]


def listed(first: str, switches: Iterable[Mapping[str, Any]]) -> str:
    """The first mode, and where each other one began."""
    told = [
        f"{each['to']} from {each['day']}, sample {each['first_sample']}"
        f"{', optimizer anew' if each.get('fresh_optimizer') else ''}"
        for each in switches
    ]
    return "; ".join([first, *told])


def from_listed(text: str) -> str:
    """The name of a run of which only the sentence of `listed` is known."""
    name, *rest = text.split("; ")
    for each in rest:
        found = re.fullmatch(r"(\S+) from (\S+) (\d+), sample (\d+)(, optimizer anew)?", each)
        if found is None:
            return text
        to, unit, number, sample, fresh = found.groups()
        point = f"{unit}{number}" if sample == "0" else f"{unit}{number}:{sample}"
        name = switched(name, to, point, fresh is not None)
    return name
