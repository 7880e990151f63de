"""Check of the trace that a run with --trace writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def traced(run_dir: Path, result: dict[str, Any]) -> None:
    """The trace has slices of every process, within or after each other in a thread, until step 200 after the first.

    They are of the time of the run, whatever other clocks its hosts have."""
    events = json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in events if each["ph"] == "M"}
    slices = [each for each in events if each["ph"] == "X"]
    processes = {*result["time"]["processes"], "C"}  # C: the coordinator
    sliced = {names[each["pid"]] for each in slices}
    assert sliced == processes == set(names.values()), (sliced, processes, names)
    steps = [int(each["name"].removeprefix("step ")) for each in events if each["ph"] == "i"]
    assert steps and max(steps) <= min(steps) + 201
    times = [each["ts"] for each in slices]
    assert max(times) - min(times) < 1e6 * (result["wall_seconds"] + 60)
    open_until: dict[tuple[int, int], list[float]] = {}
    for each in sorted(slices, key=lambda each: (each["ts"], -each["dur"])):
        ends = open_until.setdefault((each["pid"], each["tid"]), [])
        while ends and ends[-1] <= each["ts"] + 0.01:
            ends.pop()
        assert not ends or each["ts"] + each["dur"] <= ends[-1] + 0.01
        ends.append(each["ts"] + each["dur"])
