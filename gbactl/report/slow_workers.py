"""Shares of a run's processes' time by phase, and a sentence on a slow worker, from `time` in its result.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from time import localtime, strftime
from typing import Any

SLOW = 1.5  # times the median worker's computation of a batch
FOR_OTHERS = ("batch", "rows", "all_reduce")  # waits that another worker may cause


def shares_of(told: Mapping[str, float]) -> dict[str, float]:
    """Compute the share of a process's time in each phase, from its seconds by phase; empty where it has none."""
    seconds = {phase: value for phase, value in told.items() if phase != "batches"}
    total = sum(seconds.values())
    return {phase: value / total for phase, value in seconds.items()} if total else {}


def phase_shares(time: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Compute each process's share of its time in each phase; empty for runs without times."""
    each = {name: shares_of(told) for name, told in (time.get("processes") or {}).items()}
    return {name: shares for name, shares in each.items() if shares}


def _ratios(processes: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Compute each worker's computing time per batch relative to the median worker's; {} for fewer than two."""
    each = {name: told["compute"] / told["batches"] for name, told in processes.items() if told.get("batches")}
    usual = median(each.values()) if len(each) > 1 else 0.0
    return {worker: value / usual for worker, value in each.items()} if usual else {}


def _losses(worker: str, bins: Sequence[tuple[str, Mapping[str, Mapping[str, float]]]]) -> dict[str, float]:
    """Compute for each mode the share of time that a slow worker costs the others, from (mode, times) of each bin.

    It is the mean share of the others' time that they wait for batches, rows and all-reduces, less its own share."""
    waits: dict[str, dict[str, tuple[float, float]]] = {}
    for mode, workers in bins:
        for name, told in workers.items():
            waited, total = waits.setdefault(mode, {}).get(name, (0.0, 0.0))
            more = sum(value for phase, value in told.items() if phase != "batches")
            waits[mode][name] = waited + sum(told.get(phase, 0.0) for phase in FOR_OTHERS), total + more
    found = {}
    for mode, each in waits.items():
        shares = {name: waited / total for name, (waited, total) in each.items() if total}
        own = shares.pop(worker, None)
        if own is not None and shares:
            found[mode] = max(0.0, fmean(shares.values()) - own)
    return found


def slow_sentence(time: Mapping[str, Any]) -> str:
    """Describe the slowest worker: since when it has been slow, and how much time each mode lost; "" if none is slow.

    The clock's time is local; in virtual time there is none."""
    ratios = _ratios(time.get("processes") or {})
    worker = max(ratios, key=lambda each: ratios[each], default="")
    if not worker or ratios[worker] < SLOW:
        return ""
    begin, bins = None, time.get("bins") or []
    for place, workers in enumerate(bins):
        if worker in (found := _ratios(workers)):
            if found[worker] < SLOW:
                begin = None
            elif begin is None:
                begin = place
    said = f"{worker}'s compute takes {ratios[worker]:.1f} times the median"
    if begin is None:
        return said
    second = time["first_second"] + begin * time["bin_seconds"]
    clock = time.get("began_at")
    at = f"second {second:.0f} of the run" if clock is None else strftime("%H:%M:%S", localtime(clock + second))
    losses = _losses(worker, list(zip(time.get("modes") or [], bins, strict=False))[begin:])
    lost = [f"{mode}{' loses' if not place else ''} {share:.0%}{' to it' if not place else ''}"
            for place, (mode, share) in enumerate(losses.items())]  # fmt: skip
    return f"{said} since {at}" + (f"; {', '.join(lost)}" if lost else "")
