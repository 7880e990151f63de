"""Shares of a run's processes' time by phase, and a sentence on a slow worker, from `time` in its result.json. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

SLOW = 1.5  # times the median worker's computation of a batch


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
    """Compute each worker's seconds of computation a batch over the median worker's; {} of fewer than two."""
    each = {name: told["compute"] / told["batches"] for name, told in processes.items() if told.get("batches")}
    usual = median(each.values()) if len(each) > 1 else 0.0
    return {worker: value / usual for worker, value in each.items()} if usual else {}


def slow_sentence(time: Mapping[str, Any]) -> str:
    """Name the slowest worker, and since when to the end it was slow; "" where none is slow."""
    ratios = _ratios(time.get("processes") or {})
    worker = max(ratios, key=lambda each: ratios[each], default="")
    if not worker or ratios[worker] < SLOW:
        return ""
    begin = None
    for place, workers in enumerate(time.get("bins") or []):
        if worker in (found := _ratios(workers)):
            if found[worker] < SLOW:
                begin = None
            elif begin is None:
                begin = time["first_second"] + place * time["bin_seconds"]
    since = "" if begin is None else f", since second {begin:.0f} of the run"
    return f"{worker}'s compute takes {ratios[worker]:.1f} times the median{since}"
