"""Output of `gbactl switch`: sentences and a short table for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gbactl.errors import GbactlError

WIDTH = 80


def answer(found: dict[str, Any]) -> str:
    """Describe the outcome of a switch in one sentence. Raises GbactlError where it is refused or did not happen."""
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
    """Format the status of a run in lines of at most 80 columns."""
    name = textwrap.shorten(run_dir.name, WIDTH - 10, placeholder="...")
    if "mode" not in found:
        return f"{name}: starting"
    lines = [name, *(f"  {what:<11}{value}" for what, value in _values(found))]
    return "\n".join(line for each in lines for line in textwrap.wrap(each, WIDTH, subsequent_indent=" " * 13))


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
        yield "switch", _switch(each)


def _switch(each: dict[str, Any]) -> str:
    told = f"step {each['step']}: {each['from']} to {each['to']}"
    return f"{told}, not done: {each['why']}" if each["state"] == "stayed" else told + _pause(each.get("pause_ms"))
