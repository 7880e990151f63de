"""Descriptions of mode switches for users: names of switched runs, sentences, the status that `gbactl switch` prints.

MLflow shows the modes of a run as a curve of numbers, as the run's name, and as a sentence that lists the phases. A
switched run is named by its modes: sync>gba@day2, where @ gives the point of the switch. Pure.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gbactl.errors import GbactlError
from gbactl.policies.policy import names, policy_class

WIDTH = 80  # columns of a terminal


def mode_id(mode: str) -> float | None:
    """Return the number that stands for a mode in the metric `mode_id`; None for a mode without one."""
    number = vars(policy_class(mode)).get("number") if mode in names() else None
    return None if number is None else float(number)


def legend() -> str:
    """Describe which number stands for which mode in the metric `mode_id`."""
    numbered = sorted((number, mode) for mode in names() if (number := mode_id(mode)) is not None)
    return ", ".join(f"{number:g} {mode}" for number, mode in numbered)


def switched(modes: str, to: str, point: str, fresh: bool = False) -> str:
    """Extend the list of modes in a run's name by a switch to `to`.

    `fresh`: with the optimizer's state reset."""
    return f"{modes}>{to}@{point}{'+fresh' if fresh else ''}"


def each_mode(name: str) -> list[str]:
    """Return the modes in a run's name, in order."""
    return [part.partition("@")[0] for part in name.split(">")]


def modes_sentence(first: str, switches: Iterable[Mapping[str, Any]]) -> str:
    """Describe a run's modes in a sentence: the first one, and where each later one starts."""
    entries = [
        f"{each['to']} from {each['day']}, sample {each['first_sample']}"
        f"{', optimizer anew' if each.get('fresh_optimizer') else ''}"
        for each in switches
    ]
    return "; ".join([first, *entries])


def requested_sentence(switches: Iterable[Mapping[str, Any]]) -> str:
    """List the switches that a user requested during the run, which the run's command does not repeat; "" if none."""
    requested = [f"to {each['to']} at step {each['step']}" for each in switches if each.get("id")]
    return f"requested during the run, and not in its command: switch {', '.join(requested)}" if requested else ""


def from_listed(text: str) -> str:
    """Build the list of modes in a run's name from the sentence of `modes_sentence`."""
    name, *rest = text.split("; ")
    for each in rest:
        found = re.fullmatch(r"(\S+) from (\S+) (\d+), sample (\d+)(, optimizer anew)?", each)
        if found is None:
            return text
        to, unit, number, sample, fresh = found.groups()
        point = f"{unit}{number}" if sample == "0" else f"{unit}{number}:{sample}"
        name = switched(name, to, point, fresh is not None)
    return name


def answer(found: dict[str, Any]) -> str:
    """Describe the outcome of a requested switch in a sentence. Raises GbactlError if it was refused or undone."""
    to, state = found.get("to", "that mode"), found["state"]
    if state == "refused":
        raise GbactlError(f"No switch: {found['why'].rstrip('.')}.")
    if state == "stayed":
        raise GbactlError(f"The run stays in {found.get('from', 'its mode')}: {found['why'].rstrip('.')}.")
    if state == "same":
        return f"The run is in {to} already, with these options; nothing was done."
    if state == "accepted":
        return f"The run goes on in {to} as soon as what is in flight has arrived."
    fresh = ", its optimizer's state begun anew" if found.get("fresh_optimizer") else ""
    dense = f", with the {found['dense']}" if found.get("dense") else ""
    return f"The run goes on in {to} from step {found['step']} on{_pause(found.get('pause_ms'))}{fresh}{dense}."


def _pause(milliseconds: float | None) -> str:
    return "" if milliseconds is None else f", after a pause of {milliseconds:.0f} ms"


def status(run_dir: Path, found: dict[str, Any]) -> str:
    """Format the status of a run: its name, and lines of at most 80 columns."""
    if "mode" not in found:
        return f"{run_dir.name}: starting"
    lines = (f"  {what:<11}{value}" for what, value in _values(found))
    wrapped = (line for each in lines for line in textwrap.wrap(each, WIDTH, subsequent_indent=" " * 13))
    return "\n".join([run_dir.name, *wrapped])


def _values(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    share = 100.0 * found["round_finished"] / max(1, found["round_samples"])
    stale = found["staleness"]
    yield "mode", f"{found['mode']} ({found['label']} of {found['rounds']}, {share:.0f} % of it)"
    yield "step", f"{found['step']:,}"
    yield "samples", f"{found['samples']:,}"
    yield "samples/s", f"{found['round_eps']:,.0f}"
    yield "staleness", f"mean {stale['mean']:.2f}, p50 {stale['p50']:.0f}, p99 {stale['p99']:.0f} steps"
    lost = "".join(f", W{worker} is lost" for worker in found["lost"])
    yield "workers", f"{found['live']}{lost}"
    yield "each", " ".join(f"{name}:{rate:,.0f}" for name, rate in found["workers"].items()) or "-"
    if look := found.get("auto"):
        yield "auto", f"sync {look['sync']:,.0f}, gba {look['gba']:,.0f} samples/s: {look['reason']}"
    for each in found["switches"]:
        yield "switch", switch_sentence(each)


def switch_sentence(each: dict[str, Any]) -> str:
    """Describe a switch that was done, or why the mode stayed."""
    text = f"step {each['step']}: {each['from']} to {each['to']}"
    return f"{text}, not done: {each['why']}" if each["state"] == "stayed" else text + _pause(each.get("pause_ms"))
