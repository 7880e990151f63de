"""Learning-rate schedules, as pure functions of progress p and never of the step k.

p counts global batches finished before the step. The value is a factor on the learning rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from gbactl.config_types import Bounds, Share
from gbactl.errors import ConfigError


@dataclass
class ScheduleConfig:
    """Learning-rate schedule's configuration: the rate depends on progress p (global batches finished), never on k."""

    name: str = "constant"
    warmup: Annotated[float, Bounds(at_least=0, at_most=1e15)] = 0.0
    total: Annotated[float, Bounds(at_least=0, at_most=1e15)] = 0.0
    floor: Share = 0.0


def _warm(progress: float, warmup: float) -> float:
    return min(1.0, (progress + 1) / warmup) if warmup > 0 else 1.0


def due(every: int, step: int) -> bool:
    """Whether an action taken every `every` steps is due at `step`; 0 means never."""
    return every > 0 and (step + 1) % every == 0


def factor(schedule: ScheduleConfig, progress: float) -> float:
    """Learning-rate factor at `progress` >= 0.

    constant: 1. linear: rises over `warmup`, then 1. inverse_sqrt: rises, then sqrt(warmup / p).
    cosine: rises, then half a cosine from 1 to `floor` at `total`, and `floor` after it.
    Raises ConfigError on an unknown name, or a cosine that ends before it begins.
    """
    warm, warmup = _warm(progress, schedule.warmup), schedule.warmup
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "linear":
        return warm
    if schedule.name == "inverse_sqrt":
        start = max(warmup, 1.0)
        return warm * math.sqrt(start / max(progress, start))
    if schedule.name != "cosine":
        raise ConfigError(f"optim.schedule.name={schedule.name} is not known.")
    if schedule.total <= warmup:
        raise ConfigError("optim.schedule.total must be greater than optim.schedule.warmup for a cosine.")
    done = min(max((progress - warmup) / (schedule.total - warmup), 0.0), 1.0)
    return warm * (schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done)))
