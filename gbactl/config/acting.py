"""Which keys of a configuration act in a run, and which do not: those of checkpoints without any, for instance.

Keys that do not act are neither printed nor logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gbactl.config.engine_interface import engine_named

AUTO = ("changes", "every", "window", "margin", "hysteresis", "minimum_stay")
REMOTE = ("hosts", "placement", "ssh", "python", "forward")


class Condition(NamedTuple):
    """Condition under which the keys of a group act: those listed, or with () all; `when`: the condition in words."""

    group: str
    keys: tuple[str, ...]
    when: str
    holds: Callable[[Mapping[str, Any]], bool]


CONDITIONS = (
    Condition("checkpoint", (), "with another checkpoint= than none", lambda c: c["checkpoint"]["name"] != "none"),
    Condition("cost", (), "with cluster=virtual", lambda c: not engine_named(c["cluster"]["name"]).real),
    Condition("cluster", REMOTE, "with cluster=hosts", lambda c: not engine_named(c["cluster"]["name"]).one_host),
    Condition("switch", AUTO, "with switch=auto", lambda c: c["switch"]["name"] == "auto"),
)


def when(key: str) -> str:
    """Say when a dotted key acts; "in every run" where no condition is known."""
    group, _, rest = key.partition(".")
    found = [each.when for each in CONDITIONS if each.group == group and (rest in each.keys or not each.keys)]
    return found[0] if found and rest != "name" else "in every run"


def acting(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested configuration without the keys that do not act; the name of a group's option is kept."""
    found = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for each in CONDITIONS:
        if each.group in found and not each.holds(config):
            inert = each.keys or tuple(found[each.group])
            for key in set(inert) - {"name"}:
                found[each.group].pop(key, None)
    return found
