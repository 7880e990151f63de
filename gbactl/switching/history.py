"""Modes of a run as MLflow shows them: a number for a curve, a run name, and a sentence that lists the phases. Pure.

A switched run is named by its modes: sync>gba@day2, where @ gives the point of the switch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gbactl.policies.base import names, policy_class


def mode_id(mode: str) -> float | None:
    """Return the mode's number in the metric `mode_id`; None for one that has none."""
    number = policy_class(mode).number if mode in names() else None
    return None if number is None else float(number)


def legend() -> str:
    """Describe which number stands for which mode."""
    numbered = sorted((number, mode) for mode in names() if (number := policy_class(mode).number) is not None)
    return ", ".join(f"{number} {mode}" for number, mode in numbered)


def switched(modes: str, to: str, point: str, fresh: bool = False) -> str:
    """Extend the name of a run by a switch to `to`; `fresh`: with the optimizer's state reset."""
    return f"{modes}>{to}@{point}{'+fresh' if fresh else ''}"


def each_mode(name: str) -> list[str]:
    """Return the modes in a run's name, in order."""
    return [part.partition("@")[0] for part in name.split(">")]


def listed(first: str, switches: Iterable[Mapping[str, Any]]) -> str:
    """Describe the first mode and the start of each later one."""
    told = [
        f"{each['to']} from {each['day']}, sample {each['first_sample']}"
        f"{', optimizer anew' if each.get('fresh_optimizer') else ''}"
        for each in switches
    ]
    return "; ".join([first, *told])


def from_listed(text: str) -> str:
    """Build a run's name from the sentence of `listed`."""
    name, *rest = text.split("; ")
    for each in rest:
        found = re.fullmatch(r"(\S+) from (\S+) (\d+), sample (\d+)(, optimizer anew)?", each)
        if found is None:
            return text
        to, unit, number, sample, fresh = found.groups()
        point = f"{unit}{number}" if sample == "0" else f"{unit}{number}:{sample}"
        name = switched(name, to, point, fresh is not None)
    return name
