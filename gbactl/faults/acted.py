"""Record of the faults that acted in a run, and when, with those that never did; in short lines. Pure, 1 us a note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST_LINES, MOST_NAMES = 5, 4
FAILED = {"kill": "killed", "hang": "stopped"}
MOMENTS = {"from": "from {:g} s", "time": "at {:g} s", "step": "at step {:g}", "mtbf": "every {:g} s on average"}


class FaultRecord:
    """Record of each fault plan's time span and largest factor on each process."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str], tuple[float, float, float]] = {}

    def note(self, place: int, process: str, begin: float, end: float, factor: float = 1.0) -> None:
        """Record that the plan at index `place` acted on a process, in seconds since training began."""
        first, last, largest = self._found.get((place, process), (begin, end, factor))
        self._found[place, process] = min(first, begin), max(last, end), max(largest, factor)

    def told(self) -> list[dict[str, Any]]:
        """Encode the record as plain containers."""
        return [
            {"plan": place, "process": process, "from_s": begin, "until_s": end, "factor": factor}
            for (place, process), (begin, end, factor) in sorted(self._found.items())
        ]

    def restore(self, told: Iterable[Mapping[str, Any]]) -> None:
        """Add an encoded record of an earlier process to this one."""
        for each in told:
            self.note(each["plan"], each["process"], each["from_s"], each["until_s"], each["factor"])


def with_injected(faults: Mapping[str, Any], injected: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Add the kills and hangs that were done, and the indexes of plans that never acted, to result.json's `faults`."""
    more = [
        {"plan": each["plan"], "process": each["process"], "at_s": each["at"], "seconds": each["seconds"]}
        for each in injected if each["done"]
    ]  # fmt: skip
    acted = [*faults["acted"], *more]
    there = {each["plan"] for each in acted}
    return {**faults, "acted": acted, "never": [place for place in range(len(faults["plans"])) if place not in there]}


def lines(result: Mapping[str, Any]) -> list[str]:
    """Describe the faults that acted and, in the last line, those that never did; [] for a run without faults."""
    faults = result.get("faults") or {}
    if "never" not in faults:
        return []
    counts = result.get("messages") or {}
    found = [line for place, plan in enumerate(faults["plans"]) for line in _of_plan(place, plan, faults, counts)]
    never = [_named(place, faults["plans"][place]) for place in faults["never"]]
    return [*_cut(found, MOST_LINES, "and {} more (result.json)"), *([f"never acted: {_and(never)}"] if never else [])]


def _of_plan(place: int, plan: Mapping[str, Any], faults: Mapping[str, Any], counts: Mapping[str, int]) -> list[str]:
    own = [each for each in faults["acted"] if each["plan"] == place]
    kind = plan["kind"]
    if not own:
        return []
    if kind in FAILED:
        return [f"{each['process']} {FAILED[kind]} at {_seconds(each['at_s'])} s{_for(kind, each)}" for each in own]
    who, last = _and([each["process"] for each in own]), max(each["until_s"] for each in own)
    when = f"{_seconds(min(each['from_s'] for each in own), last)}-{_seconds(last)} s"
    if kind == "messages":
        alone = sum(each["kind"] == kind for each in faults["plans"]) == 1
        hit = ", ".join(f"{count:,} {fate}" for fate, count in counts.items()) or "none was hit"
        return [f"messages of {who} {when}{f': {hit}' if alone else ''}"]
    if kind == "hog":
        return [f"a hog beside {who} {when}"]
    factors = [each["factor"] for each in own]
    return [f"{who} {'up to ' if plan.get('factor') != max(factors) else ''}{max(factors):.3g}x slower {when}"]


def _for(kind: str, each: Mapping[str, Any]) -> str:
    if kind != "hang":
        return ""
    return " for good" if each["seconds"] is None else f" for {each['seconds']:g} s"


def _named(place: int, plan: Mapping[str, Any]) -> str:
    moment = next((form.format(plan[key]) for key, form in MOMENTS.items() if plan.get(key) is not None), "")
    return f"faults.plans[{place}] ({plan['kind']}{f' {moment}' if moment else ''})"


def _seconds(value: float, largest: float | None = None) -> str:
    """Format seconds; short runs in virtual time get more digits."""
    return f"{value:.{1 if (value if largest is None else largest) >= 0.1 else 4}f}"


def _and(names: Sequence[str]) -> str:
    return ", ".join(_cut(names, MOST_NAMES, "and {} more"))


def _cut(texts: Sequence[str], most: int, rest: str) -> list[str]:
    return [*texts] if len(texts) <= most else [*texts[:most], rest.format(len(texts) - most)]
